"""What makes linearised branches unbiased: their z is drawn some rows later, and weighed by what was left out.

Over a window of rows every branch is a mode path s with a Gaussian filter along it, started at a point z_b that was
drawn before (or at the start law). Its weight holds `Π π̂ ĉ`, the linearised kernel and evidence of the window's rows.
At the end of a window z is drawn for the rows up to c, from the linearised smoother, which has seen later rows too:

    factor = Π_{k ≤ c} π(s_k|z_{k−1}) p(z_k|z_{k−1}) g(o_k|z_k) · Π_{k > c} π̂'ĉ'  /  (Π_k π̂ ĉ · q(z_{b+1..c}))

π̂'ĉ' are those of the filter started again at the drawn z_c. The weight times the factor is an importance weight of
exactly the model's path measure up to c, so `E[Ẑ] = Z` whatever the linearisation does; where the model is linear the
factor is 1. That z_c has been drawn with the `OVERLAP` rows after it in sight keeps the draw from costing anything.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vhydro.emission import LinearEmission
from vhydro.filter.branches import Trace, move_in, moved_covariance, row_covariance, updated
from vhydro.filter.frames import Frame, Particles
from vhydro.filter.resampling import cut_to_once
from vhydro.filter.settings import FilterSettings
from vhydro.flow import kept_momenta
from vhydro.gaussian import LOG_2PI, factored, factored_log_density, gain_back
from vhydro.model import HybridModel
from vhydro.particles import RESAMPLERS, Draw, Noise, normalised
from vhydro.small import over, pick, product, times

WINDOW = 64  # rows between two corrections
OVERLAP = 8  # rows at the end of a window whose z is drawn in the next


class Lineages(NamedTuple):
    """N mode paths over some rows, each with its Gaussian filter; rows that are not valid only pass on."""

    mode: Int[Array, "rows particles"]
    mean: Float[Array, "rows latent particles"]
    covariance: Float[Array, "rows latent latent particles"]
    ahead: Float[Array, "rows latent particles"]  # mean before the update
    matrix: Float[Array, "rows latent latent particles"]
    log_gain: Float[Array, "rows particles"]
    extra: Float[Array, "rows modes latent"] | None
    frame: Frame


class Anchor(NamedTuple):
    """Where the lineages of a window begin: points drawn before, or nothing yet."""

    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]


class Corrected(NamedTuple):
    """Branches after a correction, what comes before the next one's window, and the log of the mean factor."""

    particles: Particles
    anchor: Anchor
    kept: Lineages
    log_factor: Float[Array, ""]


# --- lineages ---------------------------------------------------------------------------------------------------------


def _traced(trace: Trace, last: Int[Array, "particles"], count: int) -> tuple[Lineages, Int[Array, "particles"]]:
    """The lineages of the branches `last` over a trace, and the branches they came from before its first row."""

    def back(index, row):
        valid, parent = row
        return jnp.where(valid, parent[index % count], index), index

    first, index = jax.lax.scan(back, last, (trace.frame.valid, trace.parent), reverse=True)

    def taken(x):
        inner = (1,) * (x.ndim - 2)
        return jnp.take_along_axis(x, index.reshape(index.shape[0], *inner, index.shape[1]), axis=-1)

    lines = Lineages(
        index // count, taken(trace.mean), taken(trace.covariance), taken(trace.ahead), taken(trace.matrix),
        taken(trace.log_gain), trace.extra, trace.frame,
    )  # fmt: skip
    return lines, first


def _noises(model: HybridModel, lines: Lineages) -> Float[Array, "rows modes latent latent"]:
    """The covariance of every row's transition into every mode; of the start law in the first row."""
    return jax.vmap(lambda frame, extra: row_covariance(model, frame, extra))(lines.frame, lines.extra)


def _by_mode(values: Float[Array, "rows modes *small"], mode: Int[Array, "rows particles"]):
    """The entry of every row's mode: (rows, small axes, particles)."""
    return jax.vmap(lambda v, m: pick(over(v, 1), m))(values, mode)


