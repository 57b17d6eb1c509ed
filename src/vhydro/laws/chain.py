"""The whole chain from positions alone: fit, smooth, segment, recover. No label is ever seen.

A law found by `segmenting` becomes a `HybridModel`; the support-safe filter and its smoother say how likely every mode
is at every sample; the law is then recovered with those weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.laws.estimate import Weak, sorted_by_motion, weak_law
from vhydro.laws.form import Form
from vhydro.laws.guards import labels
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover, refuse_unfit
from vhydro.laws.segmenting import Segmented, direction, segmented
from vhydro.laws.switching import SwitchingConfig
from vhydro.laws.tracks import Tracks, prepared
from vhydro.laws.weak import in_units_of_force
from vhydro.library import Library, Monomial, Penetration, Term
from vhydro.model import HybridModel, axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.network import Network
from vhydro.smoother import smooth

SURE = 4.0  # nats by which a surface or a direction speaks for its mode, and against it on the other side
NOISE_FLOOR = 1e-7  # in the positions' units: one for all, as the filter is compiled anew for every other


@dataclass(frozen=True)
class ChainConfig:
    """How modes are found, and laws from them."""

    switching: SwitchingConfig = field(default_factory=SwitchingConfig)
    laws: LawsConfig = field(default_factory=LawsConfig)
    particles: int = 64
    trajectories: int = 64
    looseness: float = 0.02  # of the momenta's spread: what the filter allows a law to be wrong by in one step


class Chained(NamedTuple):
    """What the chain found."""

    law: Law
    model: HybridModel
    modes: np.ndarray  # (episodes, times, modes): the weights the law was recovered with
    smoothed: bool  # whether those are the smoother's; otherwise the segmentation's own rules explained more
    proposals: tuple[float, ...]  # scores of all proposed segmentations, smaller is better


def chain(recording: Recording, problem: Problem, config: ChainConfig = ChainConfig(), *, seed: int = 0) -> Chained:  # noqa: B008
    """The law of every mode from positions and inputs alone; the recording's own modes are not looked at."""
    valid = recording.modes.sum(-1, keepdims=True) > 0
    blind = recording._replace(modes=np.broadcast_to(valid / len(problem.modes), recording.modes.shape).copy())
    refuse_unfit(blind, problem)
    tracks, bump = prepared(blind, problem), config.laws.shooting.bump
    found = segmented(tracks, problem, config.switching, bump, seed=seed)
    model = law_model(found.law, tracks._replace(modes=found.weights), problem, config)
    weights = np.stack(smoothed_modes(model, _episodes(tracks, model), config, seed)) * valid
    used = _better(tracks, problem, found, weights, bump)
    modes = weights if used else found.weights
    law = recover(blind._replace(modes=modes), problem, config.laws)
    return Chained(_doubted(law, tracks._replace(modes=modes)), model, modes, used, found.scores)


def _doubted(law: Law, tracks: Tracks) -> Law:
    """The law with every mode marked where the modes found are no physical regimes: they were a guess to begin with."""
    odd = sorted_by_motion(tracks)[0].unexplained
    if not odd:
        return law
    why = f"the modes found are not told apart by a surface, a direction or a rest ({len(odd)} of {len(law.modes)})"
    return replace(law, problems=tuple((m, why) for m in range(len(law.modes))))


def _better(tracks: Tracks, problem: Problem, found: Segmented, weights: np.ndarray, bump: int) -> bool:
    """Whether the smoother's modes lead to a law of the same form that explains the positions better."""
    if (np.bincount(labels(weights).clip(0).ravel(), minlength=weights.shape[-1]) < 30).any():
        return False
    other = weak_law(tracks._replace(modes=weights), problem, bump, momenta=False)
    same = [b.guard for b in other.form.blocks] == [b.guard for b in found.law.form.blocks]
    return same and other.score < found.score


def law_model(law: Weak, tracks: Tracks, problem: Problem, config: ChainConfig) -> HybridModel:
    """The hybrid model of a law: its flow in every mode, its surfaces and directions in the mode kernel."""
    form, n = law.form, problem.positions
    theta = np.where(law.choice.support | (form.known != 0), in_units_of_force(form, law.choice.theta), 0.0)
    library = _flat_library(problem.library, n)
    modes = len(problem.modes)
    coefficients = np.zeros((modes, len(library)))
    resistance, port = np.zeros((modes, 2 * n, 2 * n)), np.zeros((modes, 2 * n, len(problem.inputs)))
    for mode in range(modes):
        if mode not in form.resting:
            _put(form, theta, law.places, mode, library, coefficients[mode], resistance[mode], port[mode])
            port[mode, :n] = np.nan_to_num(problem.port[:n])
    mass = np.array([0.5 / next(theta[i] for i, e in enumerate(form.entries) if _moves(e, n + a)) for a in range(n)])
    if not (mass > 0).all():
        axis = int(np.argmin(mass))
        raise ValueError(
            f"the best law found without labels has a mass of {mass[axis]:.3g} along {problem.coordinates[axis]}; "
            "expected a positive one. The positions are too noisy to find modes in: give labels, or measure better."
        )
    spread = np.concatenate([np.nanstd(tracks.positions, (0, 1)), mass * np.nanstd(tracks.smooth.velocity, (0, 1))])
    loose = np.concatenate([0.2 * tracks.noise, config.looseness * spread[n:]])
    return hybrid_model(
        mode_kernel(modes, stay=0.98, drive=_guarding(law, tracks, modes, mass, len(problem.inputs))),
        port_hamiltonian(
            modes, 2 * n, len(problem.inputs), library, coefficients=coefficients, dissipation=resistance, port=port
        ),
        axis_emission(2 * n, range(n), noise=tracks.noise, noise_floor=NOISE_FLOOR),
        noise=np.tile(loose, (modes, 1)),
        start_scale=np.tile(2 * spread, (modes, 1)),
        noise_floor=NOISE_FLOOR,
        channels=problem.coordinates[:n],
    )


