"""The conditions of the modes audit: what is done to logs before anybody learns from them, or is tested on them.

`clean` logs are as the simulator gives them. What was learned from them is also tested on logs whose bodies are hidden
half of the time, and on logs of a noisy policy. In the other conditions learning, choosing and test logs are alike.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from vhydro.data.dataset import Dataset
from vhydro.data.read import read
from vhydro.data.sample import FILES
from vhydro.episodes import Episode
from vhydro.occlusion import occlude
from vhydro.views.contact import MACHINE, ContactView
from vhydro_audits.support_data import noisy

CLEAN, HIDDEN, POLICY = "clean", "half hidden", "noisy policy"
NOISE = {"noise 1 mm": 1e-3, "noise 2 mm": 2e-3, "noise 5 mm": 5e-3}  # metres, on every place of every body
SLOW, FEW = "10 Hz", "5 logs"
LEARNED = (CLEAN, *NOISE, SLOW, FEW)  # a group of cells for each; clean's has HIDDEN and POLICY too
SLOW_STEP, FEW_LOGS = 0.1, 5  # seconds; logs to learn and choose from
NOISY_FOLDER = "noisy"  # in the folder of logs: those of the noisy policy
ABSOLUTE = ("maniskill", "unseen", "new")  # families whose commands are places to be at: the last of some is theirs

Labels = dict[str, list[np.ndarray]]


class Parts(NamedTuple):
    """Logs to learn from, to choose by and to test, with the labels that the last two are scored against."""

    train: list[Episode]
    validation: list[Episode]
    test: list[Episode]
    held_labels: Labels
    test_labels: Labels


def offered(family: str, data: str | None, asked: Sequence[str]) -> list[str]:
    """The conditions in which a family's tasks are learned; the shipped sample has too few logs for some."""
    left = [c for c in LEARNED if not asked or c in asked]
    if data is None:
        return [c for c in left if c in (CLEAN, "noise 2 mm")]
    return [c for c in left if c != SLOW or family in ABSOLUTE]


def tested(condition: str, task: str, data: str | None) -> list[str]:
    """The conditions in which is tested what was learned in this one."""
    if condition != CLEAN:
        return [condition]
    return [CLEAN, HIDDEN, *([POLICY] if _noisy_file(task, data) is not None else [])]


def _noisy_file(task: str, data: str | None) -> Path | None:
    path = None if data is None else Path(data) / NOISY_FOLDER / FILES[task]
    return path if path is not None and path.is_file() else None


def noisy_logs(task: str, data: str | None) -> Dataset | None:
    """The logs of the noisy policy, where there are any."""
    path = _noisy_file(task, data)
    return None if path is None else read(path)


def changed(condition: str, parts: Parts, view: ContactView, seed: int) -> Parts:
    """The logs as the condition has them."""
    if condition in NOISE:
        random = np.random.default_rng([seed, 3])
        train, held, test = ([noisy(e, view, NOISE[condition], random) for e in part] for part in parts[:3])
        return parts._replace(train=train, validation=held, test=test)
    if condition == SLOW:
        every = max(round(SLOW_STEP / parts.train[0].dt), 1)
        train, held, test = ([thinned(e, every) for e in part] for part in parts[:3])
        first, second = ({name: [x[::every] for x in own] for name, own in kind.items()} for kind in parts[3:])
        return Parts(train, held, test, first, second)
    if condition == FEW:
        few = min(FEW_LOGS, len(parts.train) + 1) - 1
        labels = {name: own[:1] for name, own in parts.held_labels.items()}
        return parts._replace(train=parts.train[:few], validation=parts.validation[:1], held_labels=labels)
    return parts


def thinned(episode: Episode, every: int) -> Episode:
    """One row in so many; of the commands between two of them, places to be at, the last."""
    steps = (len(episode.observations) - 1) // every
    values, told = episode.observations[: steps * every + 1 : every], episode.actions[every - 1 : steps * every : every]
    return replace(episode.unlabelled(), observations=values, actions=told, dt=episode.dt * every)


def hidden(episode: Episode, view: ContactView, level: float, burst: int, seed: int, number: int) -> Episode:
    """The log with bodies hidden in bursts, each by itself; the machine's own encoders are never in the dark."""
    if not level:
        return episode
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), number)
    seen = view(episode)
    names = [c.name for c in seen.channels if c.group not in MACHINE]
    dark = np.isnan(occlude(seen.select(names), level, burst=burst, key=key).observations)
    values = episode.observations.astype(np.float64)
    for i, body in enumerate(view.bodies):
        own = np.array([c.name.startswith(f"{body}.") for c in episode.channels])
        values[np.ix_(dark[:, 3 * i], own)] = np.nan
    return replace(episode, observations=values)