class Backward(NamedTuple):
    """How the smoother goes back from every row's successor: `z = mean + gain (z' − ahead') + root ε`."""

    gain: Float[Array, "rows latent latent particles"]
    root: Float[Array, "rows latent latent particles"]
    spread: Float[Array, "rows latent latent particles"]  # of the successor's prediction
    ahead: Float[Array, "rows latent particles"]
    moves: Bool[Array, "rows"]  # False where there is no successor: the row's own filter law then counts


def _backward_laws(model: HybridModel, lines: Lineages) -> Backward:
    """The smoother's step of every row, all of them at once: none needs another's draw."""
    following = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[:1]]), lines)
    rows = lines.mode.shape[0]
    moves = following.frame.valid & (jnp.arange(rows) < rows - 1)
    noise = _by_mode(_noises(model, following), following.mode)

    def one(matrix, covariance, noise, moves):
        spread = moved_covariance(matrix, covariance) + noise
        factor = factored(spread)
        cross = product(matrix, covariance)  # F V
        gain = jnp.where(moves, gain_back(factor, cross), 0.0)
        left = covariance - product(gain, cross)
        return gain, factored(0.5 * (left + jnp.swapaxes(left, 0, 1))), spread

    gain, root, spread = jax.vmap(one)(following.matrix, lines.covariance, noise, moves)
    return Backward(gain, root, spread, following.ahead, moves)


def _drawn(
    model: HybridModel, lines: Lineages, count: int, normal: Float[Array, "rows latent particles"]
) -> tuple[Float[Array, "_count latent particles"], Float[Array, "particles"]]:
    """Points for the first `count` rows, from the linearised smoother, and the log density of drawing them."""
    laws = _backward_laws(model, lines)

    def smoothed(later, row):
        mean, covariance = later
        own_mean, own, gain, spread, ahead, moves = row
        shift = times(gain, mean - ahead)
        left = jnp.where(moves, covariance - spread, 0.0)
        new = own + product(product(gain, left), jnp.swapaxes(gain, 0, 1))
        return (own_mean + jnp.where(moves, shift, 0.0), new), None

    def drawn(later, row):
        mean, gain, ahead, root, noise, moves = row
        point = mean + jnp.where(moves, times(gain, later - ahead), 0.0) + times(root, noise)
        return point, point

    # Smoothed from the end to the last row that is drawn, whose law that gives.
    rows = slice(count - 1, None)
    end = lines.mean[-1], lines.covariance[-1]
    given = (lines.mean, lines.covariance, laws.gain, laws.spread, laws.ahead, laws.moves)
    (mean, covariance), _ = jax.lax.scan(smoothed, end, jax.tree.map(lambda x: x[rows], given), reverse=True)
    root = factored(0.5 * (covariance + jnp.swapaxes(covariance, 0, 1)))
    last = mean + times(root, normal[count - 1])
    # Drawn from there back to the first.
    given = (lines.mean, laws.gain, laws.ahead, laws.root, normal, laws.moves)
    _, points = jax.lax.scan(drawn, last, jax.tree.map(lambda x: x[: count - 1], given), reverse=True)
    points = jnp.concatenate([points, last[None]])
    # The density of what was drawn, by the noise it was drawn with; a row that is not valid was not.
    roots = jnp.concatenate([laws.root[: count - 1], root[None]])
    log_det = sum(jnp.log(roots[:, i, i]) for i in range(model.latent))
    log_q = -0.5 * sum(normal[:count, i] ** 2 for i in range(model.latent)) - log_det - 0.5 * LOG_2PI * model.latent
    return points, jnp.where(lines.frame.valid[:count, None], log_q, 0.0).sum(0)