def _moves(e, index: int) -> bool:
    return e.block < 0 and e.is_kinetic and e.term.powers[index] == 2


def _flat_library(library: Library, positions: int) -> Library:
    """The library with the powers of every position that a contact's depth multiplies out to."""
    powers = [Monomial(tuple(k * (i == a) for i in range(2 * positions))) for a in range(positions) for k in (1, 2, 3)]
    return tuple(dict.fromkeys((*library, *powers)))


def _put(form: Form, theta, places, mode: int, library: Library, coefficients, resistance, port) -> None:
    """Writes the law of one mode into its row of coefficients, its R and its G."""
    blocks = {-1} | {b for b, block in enumerate(form.blocks) if block.mode == mode}
    n = form.positions
    for value, e in zip(theta, form.entries, strict=True):
        if e.block not in blocks or not value:
            continue
        if e.kind == "energy":
            assert e.term is not None
            place = places[form.places[e.block]] if e.block in form.places else 0.0
            for term, share in _multiplied_out(e.term, place, n):
                coefficients[library.index(term)] += share * value
        elif e.kind == "dissipation":
            resistance[n + e.axis, n + e.axis] = max(resistance[n + e.axis, n + e.axis] + value, 0.0)
        elif e.kind == "port":
            port[n + e.axis, e.column] += value


def _multiplied_out(term: Term, place: float, positions: int) -> list[tuple[Term, float]]:
    """A contact's energy as powers of its position, which is what it is while the contact is on."""
    if not isinstance(term, Penetration):
        return [(term, 1.0)]
    sign = 1.0 if term.side == "above" else -1.0
    line = np.poly1d([sign, -sign * place]) ** term.power / term.power
    axes = range(2 * positions)
    pairs = enumerate(line.coefficients[::-1])
    return [(Monomial(tuple(k * (i == term.axis) for i in axes)), float(c)) for k, c in pairs if k]


def _guarding(law: Weak, tracks: Tracks, modes: int, mass: np.ndarray, inputs: int) -> Network:
    """A small network: a mode is likelier past its surface, or while things move its way.

    Its logits are bounded, so that the kernel is sure but never certain: what it forbids no filter can find.
    """
    form, n, units = law.form, len(mass), max(len(law.form.blocks), 1)
    inner, shift, outer = np.zeros((units, 2 * n + inputs)), np.zeros(units), np.zeros((modes, units))
    for b, block in enumerate(form.blocks):
        if block.guard is not None:
            steep = block.guard.sign / tracks.noise[block.guard.axis]
            inner[b, block.guard.axis] = steep
            shift[b] = -steep * law.places[form.places[b]]
        else:
            axis, sign = direction(tracks, block.mode)
            inner[b, n + axis] = sign / (mass[axis] * tracks.velocity_noise[axis])
        outer[block.mode, b] = SURE
    layers = [jnp.asarray(x, jnp.float32) for x in (inner, outer, shift, np.zeros(modes))]
    return Network((layers[0], layers[1]), (layers[2], layers[3]))


def smoothed_modes(model: HybridModel, episodes: Sequence[Episode], config: ChainConfig, seed: int) -> list[np.ndarray]:
    """The smoothed weight of every mode at every sample: (times, modes) of each episode."""
    settings = FilterSettings(particles=config.particles, history=True)
    first, second = jax.random.split(jax.random.key(seed))
    beliefs = filter_episodes(model, episodes, key=first, settings=settings)
    keys = [jax.random.fold_in(second, i) for i in range(len(episodes))]
    ways = [
        smooth(model, episode, belief, key=key, trajectories=config.trajectories)
        for episode, belief, key in zip(episodes, beliefs, keys, strict=True)
    ]
    return [np.asarray(way.belief.mode) for way in ways]


def _episodes(tracks: Tracks, model: HybridModel) -> list[Episode]:
    channels = tuple(Channel(name) for name in model.channels)
    return [Episode(y, a, tracks.dt, channels) for y, a in zip(tracks.positions, tracks.actions, strict=True)]
