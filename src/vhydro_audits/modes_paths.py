"""The paths of every method of the modes audit: ours, its ablations and its peers, on the same logs, equally dark."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from vhydro.certificate import Gate, adaptive, no_support
from vhydro.episodes import Episode
from vhydro.filter import Belief, FilterSettings, filter_episodes
from vhydro.fitted import Fitted
from vhydro.fitting import Division, Modes, Refinement, fit_divisions
from vhydro.learning.start import AUTO
from vhydro.model import HybridModel
from vhydro.modes.metrics import change_points
from vhydro.modes.readings import readings, regime_of
from vhydro.occlusion import occlude, straight_lines
from vhydro.proposal import ModeProposal, mode_proposal
from vhydro.smoother import smooth
from vhydro.training import Parts, TrainingConfig, fit
from vhydro.views.contact import MACHINE, ContactView, contact_view
from vhydro_audits.baselines.segmenters import ar_hmm, changes, gaussian_hmm, slds
from vhydro_audits.labels.proxy import differences

LEVELS = (0.0, 0.5)  # of the test logs; every method learns in full sight
READINGS = ("modes", "touching", "contact", "regime")  # as they are, and what they mean; see `vhydro.modes.readings`
METHODS = ("full", "auto", "particles", "no-support", "no-mode", "hmm", "ar-hmm", "slds", "changes")
PARTICLES, TRAJECTORIES, GUIDE_STEPS = 64, 32, 80
REFINEMENT = Refinement()  # as a user has it
VALIDATION = "validation"  # where readings are chosen; beside it, test logs at every level

Paths = list[np.ndarray]
Read = dict[str, Paths]  # by reading
Truth = dict[str, dict[str, Paths]]  # of validation and test logs, by the kind of label


class Logs(NamedTuple):
    """One division of a task's logs, without labels."""

    train: list[Episode]
    validation: list[Episode]
    test: list[Episode]


class Found(NamedTuple):
    """What every method says of validation logs, and of test logs at every level; and ours in full."""

    paths: dict[tuple[float | str, str, str], Read]  # place, method, label set that it was told of
    full: Fitted
    beliefs: dict[float | str, list[Belief]]  # smoothed
    seen: dict[float | str, list[Episode]]  # the logs as our view shows them


def found_paths(logs: Logs, count: int, truth: Truth, seed: int, burst: int) -> Found:
    """The paths of every method. `truth` tells `changes` how many changes there are, and nothing else."""
    view = contact_view(logs.train)
    full, auto, one = (_fitted(logs, view, modes, seed) for modes in (count, AUTO, 1))
    raw: dict[float | str, list[Episode]] = {VALIDATION: logs.validation}
    raw |= {o: [hidden(e, view, o, burst, seed, i) for i, e in enumerate(logs.test)] for o in LEVELS}
    seen = {place: [view(e) for e in episodes] for place, episodes in raw.items()}
    paths: dict[tuple[float | str, str, str], Read] = {}
    beliefs = {place: [full.smooth(e) for e in episodes] for place, episodes in raw.items()}
    for place, found in beliefs.items():
        paths[place, "full", ""] = _read(full, seen[place], [b.path for b in found])
    for name, other in (("auto", auto), ("no-mode", one)):
        for place, episodes in raw.items():
            paths[place, name, ""] = _read(other, seen[place], [other.smooth(e).path for e in episodes])
    for name, guided in _guided(full, logs, seed).items():
        for place, episodes in seen.items():
            paths[place, name, ""] = _read(full, episodes, guided(episodes))
    return Found(paths | _peers(view, logs, raw, seen, count, truth, seed), full, beliefs, seen)


def _fitted(logs: Logs, view: ContactView, modes: Modes, seed: int) -> Fitted:
    """What `vhydro.fit` makes of the division; its intervals are not asked for here."""
    division = Division(logs.train, logs.validation)
    length = max(e.steps + 1 for part in logs for e in part)  # divisions of one task share a program
    options = {"refinement": REFINEMENT, "calibrate": False, "length": length}
    return fit_divisions([division], view, modes=modes, seeds=[seed], **options)[0]


def _read(model: Fitted, seen: Sequence[Episode], paths: Paths) -> Read:
    assert isinstance(model.view, ContactView)
    assert model.couples is not None
    every = [readings(p, model.couples, model.view, e) for p, e in zip(paths, seen, strict=True)]
    return {name: [np.asarray(getattr(r, name)) for r in every] for name in READINGS}


# --- the dark -------------------------------------------------------------------------------------------------------


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


def bridged(episode: Episode) -> Episode:
    """The log with straight lines where readings are hidden."""
    return replace(episode, observations=straight_lines(episode.observations))


# --- ablations ------------------------------------------------------------------------------------------------------