def _log_model(model: HybridModel, lines: Lineages, points: Float[Array, "_rows latent particles"], anchor: Anchor):
    """The exact log density of the drawn rows: kernel, transition and reading, all rows at once."""
    emission, start, count = model.emission, model.start(), points.shape[0]
    assert isinstance(emission, LinearEmission)
    lines = jax.tree.map(lambda x: x[:count], lines)
    before_z = jnp.concatenate([anchor.z[None], points[:-1]])
    before_mode = jnp.concatenate([anchor.mode[None], lines.mode[:-1]])
    factors = _by_mode(jnp.linalg.cholesky(_noises(model, lines)), lines.mode)

    def one(before: Anchor, line: Lineages, z, factor):
        frame = line.frame
        log_mode = model.kernel.log_probability(before.mode, before.z, frame.action)
        log_mode = jnp.where(frame.first, over(start.log_mode, 1), log_mode)
        kept = kept_momenta(model.reset, before.mode, line.mode, before.z)
        mean = model.flow.step_in(line.mode, kept * before.z, frame.action, frame.dt)
        mean = jnp.where(frame.first, pick(over(start.mean, 1), line.mode), mean)
        log_move = factored_log_density(z - mean, factor)
        log_p = pick(log_mode, line.mode) + log_move + emission.log_likelihood(z, frame.seen)
        return jnp.where(frame.valid, log_p, 0.0)

    log_p = jax.vmap(one)(Anchor(before_mode, before_z), lines, points, factors).sum(0)
    # The last valid row is where the next window starts.
    last = jnp.maximum(jnp.max(jnp.where(lines.frame.valid, jnp.arange(count), -1)), 0)
    some = jnp.any(lines.frame.valid)
    here = Anchor(lines.mode[last], points[last])
    return jax.tree.map(lambda new, old: jnp.where(some, new, old), here, anchor), log_p


def _filtered_again(model: HybridModel, lines: Lineages, anchor: Anchor) -> Lineages:
    """The same mode paths and rows, with their Gaussian filter started at the anchor's points."""
    emission = model.emission
    assert isinstance(emission, LinearEmission)
    latent, n = anchor.z.shape
    start = model.start()

    def one(carry, line: Lineages):
        mode, z, covariance = carry
        frame = line.frame
        log_mode = model.kernel.log_probability(mode, z, frame.action)
        log_mode = jnp.where(frame.first, over(start.log_mode, 1), log_mode)
        mean, matrix = move_in(model, mode, line.mode, z, frame)
        mean = jnp.where(frame.first, pick(over(start.mean, 1), line.mode), mean)
        own = row_covariance(model, frame, line.extra)
        spread = jnp.where(frame.first, 0.0, moved_covariance(matrix, covariance)) + pick(over(own, 1), line.mode)
        after = updated(emission, mean, spread, frame.seen)
        log_gain = pick(log_mode, line.mode) + after.log_evidence
        here = (line.mode, after.mean, after.covariance)
        here = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), here, carry)
        # A row past the log's end passes on what was there before it.
        return here, line._replace(mean=here[1], covariance=here[2], ahead=mean, matrix=matrix, log_gain=log_gain)

    carry = (anchor.mode, anchor.z, jnp.zeros((latent, latent, n), model.dtype))
    return jax.lax.scan(one, carry, lines)[1]


def empty_lineages(model: HybridModel, settings: FilterSettings, frame: Frame) -> Lineages:
    """Rows before the first one: none is valid."""
    n, d, rows = settings.count, model.latent, OVERLAP
    extra = None if settings.outliers is None else jnp.zeros((rows, model.modes, d), model.dtype)
    frames = jax.tree.map(lambda x: jnp.zeros((rows, *jnp.shape(x)), jnp.asarray(x).dtype), frame)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=model.dtype)[None, :, :, None], (rows, d, d, n))
    zero = jnp.zeros((rows, d, n), model.dtype)
    return Lineages(
        jnp.zeros((rows, n), jnp.int32), zero, jnp.zeros((rows, d, d, n), model.dtype), zero, eye,
        jnp.zeros((rows, n), model.dtype), extra, frames,
    )  # fmt: skip


def empty_anchor(model: HybridModel, settings: FilterSettings) -> Anchor:
    return Anchor(jnp.zeros(settings.count, jnp.int32), jnp.zeros((model.latent, settings.count), model.dtype))


def correction_layout(model: HybridModel, settings: FilterSettings) -> tuple[Draw, ...]:
    """The randomness of one correction."""
    n = settings.count
    path = Draw("path", (WINDOW + OVERLAP, model.latent, n), "normal")
    return Draw("resample", RESAMPLERS[settings.resampler].uniforms(n), "uniform"), path


