"""The whole chain from positions alone: segment, filter and smooth, recover. No label is ever seen.

The law found by `segmenting` is a model; the support-safe filter and its smoother say how likely every mode is at
every sample; the law is then recovered with those weights. What is returned is that law and nothing beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np

from vhydro.episodes import Channel, Episode
from vhydro.filter import Belief, FilterSettings, filter_episodes
from vhydro.laws.estimate import as_estimate, sorted_by_motion, weak_law, with_sure_masses
from vhydro.laws.guards import labels
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.proposals import ProposalConfig
from vhydro.laws.recording import Recording
from vhydro.laws.recover import FEWEST_SAMPLES, LawsConfig, determined, law_of, recover_from, refuse_unfit
from vhydro.laws.segmenting import Segmented, segmented
from vhydro.laws.tracks import Tracks, prepared
from vhydro.model import HybridModel
from vhydro.smoother import smooth_log


@dataclass(frozen=True)
class ChainConfig:
    """How modes are found, and laws from them."""

    proposals: ProposalConfig = field(default_factory=ProposalConfig)
    laws: LawsConfig = field(default_factory=LawsConfig)
    particles: int = 64


class FoundModes(NamedTuple):
    """Modes found in a recording without labels."""

    tracks: Tracks  # with the weight of every mode at every sample
    smoothed: bool  # whether those are the smoother's; otherwise the segmentation's own rules explained more
    proposals: tuple[float, ...]  # scores of all proposed segmentations, smaller is better


class Chained(NamedTuple):
    """What the chain found."""

    law: Law
    modes: np.ndarray  # (episodes, times, modes): the weights the law was recovered with
    smoothed: bool
    proposals: tuple[float, ...]

    @property
    def model(self) -> HybridModel:
        """The law as a model to filter with."""
        return self.law.as_model()


def chain(recording: Recording, problem: Problem, config: ChainConfig = ChainConfig(), *, seed: int = 0) -> Chained:
    """The law of every mode from positions and inputs alone; the recording's own modes are not looked at.

    Mode 0 is the base law's; contacts follow in the order of their places, then directions, then rests.
    """
    with determined():
        found = find_modes(recording, problem, config, seed=seed)
    law = law_of_modes(found, problem, config.laws)
    return Chained(law, found.tracks.modes, found.smoothed, found.proposals)


def find_modes(recording: Recording, problem: Problem, config: ChainConfig, *, seed: int) -> FoundModes:
    """The modes of a recording: segmented, then smoothed with the model of the law that segmentation leads to."""
    valid = recording.modes.sum(-1, keepdims=True) > 0
    blind = recording._replace(modes=np.broadcast_to(valid / len(problem.modes), recording.modes.shape).copy())
    refuse_unfit(blind, problem, config.laws.shooting.bump)
    tracks, bump = prepared(blind, problem), config.laws.shooting.bump
    found = segmented(tracks, problem, config.proposals, bump, seed=seed)
    now = tracks._replace(modes=found.weights)
    with jax.enable_x64(True):
        sure = with_sure_masses(found.law, now, config.laws.shooting)
    first = law_of(as_estimate(sure), now, problem, replace(config.laws, held_out=False))
    beliefs = smoothed(first.as_model(), episodes_of(recording, problem), config, seed=seed)
    weights = np.stack([belief.mode for belief in beliefs]) * valid
    used = _is_better(tracks, problem, found, weights, bump)
    modes = (weights if used else found.weights)[..., mode_order(first)]
    return FoundModes(tracks._replace(modes=modes), used, found.scores)


def law_of_modes(found: FoundModes, problem: Problem, config: LawsConfig) -> Law:
    """The law recovered with the modes found; all marked where those are no physical regimes: they were a guess."""
    law, odd = recover_from(found.tracks, problem, config), sorted_by_motion(found.tracks)[0].unexplained
    if not odd:
        return law
    why = f"the modes found are not told apart by a surface, a direction or a rest ({len(odd)} of {len(law.modes)})"
    return replace(law, problems=tuple((m, why) for m in range(len(law.modes))))


def mode_order(law: Law) -> list[int]:
    """The modes of a law: the base, contacts by their places, modes told apart otherwise, rests."""
    contacts = {b.mode: float(law.theta[law.form.places[i]]) for i, b in enumerate(law.form.blocks) if b.guard}

    def place(mode: int) -> tuple[int, float]:
        kind = 0 if mode == law.form.base else 1 if mode in contacts else 3 if mode in law.form.resting else 2
        return kind, contacts.get(mode, 0.0)

    return sorted(range(len(law.modes)), key=place)


def _is_better(tracks: Tracks, problem: Problem, found: Segmented, weights: np.ndarray, bump: int) -> bool:
    """Whether the smoother's modes lead to a law of the same form that explains the positions better."""
    if (np.bincount(labels(weights).clip(0).ravel(), minlength=weights.shape[-1]) < FEWEST_SAMPLES).any():
        return False
    other = weak_law(tracks._replace(modes=weights), problem, bump, momenta=False)
    same = [b.guard for b in other.form.blocks] == [b.guard for b in found.law.form.blocks]
    return same and other.score < found.law.score


def filter_settings(config: ChainConfig) -> FilterSettings:
    """How a law's model filters: no reading is taken for a fault, for what a law cannot explain speaks against it.

    Branches are not corrected for being linearised: the steps between samples are short.
    """
    return FilterSettings(particles=config.particles, corrected=False, outliers=None, history=True)


def smoothed(model: HybridModel, episodes: Sequence[Episode], config: ChainConfig, *, seed: int) -> list[Belief]:
    """Every episode filtered and smoothed, one by one: logs of one length share one program, however many there are."""
    keys = jax.random.split(jax.random.key(seed), len(episodes))
    settings = filter_settings(config)
    return [smooth_log(model, e, key=key, settings=settings) for e, key in zip(episodes, keys, strict=True)]


def evidence_per_value(model: HybridModel, episodes: Sequence[Episode], config: ChainConfig, *, seed: int) -> float:
    """The log evidence of episodes under a model, in nats per observed value."""
    keys = jax.random.split(jax.random.key(seed), len(episodes))
    settings = filter_settings(config)
    beliefs = [filter_episodes(model, [e], key=k, settings=settings)[0] for e, k in zip(episodes, keys, strict=True)]
    values = sum(int(e.observed.sum()) for e in episodes)
    return float(sum(belief.log_evidence for belief in beliefs)) / max(values, 1)


def episodes_of(recording: Recording, problem: Problem) -> list[Episode]:
    """The recording as logs of the positions."""
    channels = tuple(Channel(name) for name in problem.coordinates[: problem.positions])
    pairs = zip(recording.positions, recording.actions, strict=True)
    return [Episode(seen, actions, recording.dt, channels) for seen, actions in pairs]
