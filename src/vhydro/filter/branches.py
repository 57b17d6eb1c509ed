"""Gaussian branches: a particle is a mode path with a Gaussian over z, and every next mode is followed.

Nothing is drawn within a step. Each of N branches becomes M, one per next mode, moved and updated by Kalman's formulas;
at the next step the N·M are reduced to N again without bias (`resampling.cut_to_once`), which is the only place where
chance enters. Where a mode is not linear, or its kernel reads z, the move is linearised at the branch's mean;
`correction` then makes the estimate unbiased.
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vhydro.certificate import Certificate
from vhydro.emission import LinearEmission, Observation
from vhydro.filter.faults import checked, fresh_watch, surprises
from vhydro.filter.frames import Frame, Moments, Particles, Record, moments_of
from vhydro.filter.resampling import resample
from vhydro.filter.settings import FilterSettings
from vhydro.flow import LinearFlow, kept_momenta
from vhydro.gaussian import LOG_2PI
from vhydro.model import HybridModel
from vhydro.particles import Noise, effective_share, normalised
from vhydro.small import UNROLL, matvec, over, precise, product, total

FEW = 2  # channels whose update is written out


class Move(NamedTuple):
    """Where every next mode takes each branch: `z' ≈ mean + matrix (z − z_now)`, before the transition's noise."""

    log_mode: Float[Array, "modes particles"]
    mean: Float[Array, "modes latent particles"]
    matrix: Float[Array, "modes latent latent _particles"]  # particle axis of length one where all branches share it


class Trace(NamedTuple):
    """What `correction` needs of a step; branch j of N·M is in mode `j // N` and came from `parent[j % N]`."""

    parent: Int[Array, "*times particles"]
    mode: Int[Array, "*times particles"]  # of the N branches before the move, as are the next two
    z: Float[Array, "*times latent particles"]
    covariance: Float[Array, "*times latent latent particles"]
    ahead: Float[Array, "*times latent branches"]  # the mean after the move, before the update
    log_gain: Float[Array, "*times branches"]
    extra: Float[Array, "*times modes latent"] | None  # variance that was added to the transition's
    frame: Frame  # with the faults taken out


def is_exact(model: HybridModel) -> bool:
    """Whether Gaussian branches are the model itself and nothing has to be corrected."""
    return model.flow.affine and model.kernel.drive is None


def corrects(model: HybridModel, settings: FilterSettings) -> bool:
    """Whether these settings filter this model by branches that have to be corrected."""
    return settings.engine == "gaussian" and settings.corrected and not is_exact(model)


def move(model: HybridModel, mode, z: Float[Array, "latent particles"], frame: Frame) -> Move:
    """The linearised move of every branch into every next mode."""
    log_mode = model.kernel.log_probability(mode, z, frame.action)
    if model.reset is None and isinstance(model.flow, LinearFlow):
        return Move(log_mode, model.flow.shared_step(z, frame.action), over(model.flow.matrix, 1))

    starts, kept = jnp.broadcast_to(z, (model.modes, *z.shape)), None
    if model.reset is not None:
        kept = model.reset.starts(mode, jnp.ones_like(z))
        starts = kept * z
    mean = jax.lax.optimization_barrier(model.flow.step(starts, frame.action, frame.dt))
    matrix = model.flow.jacobian(starts, mean, frame.action, frame.dt)
    return Move(log_mode, mean, matrix if kept is None else matrix * kept[:, None])


def move_in(model: HybridModel, before, mode, z: Float[Array, "latent particles"], frame: Frame):
    """The mean and the matrix of `move` for each branch's own next mode alone."""
    kept = kept_momenta(model.reset, before, mode, z)
    mean = model.flow.step_in(mode, kept * z, frame.action, frame.dt)
    return mean, matrix_in(model, before, mode, z, mean, frame)


def matrix_in(model: HybridModel, before, mode, z, mean, frame: Frame) -> Float[Array, "latent latent particles"]:
    """The matrix of `move_in` alone, where its mean is known."""
    kept = kept_momenta(model.reset, before, mode, z)
    return model.flow.jacobian_in(mode, kept * z, mean, frame.action, frame.dt) * kept[None]


def moved_covariance(
    matrix: Float[Array, "*modes latent latent _particles"], covariance: Float[Array, "latent latent particles"]
) -> Float[Array, "*modes latent latent particles"]:
    """`F V Fᵀ` of every mode and branch."""
    latent = covariance.shape[0]
    half = matvec(matrix[..., 0], covariance) if matrix.shape[-1] == 1 else product(matrix, covariance)
    if latent**2 > UNROLL and matrix.shape[-1] == 1:
        return jnp.einsum("...ikn,...lk->...iln", half, matrix[..., 0])
    return product(half, jnp.swapaxes(matrix, -3, -2))


def transition_covariance(
    model: HybridModel, action: Float[Array, "inputs"], extra: Float[Array, "modes latent"] | None
) -> Float[Array, "modes latent latent"]:
    """The covariance of every mode's noise while an action acts, and what a fault adds to it."""
    identity = jnp.eye(model.latent, dtype=model.dtype)
    scale = model.noise_under(action)
    full = scale[..., None] ** 2 * identity if scale.ndim == 2 else scale @ jnp.swapaxes(scale, -1, -2)
    return full if extra is None else full + extra[..., None] * identity