def _chosen(log_weight: Float[Array, "branches"], settings: FilterSettings, noise: Noise):
    """N of the branches for a correction, and their weights.

    Half of the places go by weight, so that a heavy branch is drawn several times and its factor averaged; half keep
    as many different branches as they can.
    """
    n = settings.count
    spread = jnp.where(jnp.isfinite(log_weight), jnp.exp(cut_to_once(log_weight, n)[0]), 0.0)
    chance = 0.5 * (spread / spread.sum() + jnp.exp(log_weight))
    index = RESAMPLERS[settings.resampler].ancestors(chance, noise["resample"], n)
    return index, (log_weight - jnp.log(n * chance))[index]


def corrected(
    model: HybridModel,
    settings: FilterSettings,
    particles: Particles,
    anchor: Anchor,
    kept: Lineages,
    trace: Trace,
    noise: Noise,
) -> Corrected:
    """The branches after a window of rows, corrected for all rows of the window but the last `OVERLAP`."""
    n = settings.count
    last, log_weight = _chosen(particles.log_weight, settings, noise)
    lines, first = _traced(trace, last, n)
    # Before the trace's first row branch i of the first N is lineage i of those kept; the others are dead.
    before = jax.tree.map(
        lambda x: jnp.take(x, jnp.minimum(first, n - 1), axis=-1) if x.ndim and x.shape[-1] == n else x,
        kept._replace(extra=None, frame=None),
    )
    before = before._replace(extra=kept.extra, frame=kept.frame)
    anchor = jax.tree.map(lambda x: jnp.take(x, jnp.minimum(first, n - 1), axis=-1), anchor)
    whole = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), before, lines)
    rows = whole.mode.shape[0]
    points, log_q = _drawn(model, whole, rows - OVERLAP, noise["path"])
    anchor, log_p = _log_model(model, whole, points, anchor)
    rest = jax.tree.map(lambda x: x[rows - OVERLAP :], whole)
    again = _filtered_again(model, rest, anchor)
    valid = whole.frame.valid[:, None]
    log_before = jnp.where(valid, whole.log_gain, 0.0).sum(0)
    log_after = jnp.where(valid[rows - OVERLAP :], again.log_gain, 0.0).sum(0)
    log_factor = log_p + log_after - log_before - log_q
    log_factor = jnp.where(jnp.isfinite(log_factor), log_factor, -jnp.inf)
    return _reweighted(settings, particles, anchor, again, log_weight, log_factor)


def _reweighted(settings, particles, anchor: Anchor, again: Lineages, log_weight, log_factor) -> Corrected:
    n, count = settings.count, particles.mode.shape[0]
    log_weight, log_mean, ess = normalised(log_weight + log_factor)
    any_row = jnp.any(again.frame.valid)
    end = jax.tree.map(lambda x: x[-1], again._replace(extra=None, frame=None))
    z = jnp.where(any_row, end.mean, anchor.z)
    covariance = jnp.where(any_row, end.covariance, 0.0)
    mode = jnp.where(any_row, end.mode, anchor.mode)

    def padded(x, fill):
        width = [(0, 0)] * (x.ndim - 1) + [(0, count - n)]
        return jnp.pad(x, width, constant_values=fill)

    new = particles._replace(
        mode=padded(mode, 0), z=padded(z, 0.0), covariance=padded(covariance, 0.0),
        log_weight=padded(log_weight, -jnp.inf), ess=ess * n / count,
    )  # fmt: skip
    return Corrected(new, anchor, again, log_mean)


def concluded(model: HybridModel, particles: Particles, anchor: Anchor, kept: Lineages, normal) -> Float[Array, ""]:
    """The log of the mean factor of the rows that no window has corrected yet, at the end of a log."""
    n = kept.mode.shape[1]
    points, log_q = _drawn(model, kept, kept.mode.shape[0], normal)
    _, log_p = _log_model(model, kept, points, anchor)
    log_factor = log_p - jnp.where(kept.frame.valid[:, None], kept.log_gain, 0.0).sum(0) - log_q
    log_factor = jnp.where(jnp.isfinite(log_factor), log_factor, -jnp.inf)
    return normalised(particles.log_weight[:n] + log_factor)[1]
