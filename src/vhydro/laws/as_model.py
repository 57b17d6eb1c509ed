"""A law as a hybrid model: its flow in every mode, its surfaces and directions in the mode kernel and at the start.

What is printed is what is filtered with and planned on: the flow of every mode is `ż = (J − R) ∇H + G a` with the law's
own numbers, z its positions and momenta in the law's units. A contact's energy is multiplied out into powers of its
position, which is what it is while it is on.
"""

from dataclasses import replace
from math import comb
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from vhydro.flow import Flow, MechanicalFlow, PortHamiltonianFlow, Reset
from vhydro.lagrangian import Lagrangian
from vhydro.laws.shooting import substeps
from vhydro.library import Library, Monomial, Penetration, Term, polynomial
from vhydro.model import HybridModel, ModeKernel, axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.network import Network

SURE = 4.0  # nats by which a surface or a direction speaks for its mode, and against it on the other side
STAY = 0.98
LOOSENESS = 0.16  # of the momenta's spread: how wrong a law may be by the time things have moved by their own spread
STILL = 0.1  # of that, where nothing moves
DEPTH = 0.05  # of the positions' spread: how far past its surface a log may begin in contact
RESOLUTION = 1e-4  # of a position's spread: finer readings are lost in single precision
FLOOR = 1e-6  # of the positions' spread: below every noise …
LIGHT = 1e2  # … unless momenta are smaller than they by more than this, in the law's units
KEPT = 20.0  # a reset whose tanh is 1


class Circumstances(NamedTuple):
    """What a law does not say and a model needs: how it was measured, and which way its directions go."""

    dt: float  # s between two samples
    noise: tuple[float, ...]  # of every position's sensor: standard deviations
    velocity_noise: tuple[float, ...]  # that smoothing leaves of it
    position_mean: tuple[float, ...]  # over the recording
    position_spread: tuple[float, ...]  # standard deviations over the recording
    velocity_spread: tuple[float, ...]
    directions: tuple[tuple[int, int, float], ...] = ()  # (mode, axis, sign) of modes told apart by the way things go


class Scales(NamedTuple):
    """What a model measures by, in the law's units."""

    mass: np.ndarray  # along every position
    noise: np.ndarray  # of every position's sensor, as far as single precision tells it
    velocity_noise: np.ndarray
    spread: np.ndarray  # of every coordinate
    loose: np.ndarray  # what a momentum may be off by after one step
    floor: float  # a power of ten: a filter is compiled anew for every other


def law_model(law: Any, channels: tuple[str, ...] | None = None) -> HybridModel:
    """The hybrid model of a law, its positions read by these channels; those of the law's names if not given."""
    seen = circumstances(law)
    return model_of_flow(law, law_flow(law, substeps=substeps(creeping(law), law.theta, seen.dt)), channels)


def model_of_flow(
    law: Any,
    flow: Flow,
    channels: tuple[str, ...] | None,
    *,
    kernel: ModeKernel | None = None,
    shaken: np.ndarray | None = None,
) -> HybridModel:
    """A law's hybrid model around its vector field; `shaken` (modes, coordinates) is noise beside the law's own."""
    seen, n, modes = circumstances(law), law.positions, len(law.modes)
    scales = scales_of(law, seen)
    loose = np.tile(np.concatenate([0.2 * scales.noise, scales.loose]), (modes, 1))
    loose[list(law.form.resting)] *= STILL
    loose = loose if shaken is None else np.hypot(loose, shaken)
    chance, mean, scale = _start(law, seen, scales)
    return hybrid_model(
        kernel or mode_kernel(modes, stay=STAY, drive=_guards(law, seen, scales)),
        flow,
        axis_emission(2 * n, range(n), noise=scales.noise, noise_floor=scales.floor),
        noise=np.maximum(loose, 2 * scales.floor),
        reset=_stops(law),
        start_mode=chance,
        start_mean=mean,
        start_scale=np.maximum(scale, 2 * scales.floor),
        noise_floor=scales.floor,
        channels=law.coordinates[:n] if channels is None else channels,
    )


def creeping(law: Any) -> Any:
    """The form as a model follows it: dry friction creeps there."""
    return replace(law.form, dry=()) if isinstance(law.form, Lagrangian) else law.form


