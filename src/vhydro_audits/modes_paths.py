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
from vhydro.fitting import Division, Modes, fit_divisions
from vhydro.learning.start import AUTO
from vhydro.model import HybridModel
from vhydro.modes.metrics import change_points
from vhydro.modes.readings import readings, regime_of
from vhydro.occlusion import straight_lines
from vhydro.proposal import ModeProposal, mode_proposal
from vhydro.smoother import smooth
from vhydro.training import Parts, TrainingConfig, fit
from vhydro.views.contact import ContactView, contact_view
from vhydro_audits.baselines.segmenters import ar_hmm, changes, gaussian_hmm, hdp_hmm, slds
from vhydro_audits.labels.proxy import differences

READINGS = ("modes", "touching", "contact", "regime")  # as they are, and what they mean; see `vhydro.modes.readings`
OURS = ("auto", "full", "particles", "no-support", "no-mode")
PEERS = ("hmm", "ar-hmm", "slds", "hdp-hmm", "changes")
TOLD = "told"  # a peer that was told the number of configurations, and not ours
PARTICLES, TRAJECTORIES, GUIDE_STEPS = 64, 32, 80
REFINEMENT = None  # contacts are read with the noise from before it, and are the same
VALIDATION = "validation"  # where readings are chosen; beside it, test logs in every condition
HALF = 0.5  # of the time hidden

Paths = list[np.ndarray]
Read = dict[str, Paths]  # by reading
Truth = dict[str, dict[str, Paths]]  # of validation and test logs, by the kind of label


class Logs(NamedTuple):
    """One division of a task's logs, without labels; those to test by their condition."""

    train: list[Episode]
    validation: list[Episode]
    test: dict[str, list[Episode]]


class Found(NamedTuple):
    """What every method says of validation logs, and of test logs in every condition; and ours in full."""

    paths: dict[tuple[str, str, str], Read]  # place, method, and what it was told of
    ours: Fitted  # `auto`
    beliefs: dict[str, list[Belief]]  # smoothed
    seen: dict[str, list[Episode]]  # the logs as our view shows them


def found_paths(logs: Logs, count: int, truth: Truth, seed: int, *, ablations: bool) -> Found:
    """The paths of every method. `truth` tells `changes` how many changes there are, and nothing else.

    `count` is the number of configurations that the simulator's forces show: `full` is told it, and peers where a
    reading is chosen by labels. `ablations` asks for all variants of ours.
    """
    view = contact_view(logs.train)
    raw = {VALIDATION: logs.validation, **logs.test}
    seen = {place: [view(e) for e in episodes] for place, episodes in raw.items()}
    auto = _fitted(logs, view, AUTO, seed)
    beliefs = {place: auto.smooth_all(episodes) for place, episodes in raw.items()}
    paths = _ours("auto", auto, raw, beliefs)
    if ablations:
        full, one = _fitted(logs, view, count, seed), _fitted(logs, view, 1, seed)
        for name, other in (("full", full), ("no-mode", one)):
            paths |= _ours(name, other, raw, {place: other.smooth_all(episodes) for place, episodes in raw.items()})
        for name, guided in _guided(full, logs, seed).items():
            for place, episodes in seen.items():
                paths[place, name, ""] = _read(full, episodes, guided(episodes))
    # Ours holds modes in readiness that no log shows: peers are given as many as it finds in logs to choose by.
    used = len(np.unique(np.concatenate([b.path for b in beliefs[VALIDATION]])))
    return Found(paths | _peers(view, logs, raw, seen, (used, count), truth, seed), auto, beliefs, seen)


def _ours(name: str, model: Fitted, raw: dict[str, list[Episode]], beliefs) -> dict[tuple[str, str, str], Read]:
    """The readings that a user has of every log."""
    out = {}
    for place, episodes in raw.items():
        every = [model.contacts(e, b) for e, b in zip(episodes, beliefs[place], strict=True)]
        out[place, name, ""] = {kind: [np.asarray(getattr(r, kind)) for r in every] for kind in READINGS}
    return out


def _fitted(logs: Logs, view: ContactView, modes: Modes, seed: int) -> Fitted:
    """What `vhydro.fit` makes of the division; its intervals are not asked for here."""
    division = Division(logs.train, logs.validation)
    length = max(e.steps + 1 for part in logs[:2] for e in part)  # divisions of one task share a program
    options = {"refinement": REFINEMENT, "calibrate": False, "length": length}
    return fit_divisions([division], view, modes=modes, seeds=[seed], **options)[0]


def _read(model: Fitted, seen: Sequence[Episode], paths: Paths) -> Read:
    assert isinstance(model.view, ContactView)
    assert model.couples is not None
    every = [readings(p, model.couples, model.view, e) for p, e in zip(paths, seen, strict=True)]
    return {name: [np.asarray(getattr(r, name)) for r in every] for name in READINGS}


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
    length = max(e.steps + 1 for part in logs[:2] for e in part)  # divisions of one task share a program
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


def bridged(episode: Episode) -> Episode:
    """The log with straight lines where readings are hidden."""
    return replace(episode, observations=straight_lines(episode.observations))


def _peers(view: ContactView, logs: Logs, raw, seen, counts: tuple[int, int], truth: Truth, seed: int):
    """Every peer's paths. They learn from training and validation logs, which ours needs to choose by.

    All but the kinematic features of the HMM are our channels. Hidden readings are bridged by straight lines, but for
    the switching system, which infers them. `counts` are the modes that ours has found, which a peer is given without
    labels, and the number of configurations, which it is told with them; the sticky HDP-HMM needs neither.
    """
    both, places = [*logs.train, *logs.validation], list(raw)
    known = [view(e) for e in both]
    bright = {place: [bridged(e) for e in raw[place]] for place in places}
    lit = {place: [view(e) for e in bright[place]] for place in places}
    drives = [e.actions for e in known], [e.actions for place in places for e in seen[place]]
    values, straight = [e.observations for e in known], [e.observations for place in places for e in lit[place]]
    gappy = [e.observations for place in places for e in seen[place]]
    kinematic = [_kinematic(e) for e in both], [_kinematic(e) for place in places for e in bright[place]]
    every = {("hdp-hmm", ""): hdp_hmm(values, straight, seed=seed, inputs=drives)}
    for told, count in zip(("", TOLD), counts, strict=True):
        every |= {
            ("hmm", told): gaussian_hmm(*kinematic, count, seed=seed),
            ("ar-hmm", told): ar_hmm(values, straight, count, seed=seed, inputs=drives),
            ("slds", told): slds(values, gappy, count, seed=seed, inputs=drives),
        }
    ends = np.cumsum([len(raw[place]) for place in places])[:-1].tolist()
    out = {
        (place, *name): list(part)
        for name, found in every.items()
        for place, part in zip(places, _parted(found, ends), strict=True)
    }
    moved = [_moved(e) for e in known]
    for place in places:
        for name, labels in truth[place].items():
            told = [len(change_points(t)) for t in labels]
            out[place, "changes", name] = changes(moved, [_moved(e) for e in lit[place]], counts[1], told, seed=seed)
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