def row_covariance(
    model: HybridModel, frame: Frame, extra: Float[Array, "modes latent"] | None
) -> Float[Array, "modes latent latent"]:
    """The covariance with which a row is entered: the start law's in the first, else the transition's."""
    start = model.start_scale[..., None] ** 2 * jnp.eye(model.latent, dtype=model.dtype)
    return jnp.where(frame.first, start, transition_covariance(model, frame.action, extra))


class Updated(NamedTuple):
    """Gaussians after a reading and how likely it was to each."""

    log_evidence: Float[Array, "particles"]
    mean: Float[Array, "latent particles"]
    covariance: Float[Array, "latent latent particles"]


def updated(
    emission: LinearEmission,
    mean: Float[Array, "latent particles"],
    covariance: Float[Array, "latent latent particles"],
    seen: Observation,
) -> Updated:
    """Kalman's update, channel by channel: no factorisation, and a hidden channel is one that is skipped.

    Correlated sensors are made independent first, by the factor of their covariance that all branches share.
    """
    rows, sds = emission.dense(), emission.noise
    value = jnp.where(seen.observed, seen.value, 0.0) - emission.offset  # a fault that is hidden may be beyond numbers
    if emission.noise_lower is not None:
        factor = emission.noise_factor(seen.observed)
        sds = jnp.diagonal(factor)
        unit = factor / sds
        both = jnp.concatenate([rows, value[:, None]], axis=1) * seen.observed[:, None]
        solved = jax.scipy.linalg.solve_triangular(unit, both, lower=True, unit_diagonal=True)
        rows, value = solved[:, :-1], solved[:, -1]
    latent = mean.shape[0]
    # The mean is one more column of the covariance: both change by the same outer products.
    joint = jnp.concatenate([covariance, mean[:, None]], axis=1)
    axes = emission.axes if emission.noise_lower is None else None
    reads = rows if axes is None else (jnp.asarray(axes, jnp.uint32), emission.gain)
    first = matvec(rows, joint) if axes is None else jnp.stack([joint[j] * rows[c, j] for c, j in enumerate(axes)])
    first = first.at[:, latent].add(-over(value, 1))

    def channel(taken, inputs):
        """One more column that is taken off, times itself, given those of the channels before."""
        number, across, row, sd, seen_here = inputs

        def read(states: Float[Array, "*other columns branches"]) -> Float[Array, "*other branches"]:
            if axes is None:
                return jnp.einsum("j,...jn->...n", row, states[..., :latent, :])
            axis, gain = row
            return gain * jax.lax.dynamic_index_in_dim(states, axis, -2, keepdims=False)

        across = across - total(read(taken)[:, None] * taken)
        whole = jnp.maximum(read(across), 0.0) + sd**2
        root = jnp.sqrt(jnp.where(seen_here, whole, jnp.inf))  # nothing is taken off where nothing is seen
        return jax.lax.dynamic_update_index_in_dim(taken, across / root, number, 0), root

    # A loop: written out, the compiler would compute the columns again and again wherever they are used.
    given = (jnp.arange(rows.shape[0], dtype=jnp.uint32), first, reads, sds, seen.observed)
    taken, root = jax.lax.scan(channel, jnp.zeros_like(first), given, unroll=rows.shape[0] <= FEW)
    joint = joint - reduce(add, (column[:latent, None] * column for column in taken))
    terms = jnp.log(root) + 0.5 * (LOG_2PI + taken[:, latent] ** 2)
    log_evidence = -jnp.where(over(seen.observed, 1), terms, 0.0).sum(0)
    mean, covariance = joint[:, latent], joint[:, :latent]
    return Updated(jnp.where(jnp.isnan(log_evidence), -jnp.inf, log_evidence), mean, covariance)


def channel_moments(
    emission: LinearEmission, mean: Float[Array, "latent branches"], covariance: Float[Array, "latent latent branches"]
) -> tuple[Float[Array, "channels branches"], Float[Array, "channels branches"]]:
    """The mean and variance of every channel's reading under every branch."""
    if emission.axes is not None:
        spread = over(emission.gain**2, 1) * jnp.stack([covariance[j, j] for j in emission.axes])
    else:
        rows = emission.dense()
        spread = total(jnp.swapaxes(over(rows, 1) * matvec(rows, covariance), 0, 1))
    return emission.mean(mean), spread + over(emission.channel_noise**2, 1)


def initial_branches(model: HybridModel, settings: FilterSettings) -> Particles:
    """One branch, which the first step replaces, and room for the others."""
    count, d = settings.count * model.modes, model.latent
    return Particles(
        jnp.repeat(jnp.arange(model.modes, dtype=jnp.int32), settings.count),
        jnp.zeros((d, count), model.dtype),
        jnp.full(count, -jnp.inf, model.dtype).at[0].set(0.0),
        jnp.asarray(1 / count, model.dtype),
        jnp.zeros((d, d, count), model.dtype),
        None if settings.outliers is None else fresh_watch(model),
    )