def equations_flow(law: Any, *, substeps: int, dtype=jnp.float32) -> MechanicalFlow:
    """The vector field of every mode of Lagrange's equations."""
    form, n, modes = law.form, law.positions, len(law.modes)
    blocks = [b.mode for b in form.blocks]
    on = np.array([[float(m == b) for b in blocks] for m in range(modes)]).reshape(modes, len(blocks))
    moves = np.array([float(m not in form.resting) for m in range(modes)])
    middle = np.zeros(n) if law.circumstances is None else np.array(law.circumstances.position_mean)
    push = np.array([[law.theta[form.of("port")[i * form.inputs + j]] for j in range(form.inputs)] for i in range(n)])
    port = np.concatenate([np.zeros((n, form.inputs)), np.linalg.solve(law.mass_matrix(middle), push.reshape(n, -1))])
    arrays = [jnp.asarray(x, dtype) for x in (law.theta, on, moves, moves[:, None, None] * port)]
    return MechanicalFlow(*arrays, equations=creeping(law), substeps=substeps)


def law_flow(law: Any, *, substeps: int = 1, dtype=jnp.float32) -> PortHamiltonianFlow | MechanicalFlow:
    """The vector field of every mode of a law, by RK4.

    Linear laws of as many positions share one library, and so do the others of one form: what is compiled for one
    serves the next.
    """
    if isinstance(law.form, Lagrangian):
        return equations_flow(law, substeps=substeps, dtype=dtype)
    n, modes, inputs = law.positions, len(law.modes), len(law.inputs)
    energies = [_energy(law, mode) for mode in range(modes)]
    library = _library(law, energies)
    resistance = np.zeros((modes, 2 * n, 2 * n))
    resistance[:, range(n, 2 * n), range(n, 2 * n)] = [[d.value for d in law.dissipation(m)] for m in range(modes)]
    if (resistance < 0).any():
        raise ValueError(
            f"the law has a friction of {resistance.min():.3g}, which gives energy; expected none below 0. The modes "
            "or the library are wrong: ask for fewer modes, or give labels."
        )
    port = [[[g.value for g in row] for row in law.port(mode)] for mode in range(modes)]
    return port_hamiltonian(
        modes, 2 * n, inputs, library,
        coefficients=np.array([[energy.get(term, 0.0) for term in library] for energy in energies]),
        dissipation=resistance,
        port=np.reshape(port, (modes, 2 * n, inputs)),
        substeps=substeps,
        dtype=dtype,
    )  # fmt: skip


def circumstances(law: Any) -> Circumstances:
    """How a law was measured, if it says so."""
    if law.circumstances is None:
        raise ValueError(
            "the law does not say how it was measured, as laws of older files; expected its sensor noise and spreads. "
            "Find the law again, or build a model with `hybrid_model`."
        )
    return law.circumstances


def scales_of(law: Any, seen: Circumstances) -> Scales:
    position, velocity = np.array(seen.position_spread), np.array(seen.velocity_spread)
    mass = masses(law)
    spread = np.concatenate([position, mass * velocity])
    far = np.maximum(position, 1e-2 * np.abs(seen.position_mean))  # digits go with the value, not with its spread
    return Scales(
        mass,
        np.maximum(seen.noise, RESOLUTION * far),
        np.maximum(seen.velocity_noise, RESOLUTION * velocity),
        spread,
        LOOSENESS * mass * velocity * np.sqrt(np.minimum(seen.dt * velocity / position, 1.0)),
        float(10.0 ** np.floor(np.log10(FLOOR * min(position.min(), LIGHT * (mass * velocity).min())))),
    )


def masses(law: Any) -> np.ndarray:
    """The mass along every position in the base mode, if all are positive; 1 where z has velocities."""
    if isinstance(law.form, Lagrangian):
        return np.ones(law.positions)
    energy = {term: number.value for term, number in law.energy(law.form.base).items()}
    inverse = np.array([2 * energy.get(_square(law, law.positions + axis), 0.0) for axis in range(law.positions)])
    if not (inverse > 0).all():
        axis = int(np.argmin(inverse))
        mass = 1 / inverse[axis] if inverse[axis] else np.inf
        raise ValueError(
            f"the law has a mass of {mass:.3g} along {law.coordinates[axis]}; expected a positive one. The positions "
            "are too noisy to find a law in, or its modes are wrong: give labels, or measure better."
        )
    return 1 / inverse


def _square(law: Any, index: int) -> Monomial:
    return Monomial(tuple(2 * (i == index) for i in range(2 * law.positions)))


def _energy(law: Any, mode: int) -> dict[Term, float]:
    """The energy of one mode, its contacts multiplied out."""
    out: dict[Term, float] = {}
    for term, number in law.energy(mode).items():
        for part, share in _multiplied_out(term, law.positions):
            out[part] = out.get(part, 0.0) + share * number.value
    return out


