"""Merged Gaussians: one Gaussian for each mode, every pair of modes followed, branches that end in one mode merged.

For models whose coordinates move by themselves, each read by at most one channel, as robot logs are. Modes are summed
over and not sampled (Blom & Bar-Shalom 1988), the backward pass is Kim's (1994) with the weights of the branches in
place of the transitions, so that a reading that comes back from the dark speaks of the step that led to it. No branch
is deleted, whatever its weight; merging is an approximation that nothing certifies, so that every record says NONE.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vhydro.certificate import Certificate
from vhydro.emission import LinearEmission
from vhydro.filter.frames import Frame, Moments, Record
from vhydro.flow import LinearFlow
from vhydro.model import HybridModel


class Merged(NamedTuple):
    """One Gaussian for each mode and its weight, and the weight of the branches (from, to) that were merged to it."""

    log_mode: Float[Array, "*times modes"]
    mean: Float[Array, "*times latent modes"]
    variance: Float[Array, "*times latent modes"]
    log_branch: Float[Array, "*times modes modes"]


def is_separate(model: HybridModel) -> bool:
    """Whether every coordinate moves by itself and is read by at most one channel."""
    if not isinstance(model.flow, LinearFlow) or not isinstance(model.emission, LinearEmission):
        return False
    matrix = np.asarray(model.flow.matrix)
    alone = (matrix == matrix * np.eye(model.latent)).all()
    plain = model.reset is None and model.noise_lower is None and model.emission.noise_lower is None
    return bool(alone and model.emission.axes is not None and plain)


def merged_run(model: HybridModel, _proposal, settings, frames: Frame, _key):
    """Every row in turn: what each step says, the last Gaussians, and no evidence left over."""
    modes = model.modes
    stays = jnp.where(jnp.eye(modes, dtype=bool), 0.0, -jnp.inf).astype(model.dtype)
    blank = jnp.zeros((model.latent, modes), model.dtype)
    before = Merged(jnp.full(modes, -np.log(modes), model.dtype), blank, blank + 1, stays)

    def step(now: Merged, frame: Frame):
        after, increment = _advanced(model, now, frame)
        kept = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), after, now)
        kept = kept._replace(log_branch=jnp.where(frame.valid, after.log_branch, stays + now.log_mode[:, None]))
        record = _record(model, kept, jnp.where(frame.valid, increment, 0.0))
        return kept, (record, moments_of_merged(kept), kept if settings.history else None)

    final, outputs = jax.lax.scan(step, before, frames)
    return jax.tree.map(lambda x: x[None], outputs), final, jnp.zeros((), model.dtype)


def _advanced(model: HybridModel, now: Merged, frame: Frame) -> tuple[Merged, Float[Array, ""]]:
    """The Gaussians after a row, and the row's log evidence."""
    log_move, mean, variance = _predicted(model, now, frame)
    start = model.start()
    own = jnp.where(jnp.eye(model.modes, dtype=bool), start.log_mode[:, None] - now.log_mode, -jnp.inf)
    log_move = jnp.where(frame.first, own, log_move)
    mean = jnp.where(frame.first, start.mean[..., None], mean)
    variance = jnp.where(frame.first, start.scale[..., None] ** 2, variance)
    seen = jax.vmap(lambda m, s: model.emission.condition(m, s, frame.seen))(mean, jnp.sqrt(variance))
    joint = now.log_mode + log_move + seen.log_evidence  # axes are to, from
    peak = joint.max()
    # A reading so far off that no branch has a number for it tells nothing: the branches go on as if it were hidden.
    lost = ~jnp.isfinite(peak)
    joint = jnp.where(lost, now.log_mode + log_move, joint - _finite(peak))
    mean, scale = jnp.where(lost, mean, seen.mean), jnp.where(lost, jnp.sqrt(variance), seen.scale)
    # Normalised after the peak is taken out: of a log of −10⁹ single precision has no digits left for the shares.
    total = jax.nn.logsumexp(joint)
    joint, increment = joint - total, jnp.where(lost, -jnp.inf, peak + total)
    log_mode = jax.nn.logsumexp(joint, axis=1)
    share = branch_shares(joint, 1)[:, None]
    middle = (share * mean).sum(-1)
    spread = (share * (scale**2 + (mean - middle[..., None]) ** 2)).sum(-1)
    return Merged(log_mode, middle.T, spread.T, joint.T), increment


def _predicted(model: HybridModel, now: Merged, frame: Frame):
    """Log transition, mean and variance of every branch before the reading; axes are to, latent, from."""
    assert isinstance(model.flow, LinearFlow)
    # The modes that were are the particles of the carrier.
    carrier = model.transition(jnp.arange(model.modes), now.mean, frame.action, frame.dt)
    return carrier.log_mode, carrier.mean, now.variance * stretch(model) ** 2 + carrier.scale**2


