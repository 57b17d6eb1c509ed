"""The logs of the support audit: where they are, what a seed adds to them, and how it divides them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from vhydro.data.dataset import Dataset, split
from vhydro.data.read import read
from vhydro.data.sample import FILES, sample
from vhydro.episodes import Episode
from vhydro.fitting import Division
from vhydro.views.contact import ContactView, contact_view

FAMILIES = {
    "contact": ("PickCube", "PokeCube", "PullCube", "PushCube"),
    "sawyer-bridge": ("tower", "laundry", "search", "bridge"),
}
PUBLISHED_TASKS = {
    **{task: f"{task}-v1" for task in FAMILIES["contact"]},
    "tower": "SawyerTowerCreation",
    "laundry": "SawyerLaundryLayout",
    "search": "SawyerObjectSearch",
    "bridge": "BridgeDataOcclusion",
}

NOISE = 1  # the seed's stream of noise; 0 would be the one that divides the logs


def logs_of(task: str, data: str | None) -> Dataset:
    """The logs of a task: the file of its name in the folder, or the shipped sample where there is no folder."""
    if data is None:
        return sample(task)
    names = (FILES[task], f"{task}.npz")
    found = [Path(data) / name for name in names if (Path(data) / name).is_file()]
    if not found:
        raise ValueError(
            f"{data} has neither {names[0]} nor {names[1]}, the logs of {task}. Record them with `vhydro collect`, or "
            "use --quick without --data for a small run on the shipped sample."
        )
    return read(found[0])


@cache
def episodes_of(task: str, data: str | None) -> tuple[Episode, ...]:
    """The logs of a task, contacts included."""
    logs = logs_of(task, data)
    if len(logs) < 3:
        raise ValueError(
            f"{logs.path} has {len(logs)} episodes; expected at least 3, one each to train, validate, test. "
            "Collect more."
        )
    episodes = tuple(logs)
    for name, episode in zip(logs.names, episodes, strict=True):
        if not episode.observed.all():
            raise ValueError(
                f"{logs.path} hides readings in {name}; the audit hides them itself and needs the truth. Give logs "
                "that show all."
            )
    return episodes


@cache
def view_of(task: str, data: str | None) -> ContactView:
    """What a filter sees of a task: the bodies, driven by the hand. Encoders are never in the dark, cameras are."""
    return replace(contact_view(episodes_of(task, data)), machine=False)


def fingerprint(task: str, data: str | None) -> str:
    """What tells the logs of a task apart."""
    return digest(episodes_of(task, data))


def digest(episodes: Sequence[Episode]) -> str:
    """What tells logs apart: a digest of their readings and inputs, to six decimals."""
    found = sha256()
    for e in episodes:
        for values in (e.observations, e.actions):
            found.update(np.round(np.asarray(values, np.float64), 6).tobytes())
    return found.hexdigest()[:12]


def divided(task: str, data: str | None, seed: int, sensor_noise: float) -> tuple[Division, list[Episode]]:
    """A seed's logs to fit and choose by, and those to test, with the noise that the seed adds to every place."""
    random, view = np.random.default_rng([seed, NOISE]), view_of(task, data)
    logs = [noisy(e, view, sensor_noise, random) for e in episodes_of(task, data)]
    names = tuple(str(i) for i in range(len(logs)))
    whole = Dataset("audit", Path(data or "sample"), names, lambda i: logs[i])
    train, validation, test = split(whole, seed=seed).of(whole)
    return Division(list(train), list(validation)), list(test)


def noisy(episode: Episode, view: ContactView, size: float, random: np.random.Generator) -> Episode:
    """The log with noise on the places of all bodies; hand, fingers and joints are exact."""
    places = {name for names in view.bodies.values() for name in names}
    mine = [c.name in places for c in episode.channels]
    values = episode.observations.astype(np.float64)
    values[:, mine] += size * random.normal(size=(len(values), sum(mine)))
    return replace(episode, observations=values)