def _multiplied_out(term: Term, positions: int) -> list[tuple[Term, float]]:
    """A contact's energy as powers of its position; any other term as it is."""
    if not isinstance(term, Penetration):
        return [(term, 1.0)]
    sign = 1.0 if term.side == "above" else -1.0
    line = [
        comb(term.power, k) * sign**term.power * (-term.at) ** (term.power - k) / term.power
        for k in range(term.power + 1)
    ]
    axes = range(2 * positions)
    return [(Monomial(tuple(k * (i == term.axis) for i in axes)), c) for k, c in enumerate(line) if k]


def _library(law: Any, energies: list[dict[Term, float]]) -> Library:
    """All quadratic terms, and where they do not do, all that the law's form has on offer."""
    quadratic, n = polynomial(2 * law.positions, 2), law.positions
    if all(term in quadratic for energy in energies for term in energy):
        return quadratic
    offered = [*law.form.library, *(term for block in law.form.blocks for term in block.terms)]
    return tuple(dict.fromkeys((*quadratic, *(part for term in offered for part, _ in _multiplied_out(term, n)))))


def _start(law: Any, seen: Circumstances, scales: Scales) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How likely a log begins in every mode, and where: in a contact at its surface, in a direction going that way.

    A contact is as likely as its place is narrow: a start just outside speaks for none.
    """
    modes, n, spread = len(law.modes), law.positions, scales.spread
    chance = np.ones(modes)
    mean = np.tile(np.concatenate([seen.position_mean, np.zeros(n)]), (modes, 1))
    scale = np.tile(2 * spread, (modes, 1))
    for mode, axis, sign, place in surfaces(law):
        depth = DEPTH * spread[axis] + scales.noise[axis]
        chance[mode], mean[mode, axis], scale[mode, axis] = depth / scale[mode, axis], place + sign * depth, depth
    for mode, axis, sign in seen.directions:
        mean[mode, n + axis], scale[mode, n + axis] = sign * spread[n + axis], spread[n + axis]
    for mode in law.form.resting:
        scale[mode, n:] = scales.loose
    return chance / chance.sum(), mean, scale


def surfaces(law: Any) -> list[tuple[int, int, float, float]]:
    """Mode, axis, sign and place of every surface along a position."""
    return [(m, g.axis, g.sign, place) for m, g, place in contacts(law) if getattr(g, "other", None) is None]


def contacts(law: Any) -> list[tuple[int, Any, float]]:
    """Mode, guard and place of every contact."""
    blocks = [(b, block.mode, block.guard) for b, block in enumerate(law.form.blocks)]
    return [(m, g, float(law.theta[law.form.places[b]])) for b, m, g in blocks if g is not None]


def _guards(law: Any, seen: Circumstances, scales: Scales) -> Network | None:
    """A small network: a mode is likelier past its surface, or while things move its way.

    Its logits are bounded, so that the kernel is sure but never certain: what it forbids no filter can find.
    """
    n, modes = law.positions, len(law.modes)
    if modes == 1:
        return None
    slope, shift, sure = np.zeros((modes, 2 * n + len(law.inputs))), np.zeros(modes), np.zeros(modes)
    for mode, guard, place in contacts(law):
        other = getattr(guard, "other", None)
        blur = scales.noise[guard.axis] if other is None else np.hypot(scales.noise[guard.axis], scales.noise[other])
        slope[mode, guard.axis], sure[mode] = guard.sign / blur, SURE
        if other is not None:
            slope[mode, other] = -guard.sign / blur
        shift[mode] = -guard.sign * place / blur
    for mode, axis, sign in seen.directions:
        slope[mode, n + axis] = sign / (scales.mass[axis] * scales.velocity_noise[axis])
        sure[mode] = SURE
    layers = [jnp.asarray(x, jnp.float32) for x in (slope, np.diag(sure), shift, np.zeros(modes))]
    return Network((layers[0], layers[1]), (layers[2], layers[3]))


def _stops(law: Any) -> Reset | None:
    """What comes to rest has no momentum left."""
    n, modes = law.positions, len(law.modes)
    if not law.form.resting:
        return None
    raw = np.full((modes, modes, n), KEPT)
    raw[:, list(law.form.resting)] = 0.0
    return Reset(jnp.asarray(raw, jnp.float32), tuple(range(n, 2 * n)))