@precise
def branch_step(
    model: HybridModel, settings: FilterSettings, particles: Particles, frame: Frame, noise: Noise
) -> tuple[Particles, Record, Moments, Trace]:
    """The branches after one more reading, what the step certifies, what is believed, and what a correction needs."""
    emission = model.emission
    assert isinstance(emission, LinearEmission)
    assert particles.covariance is not None
    frame, alarm = checked(model, particles.watch, frame, settings.outliers)

    # Reduce N·M branches to N: by the root of their weights where they are the model itself and something is seen,
    # which of powers from .3 to 1 had the smallest worst gap to log Z; else by the weights themselves, whose sum then
    # stays what it is.
    exact = is_exact(model)
    power = jnp.where(exact & jnp.any(frame.seen.observed), 0.5, 1.0).astype(model.dtype)
    indices = jnp.arange(particles.mode.shape[0], dtype=jnp.int32)
    held = (particles.mode, particles.z, particles.covariance, indices)
    allowed = frame.valid & ~frame.first
    (mode, z, covariance, parent), log_weight, resampled, cut = resample(
        held, particles.log_weight, None, particles.ess, settings, noise, allowed, power
    )

    # Follow every mode.
    start, ahead = model.start(), move(model, mode, z, frame)
    log_mode = jnp.where(frame.first, over(start.log_mode, 1), ahead.log_mode)
    mean = jnp.where(frame.first, over(start.mean, 1), ahead.mean)
    own = over(row_covariance(model, frame, alarm.extra), 1)
    spread = jnp.where(frame.first, 0.0, moved_covariance(ahead.matrix, covariance)) + own

    # From here on a branch is a branch, whatever its mode.
    mean, spread, log_mode = jax.lax.optimization_barrier((_flat(mean, 1), _flat(spread, 2), log_mode.reshape(-1)))
    log_weight = jnp.tile(log_weight, model.modes)

    # Hide what nothing explains, update by the rest.
    expected, variance = channel_moments(emission, mean, spread)
    seen_as = jax.lax.stop_gradient((expected[None], variance[None], (log_weight + log_mode)[None]))
    surprise = surprises(*seen_as, frame.seen)
    verdict = alarm.verdict(model, frame, surprise)
    after = jax.lax.optimization_barrier(updated(emission, mean, spread, verdict.seen))

    # Weigh; a branch that left the numbers has weight zero. An update keeps a covariance within them, and a mean unless
    # the reading is impossible.
    finite = jnp.isfinite(spread.sum((0, 1)) + mean.sum(0))
    possible = finite & (after.log_evidence > -jnp.inf)
    log_gain = log_mode + after.log_evidence
    log_gain = jnp.where(possible & ~jnp.isnan(log_gain), log_gain, -jnp.inf)
    log_weight, log_normaliser, ess = normalised(log_weight + log_gain)
    modes = jnp.repeat(jnp.arange(model.modes, dtype=jnp.int32), settings.count)
    kept = jnp.where(possible, after.mean, 0.0), jnp.where(finite, after.covariance, 0.0)
    new = Particles(modes, kept[0], log_weight, ess, kept[1], verdict.watch)
    new = jax.tree.map(lambda x, old: jnp.where(frame.valid, x, old), new, particles)

    dtype = log_weight.dtype
    step_ess = effective_share(jax.lax.stop_gradient(log_gain))
    zero = jnp.zeros((), dtype)
    bound = zero if exact else jnp.full((), jnp.inf, dtype)  # given the ancestors nothing is left to chance
    record = Record(
        mixing=zero,
        mixing_max=zero,
        certificate=jnp.asarray(Certificate.SUMMED if exact else Certificate.NONE, jnp.int32),
        certified=verdict.trusted & jnp.isfinite(log_normaliser) & exact,
        bound=jnp.where(jnp.isfinite(log_normaliser), bound, jnp.inf),
        ess=new.ess,
        step_ess=step_ess,
        relative_variance=1 / jnp.maximum(step_ess, 1 / log_gain.shape[0]) - 1,
        log_normaliser=jnp.where(frame.valid, log_normaliser, 0.0),
        resampled=resampled,
        redrawn=jnp.zeros((), bool),
        pareto_k=None,
        surprise=jnp.where(frame.valid, verdict.surprise, 0.0),
        outliers=jnp.where(frame.valid, verdict.outliers, 0),
        refused=verdict.refused & frame.valid,
        cut=jnp.where(allowed, cut, 0.0),
    )
    trace = Trace(parent, mode, z, covariance, mean, log_gain, alarm.extra, frame._replace(seen=verdict.seen))
    return new, record, moments_of(model, new), trace


def _flat(values: Float[Array, "modes *small particles"], axes: int) -> Float[Array, "..."]:
    """(modes, small axes, particles) as (small axes, modes · particles)."""
    return jnp.concatenate(list(values), axis=axes)