def stretch(model: HybridModel) -> Float[Array, "modes latent 1"]:
    """What every mode multiplies each coordinate by."""
    assert isinstance(model.flow, LinearFlow)
    return jnp.diagonal(model.flow.matrix, axis1=1, axis2=2)[..., None]


def _finite(values):
    return jnp.where(jnp.isfinite(values), values, 0.0)


def branch_shares(log_weight: Float[Array, "modes modes"], axis: int) -> Float[Array, "modes modes"]:
    """The weights along an axis as shares of their sum, which are exact however small all of them are; 0 for none."""
    weight = jnp.exp(log_weight - _finite(log_weight.max(axis, keepdims=True)))
    total = weight.sum(axis, keepdims=True)
    return weight / jnp.where(total > 0, total, 1.0)


def moments_of_merged(now: Merged) -> Moments:
    """The mode posterior and the moments of z."""
    weight = jnp.exp(now.log_mode)
    mean = now.mean @ weight
    return Moments(weight, mean, (now.variance + (now.mean - mean[:, None]) ** 2) @ weight)


def _record(model: HybridModel, now: Merged, increment) -> Record:
    zero, no = jnp.zeros((), model.dtype), jnp.zeros((), bool)
    share = jnp.exp(2 * jax.nn.logsumexp(now.log_mode) - jax.nn.logsumexp(2 * now.log_mode)) / model.modes
    return Record(
        mixing=zero, mixing_max=zero, certificate=jnp.asarray(Certificate.NONE, jnp.int32), certified=no,
        bound=jnp.full((), jnp.inf, model.dtype), ess=share, step_ess=share, relative_variance=1 / share - 1,
        log_normaliser=increment, resampled=no, redrawn=no, pareto_k=None,
        surprise=jnp.full(len(model.channels), -1.0, model.dtype), outliers=jnp.zeros((), jnp.int32), refused=no,
        cut=zero,
    )  # fmt: skip


# --- the backward pass ------------------------------------------------------------------------------------------------


def smoothed_moments(model: HybridModel, history: Merged, frames: Frame) -> Moments:
    """Modes and z given the whole log, by Kim's recursion; merged again in every mode."""

    class Later(NamedTuple):
        mode: Float[Array, "modes"]
        mean: Float[Array, "latent modes"]
        variance: Float[Array, "latent modes"]

    def step(later: Later, inputs):
        now, log_branch, frame = inputs  # the later two are of the next row, and lead to it
        pair = branch_shares(log_branch, 0) * later.mode  # from, to
        mode = pair.sum(1)
        _, mean, variance = _predicted(model, now, frame)
        gain = now.variance * stretch(model) / variance
        moved = now.mean + gain * (later.mean.T[..., None] - mean)  # to, latent, from
        left = now.variance + gain**2 * (later.variance.T[..., None] - variance)
        share = (pair / jnp.where(mode > 0, mode, 1.0)[:, None]).T[:, None]
        middle = (share * moved).sum(0)
        spread = (share * (left + (moved - middle) ** 2)).sum(0)
        alone = mode <= 0
        point = Later(mode, jnp.where(alone, now.mean, middle), jnp.where(alone, now.variance, spread))
        kept = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), point, _as_is(now))
        return kept, kept

    def _as_is(now: Merged) -> Later:
        return Later(jnp.exp(now.log_mode), now.mean, now.variance)

    last = _as_is(jax.tree.map(lambda x: x[-1], history))
    now = jax.tree.map(lambda x: x[:-1], history)
    nexts = jax.tree.map(lambda x: x[1:], frames)
    inputs = (now, history.log_branch[1:], nexts)
    _, earlier = jax.lax.scan(step, last, inputs, reverse=True)
    every = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), earlier, last)
    return jax.vmap(lambda e: moments_of_merged(Merged(jnp.log(e.mode), e.mean, e.variance, e.mean)))(every)


def likeliest_path(history: Merged) -> Int[Array, "rows"]:
    """The path of modes whose branches are likeliest together."""

    def ahead(value, inputs):
        log_from, joint = inputs
        total = value[:, None] + joint - _finite(log_from)[:, None]
        return total.max(0), total.argmax(0)

    last, back = jax.lax.scan(ahead, history.log_mode[0], (history.log_mode[:-1], history.log_branch[1:]))

    def behind(mode, choice):
        return choice[mode], choice[mode]

    end = jnp.argmax(last)
    _, path = jax.lax.scan(behind, end, back, reverse=True)
    return jnp.append(path, end)