def _guided(full: Fitted, logs: Logs, seed: int) -> dict[str, Callable[[Sequence[Episode]], Paths]]:
    """Our model by particles, with one learned guide of modes: λ from its certificate, and λ = 0."""
    gates = {"particles": adaptive(certificate="guide-free"), "no-support": no_support()}
    if full.model.modes == 1:
        return dict.fromkeys(gates, _one_mode)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), 3)
    seen, held = [full.view(e) for e in logs.train], [full.view(e) for e in logs.validation]
    config = TrainingConfig(
        steps=GUIDE_STEPS, window=32, learning_rate=0.01, occlusion=(0.0,), validate_every=GUIDE_STEPS // 2,
        frozen=("model",), settings=_settings(no_support(), 16),
    )  # fmt: skip
    start = Parts(full.model, mode_proposal(full.model, hidden=(32, 32), key=keys[0]))
    length = max(e.steps + 1 for part in logs for e in part)  # divisions of one task share a program
    guide = fit(start, seen, held, key=keys[1], config=config, length=length, progress=False).proposal
    assert isinstance(guide, ModeProposal)
    return {name: partial(_sampled, full.model, guide, gate, keys[2]) for name, gate in gates.items()}


def _settings(gate: Gate, particles: int, **options: Any) -> FilterSettings:
    # All methods draw; a reading that one of them cannot explain is not hidden from it.
    fixed = {"engine": "mixture", "outliers": None, "lookahead": True, "ess_threshold": 1.0}
    return FilterSettings(**{"particles": particles, "gate": gate, **fixed, **options})


def _one_mode(seen: Sequence[Episode]) -> Paths:
    return [np.zeros(e.steps + 1, np.int64) for e in seen]


def _sampled(model: HybridModel, guide: ModeProposal, gate: Gate, key, seen: Sequence[Episode]) -> Paths:
    """The likeliest smoothed mode of every row."""
    settings = _settings(gate, PARTICLES, history=True)
    first, second = jax.random.split(key)
    outs = filter_episodes(model, seen, key=first, settings=settings, proposal=guide)
    smoothed = [smooth(model, e, out, key=second, trajectories=TRAJECTORIES) for e, out in zip(seen, outs, strict=True)]
    return [np.asarray(s.mode).argmax(1).astype(np.int64) for s in smoothed]


# --- peers ----------------------------------------------------------------------------------------------------------


def _peers(view: ContactView, logs: Logs, raw, seen, count: int, truth: Truth, seed: int):
    """Every peer's paths. They learn from training and validation logs, which ours needs to choose by.

    All but the kinematic features of the HMM are our channels. Hidden readings are bridged by straight lines, but for
    the switching system, which infers them.
    """
    both, places = [*logs.train, *logs.validation], list(raw)
    known = [view(e) for e in both]
    bright = {place: [bridged(e) for e in raw[place]] for place in places}
    lit = {place: [view(e) for e in bright[place]] for place in places}
    drives = [e.actions for e in known], [e.actions for place in places for e in seen[place]]
    values, straight = [e.observations for e in known], [e.observations for place in places for e in lit[place]]
    gappy = [e.observations for place in places for e in seen[place]]
    kinematic = [_kinematic(e) for e in both], [_kinematic(e) for place in places for e in bright[place]]
    every = {
        "hmm": gaussian_hmm(*kinematic, count, seed=seed),
        "ar-hmm": ar_hmm(values, straight, count, seed=seed, inputs=drives),
        "slds": slds(values, gappy, count, seed=seed, inputs=drives),
    }
    ends = np.cumsum([len(raw[place]) for place in places])[:-1].tolist()
    out = {
        (place, name, ""): list(part)
        for name, found in every.items()
        for place, part in zip(places, _parted(found, ends), strict=True)
    }
    moved = [_moved(e) for e in known]
    for place in places:
        for name, labels in truth[VALIDATION if place == VALIDATION else "test"].items():
            told = [len(change_points(t)) for t in labels]
            out[place, "changes", name] = changes(moved, [_moved(e) for e in lit[place]], count, told, seed=seed)
    # Change points are clustered anew for the logs of every place: their modes have numbers of their own there.
    return {
        key: _peer_readings(path, path if key[1] == "changes" else out[VALIDATION, key[1], key[2]])
        for key, path in out.items()
    }


def _parted(items: list, ends: Sequence[int]) -> list[list]:
    edges = [0, *ends, len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


def _peer_readings(paths: Paths, begun: Paths) -> Read:
    """A peer's modes have no words: nothing touches in the mode in which most of some logs have begun."""
    free = np.bincount([p[0] for p in begun]).argmax()
    touching = [p != free for p in paths]
    return {"modes": paths, "contact": [t.astype(int) for t in touching], "regime": [regime_of(t) for t in touching]}


def _moved(seen: Episode) -> np.ndarray:
    """Displacements and drives of every row, the first's repeated."""
    step = np.concatenate([np.diff(seen.observations, axis=0), seen.actions], 1)
    return np.concatenate([step[:1], step]) if len(step) else np.zeros((1, 2 * len(seen.channels)))


def _kinematic(episode: Episode) -> np.ndarray:
    """The paper's features: how far objects, the end effector and the action moved, in logarithms."""
    return np.log(differences(episode).T + 1e-6)
