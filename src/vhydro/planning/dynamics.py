"""How a hybrid model moves many particles at once, and how its path law differs from another's.

Particles are last, as everywhere (see `small`); candidates of actions are an axis before them. What is random is drawn
beforehand and shared by all candidates, so that they are compared under the same luck.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from vhydro.emission import LinearEmission
from vhydro.filter import Belief, Particles
from vhydro.filter.merged import Merged
from vhydro.flow import kept_momenta
from vhydro.gaussian import coloured, factored, is_diagonal, log_density
from vhydro.model import Branches, HybridModel
from vhydro.particles import Draw, step_noise
from vhydro.planning.task import Readout, readout
from vhydro.small import over, pick, total

Noise = Any  # what is random in one step, arrays with particles last


class Population(NamedTuple):
    """What is believed, as weighted points, each with a covariance where it stands for a Gaussian."""

    mode: Int[Array, "points"]
    z: Float[Array, "latent points"]
    log_weight: Float[Array, "points"]
    factor: Float[Array, "latent latent points"] | None


class Gap(NamedTuple):
    """How two path laws differ along paths of the first: sums over the steps so far."""

    log_ratio: Float[Array, "..."]  # log of the second's density over the first's
    divergence: Float[Array, "..."]  # KL of the first from the second, up to the first step in which modes differ
    apart: Bool[Array, "..."]  # the two have been in different modes
    singular: Bool[Array, "..."]  # … of which one has no density under the other, or the task tells them apart
    forbidden: Float[Array, "..."]  # largest chance that the second gave to a mode which the first rules out
    mode: Int[Array, "..."]  # that the second says the state is in


def no_gap(like: Float[Array, "..."], mode: Int[Array, "..."]) -> Gap:
    """The gap before the first step."""
    zero, no = jnp.zeros_like(like), jnp.zeros(like.shape, bool)
    return Gap(zero, zero, no, no, zero, mode)


@runtime_checkable
class Dynamics(Protocol):
    """What a planner asks of a model: how particles move, what its coordinates and inputs are called."""

    @property
    def readout(self) -> Readout: ...
    @property
    def actions(self) -> Readout: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def seconds(self) -> float: ...
    def population(self, belief: Any) -> Population: ...
    def noise(self, key: PRNGKeyArray, steps: int, particles: int) -> Noise: ...
    def settle(self, mode, z, action) -> tuple[Any, Any]: ...
    def step(self, mode, z, action, noise: Noise) -> tuple[Any, Any]: ...
    def compared(self, truth: Any, batched: bool, mode, z, action, noise: Noise, gap: Gap) -> tuple[Any, Any, Gap]: ...
    def refuse_unlike(self, truth: Any) -> None: ...


class HybridDynamics(eqx.Module):
    """A `HybridModel` in steps of `dt` seconds; actions are in the log's units."""

    model: HybridModel
    readout: Readout
    actions: Readout  # identity: actions by name
    action_factor: Float[Array, "inputs"]  # model's units for one of the log's
    dt: Float[Array, ""]
    seconds: float = eqx.field(static=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.actions.names

    @property
    def dtype(self):
        return self.model.dtype

    def population(self, belief: Any) -> Population:
        """The points of a belief of this model."""
        return population(belief, self.model.latent, self.model.modes)

    def noise(self, key: PRNGKeyArray, steps: int, particles: int) -> Noise:
        """Uniform and normal numbers for every step."""
        layout = (Draw("mode", (particles,), "uniform"), Draw("z", (self.model.latent, particles), "normal"))
        return jax.vmap(lambda t: step_noise(layout, key, t, self.dtype))(jnp.arange(steps))

    def settle(self, mode, z, action):  # noqa: ARG002
        """The start as it is."""
        return mode, z

    def step(self, mode: Int[Array, "*particles"], z: Float[Array, "latent *particles"], action, noise: Noise):
        """The next mode by inverse CDF, and the next z of that mode."""
        model, a = self.model, self._scaled(action)
        after = drawn_mode(model.kernel.log_probability(mode, z, a), noise["mode"])
        start = z if model.reset is None else kept_momenta(model.reset, mode, after, z) * z
        mean = model.flow.step_in(after, start, a, self.dt)
        return after, mean + self._shaken(after, noise["z"])

    def compared(self, truth: "HybridDynamics", batched: bool, mode, z, action, noise: Noise, gap: Gap):
        """A step, and what it adds to the gap between this law and another; `batched`: every particle has its own."""
        after, there = self.step(mode, z, action, noise)
        a = self._scaled(action)
        own = _branches(self.model, mode, z, a, self.dt)
        if batched:
            one = lambda t, m, x: _branches(t.model, m, x, a, t.dt)  # noqa: E731
            other = jax.vmap(one, in_axes=(0, -1, -1), out_axes=-1)(truth, mode, z)
        else:
            other = _branches(truth.model, mode, z, a, truth.dt)
        ratio = _log_chance(other, after, there) - _log_chance(own, after, there)
        divergence, forbidden = _divergence(own, other)
        return after, there, Gap(
            gap.log_ratio + ratio,
            gap.divergence + divergence,
            gap.apart,
            gap.singular,
            jnp.maximum(gap.forbidden, forbidden),
            after,
        )  # fmt: skip

    def refuse_unlike(self, truth: Any) -> None:
        """Raises unless the other is of the same coordinates, modes, inputs and units."""
        if not isinstance(truth, HybridDynamics):
            raise ValueError(f"the shift is against a {type(truth).__name__}; expected a model of the planner's kind.")
        m, t = self.model, truth.model
        sizes = [(x.modes, x.latent, x.inputs) for x in (m, t)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"the models have (modes, latent, inputs) {sizes[0]} and {sizes[1]}; expected the same.")
        pairs = [(m.shift, t.shift), (m.scale, t.scale), (self.action_factor, truth.action_factor), (self.dt, truth.dt)]
        if not all(np.allclose(x, y) for x, y in pairs):
            raise ValueError("the models measure in other units or steps; expected one standardisation and one dt.")

    def _scaled(self, action: Float[Array, "inputs ..."]) -> Float[Array, "inputs ..."]:
        return action * over(self.action_factor, action.ndim - 1)

    def _shaken(self, mode: Int[Array, "*particles"], normal: Float[Array, "latent ..."]) -> Float[Array, "latent ..."]:
        # Coloured before it is picked: it has no candidates yet.
        scale = over(self.model.noise_scale, normal.ndim - 1)
        return pick(jnp.stack([coloured(s, normal) for s in scale]), mode)


def hybrid_dynamics(
    model: HybridModel,
    dt: float,
    *,
    inputs: Sequence[str] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    channel_units: np.ndarray | float = 1.0,
    input_units: np.ndarray | float = 1.0,
) -> HybridDynamics:
    """The dynamics of a model whose steps last `dt` seconds.

    A state has the names of the channels that read it linearly, or z0, z1, … where none does. `extra` names rows (in
    standardised latent coordinates) of what no channel shows. Units say how many of the model's one of the log's is.
    """
    model.validate()
    if not dt > 0:
        raise ValueError(f"dt is {dt}; expected the positive number of seconds that a step of the model lasts.")
    if model.roughness is not None:
        raise ValueError(
            "the model has roughness: its noise grows with its inputs, which rollouts do not draw; expected a model "
            "without it. Leave `roughness` out, or plan through a mechanics or plain view."
        )
    names, matrix, offset = _shown(model, np.broadcast_to(channel_units, (len(model.channels),)))
    for name, row in (extra or {}).items():
        names, matrix, offset = (*names, name), np.vstack([matrix, row]), np.append(offset, 0.0)
    told = tuple(inputs) if inputs is not None else tuple(f"a{i}" for i in range(model.inputs))
    if len(told) != model.inputs:
        raise ValueError(f"{len(told)} names for {model.inputs} inputs; expected one each.")
    factor = np.broadcast_to(input_units, (model.inputs,)) / np.asarray(model.action_scale, np.float64)
    return HybridDynamics(
        model,
        readout(names, matrix, offset, model.dtype),
        readout(told, np.eye(model.inputs), dtype=model.dtype),
        jnp.asarray(factor, model.dtype),
        jnp.asarray(dt, model.dtype),
        float(dt),
    )


def _shown(model: HybridModel, units: np.ndarray) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    if not isinstance(model.emission, LinearEmission):
        return tuple(f"z{i}" for i in range(model.latent)), np.eye(model.latent), np.zeros(model.latent)
    e = model.emission
    scale, shift = np.asarray(model.scale, np.float64), np.asarray(model.shift, np.float64)
    matrix = scale[:, None] * np.asarray(e.matrix, np.float64) / units[:, None]
    return model.channels, matrix, (scale * np.asarray(e.offset, np.float64) + shift) / units


def population(belief: Any, latent: int, modes: int) -> Population:
    """The points of a belief, if it is one of a model of this size."""
    state = belief.final if isinstance(belief, Belief) else belief
    if isinstance(state, Merged):
        state = Particles(
            jnp.arange(state.log_mode.shape[-1]), state.mean, state.log_mode, jnp.ones(()),
            jnp.stack([jnp.diag(v) for v in state.variance.T], -1),
        )  # fmt: skip
    if not isinstance(state, Particles):
        raise ValueError(f"the belief is a {type(belief).__name__}; expected a `Belief`, or the particles of a stream.")
    mode, z, weight = (np.asarray(x) for x in (state.mode, state.z, state.log_weight))
    if z.ndim != 2 or z.shape[0] != latent or mode.shape != z.shape[1:]:
        raise ValueError(
            f"the belief has states of the shape {z.shape}; expected ({latent}, particles). It is a belief of another "
            "model, or of many logs: filter with this model, one log at a time."
        )
    if mode.max(initial=0) >= modes:
        raise ValueError(
            f"the belief has a mode {int(mode.max())} and the model {modes} modes; it is a belief of another model."
        )
    if not np.isfinite(z).all() or not np.isfinite(weight).any() or np.isnan(weight).any():
        raise ValueError("the belief holds values that are not finite, or no weight; filter the log again.")
    factor = None if state.covariance is None else factored(jnp.asarray(state.covariance))
    return Population(jnp.asarray(mode), jnp.asarray(z), jnp.asarray(weight), factor)


def drawn(population: Population, key: PRNGKeyArray, count: int):
    """Independent draws of (mode, z) from what is believed."""
    at, around = jax.random.split(key)
    index = jax.random.categorical(at, population.log_weight, shape=(count,))
    z = population.z[:, index]
    if population.factor is not None:
        normal = jax.random.normal(around, z.shape, z.dtype)
        z = z + jnp.einsum("ijp,jp->ip", population.factor[..., index], normal)
    return population.mode[index], z


def drawn_mode(log_probability: Float[Array, "modes *particles"], uniform: Float[Array, "..."]) -> Int[Array, "..."]:
    """A mode by inverse CDF; one of probability 0 is never drawn."""
    chance = jnp.exp(log_probability)
    sums = [chance[0]]
    for c in chance[1:]:
        sums.append(sums[-1] + c)
    point = uniform * sums[-1]  # below the last sum, whatever rounding made of it
    return sum((point > s).astype(jnp.int32) for s in sums[:-1]) + jnp.zeros(point.shape, jnp.int32)


def _branches(model: HybridModel, mode, z, a, dt) -> Branches:
    out = model.transition(mode, z, a, dt)
    small = out.scale.shape[: out.scale.ndim - mode.ndim]
    return Branches(out.log_mode, out.mean, jnp.broadcast_to(out.scale, (*small, *mode.shape)))


def _log_chance(law: Branches, mode, z) -> Float[Array, "*particles"]:
    """The log density of the next (mode, z)."""
    each = [m + log_density(z - mean, s) for m, mean, s in zip(law.log_mode, law.mean, law.scale, strict=True)]
    return pick(jnp.stack(each), mode)


def _divergence(own: Branches, other: Branches) -> tuple[Float[Array, "*particles"], Float[Array, "*particles"]]:
    """KL(own ‖ other) of one step, and the chance that the other gives to modes which are ruled out here.

    Paper: the path form of Thm 4's ε_H; `Σ π log(π/π̂) + Σ π_s KL(N_s ‖ N̂_s)`.
    """
    out, forbidden = jnp.zeros_like(own.log_mode[0]), jnp.zeros_like(own.log_mode[0])
    for s in range(own.log_mode.shape[0]):
        here = own.log_mode[s] > -jnp.inf
        share = jnp.where(here, jnp.exp(own.log_mode[s]), 0.0)
        normal = _normal_divergence(own.mean[s], own.scale[s], other.mean[s], other.scale[s])
        out = out + jnp.where(here, share * (own.log_mode[s] - other.log_mode[s] + normal), 0.0)
        forbidden = forbidden + jnp.where(here, 0.0, jnp.exp(other.log_mode[s]))
    return out, forbidden


def _normal_divergence(mean, scale, other_mean, other_scale) -> Float[Array, "*particles"]:
    """KL of one Gaussian from another."""
    apart = mean - other_mean
    if is_diagonal(scale, mean):
        ratio = (scale / other_scale) ** 2
        return 0.5 * total(ratio - 1 - jnp.log(ratio) + (apart / other_scale) ** 2)

    def one(x, own, other):
        white = jax.scipy.linalg.solve_triangular(other, jnp.concatenate([own, x[:, None]], 1), lower=True)
        logs = jnp.log(jnp.abs(jnp.diagonal(other))) - jnp.log(jnp.abs(jnp.diagonal(own)))
        return 0.5 * ((white**2).sum() - x.shape[0]) + logs.sum()

    for _ in range(apart.ndim - 1):
        one = jax.vmap(one, in_axes=-1, out_axes=-1)
    return one(apart, scale, other_scale)
