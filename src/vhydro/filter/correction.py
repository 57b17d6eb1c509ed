"""What makes linearised branches unbiased: their z is drawn some rows later, and weighed by what was left out.

Over a window of rows every branch is a mode path s with a Gaussian filter along it, started at a point z_b that was
drawn before (or at the start law). Its weight holds `Π π̂ ĉ`, the linearised kernel and evidence of the window's rows.
At the end of a window z is drawn for the rows up to c, from the linearised smoother, which has seen later rows too:

    factor = Π_{k ≤ c} π(s_k|z_{k−1}) p(z_k|z_{k−1}) g(o_k|z_k) · Π_{k > c} π̂'ĉ'  /  (Π_k π̂ ĉ · q(z_{b+1..c}))

π̂'ĉ' are those of the filter started again at the drawn z_c. The weight times the factor is an importance weight of
exactly the model's path measure up to c, so `E[Ẑ] = Z` whatever the linearisation does; where the model is linear the
factor is 1. That z_c has been drawn with the `OVERLAP` rows after it in sight keeps the draw from costing anything.
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from vhydro.emission import LinearEmission
from vhydro.filter.branches import Trace, matrix_in, move_in, moved_covariance, row_covariance, updated
from vhydro.filter.frames import Frame, Particles
from vhydro.filter.resampling import cut_to_once
from vhydro.filter.settings import FilterSettings
from vhydro.flow import kept_momenta
from vhydro.gaussian import LOG_2PI, Entries, factored_rows
from vhydro.model import HybridModel
from vhydro.particles import RESAMPLERS, Draw, Noise, normalised
from vhydro.small import over, pick, product, stacked, times, total

WINDOW = 64  # rows between two corrections
OVERLAP = 8  # rows at the end of a window whose z is drawn in the next


class Anchor(NamedTuple):
    """Where the lineages of a window begin: points drawn before, or nothing yet."""

    mode: Int[Array, "*rows particles"]
    z: Float[Array, "*rows latent particles"]


class Lineages(NamedTuple):
    """N mode paths over some rows, each with its Gaussian filter; rows that are not valid only pass on."""

    mode: Int[Array, "*rows particles"]
    before: Anchor  # mode and mean before the row's move
    covariance: Float[Array, "*rows latent latent particles"]  # before the row's move
    ahead: Float[Array, "*rows latent particles"]  # mean after the move, before the update
    log_gain: Float[Array, "*rows particles"]
    extra: Float[Array, "*rows modes latent"] | None
    frame: Frame


class Corrected(NamedTuple):
    """Branches after a correction, what comes before the next one's window, and the log of the mean factor."""

    particles: Particles
    anchor: Anchor
    kept: Lineages
    log_factor: Float[Array, ""]


# --- one row back -----------------------------------------------------------------------------------------------------


class RowNoise(NamedTuple):
    """The noise with which a row is entered: independent parts, and what makes it so where it is not."""

    deviation: Float[Array, "latent particles"]
    whitening: Float[Array, "latent latent particles"] | None


def _row_noise(model: HybridModel, line: Lineages) -> RowNoise:
    covariance = row_covariance(model, line.frame, line.extra)
    if model.noise_lower is None:
        return RowNoise(pick(over(jnp.sqrt(jnp.diagonal(covariance, axis1=1, axis2=2)), 1), line.mode), None)
    factor = jnp.linalg.cholesky(covariance)
    deviation = jnp.diagonal(factor, axis1=1, axis2=2)
    identity = jnp.broadcast_to(jnp.eye(model.latent, dtype=model.dtype), factor.shape)
    whitening = jax.scipy.linalg.solve_triangular(factor / deviation[:, None], identity, lower=True, unit_diagonal=True)
    return RowNoise(pick(over(deviation, 1), line.mode), pick(over(whitening, 1), line.mode))


class Backward(NamedTuple):
    """The law of z before a row's move given z' after it, from the update by one coordinate of z' after the other.

    Entry by entry: each is one loop over the particles. As arrays the compiler would compute every entry again wherever
    it is used.
    """

    rows: Float[Array, "latent latent particles"]  # what each coordinate of z', made independent, reads of z
    columns: Entries  # taken off the covariance by each, times itself
    roots: list[Float[Array, "particles"]]
    whitening: Float[Array, "latent latent particles"] | None
    left: Entries  # the covariance that is left, up to the diagonal

    def shift(self, error: Float[Array, "latent particles"]) -> list[Float[Array, "particles"]]:
        """How far the mean moves when z' is off its own by this error."""
        error = error if self.whitening is None else times(self.whitening, error)
        whites: list = []
        for row, mine, root in zip(self.rows, error, self.roots, strict=True):
            known = sum(_dot(row, w) * e for w, e in zip(self.columns, whites, strict=False))
            whites.append((mine - known) / root)
        return [_dot(parts, whites) for parts in zip(*self.columns, strict=True)]


def _backward(model: HybridModel, line: Lineages, noise: RowNoise) -> Backward:
    rows = matrix_in(model, line.before.mode, line.mode, line.before.z, line.ahead, line.frame)
    rows = stacked([stacked(list(row)) for row in rows])
    rows = rows if noise.whitening is None else product(noise.whitening, rows)
    columns: list = []
    roots: list = []
    for row, deviation in zip(rows, noise.deviation, strict=True):
        known = [_dot(w, row) for w in columns]
        across = [
            _dot(own, row) - sum(w[i] * k for w, k in zip(columns, known, strict=True))
            for i, own in enumerate(line.covariance)
        ]
        roots.append(jnp.sqrt(jnp.maximum(_dot(row, across), 0.0) + deviation**2))
        columns.append([x / roots[-1] for x in across])
    left = [[own[j] - sum(w[i] * w[j] for w in columns) for j in range(i + 1)] for i, own in enumerate(line.covariance)]
    return Backward(rows, columns, roots, noise.whitening, left)


def _dot(first, second) -> Float[Array, "particles"]:
    return reduce(add, (x * y for x, y in zip(first, second, strict=True)))


def _draw(mean, covariance, normal) -> tuple[Float[Array, "latent particles"], Float[Array, "particles"]]:
    """A point of a Gaussian and the log density of drawing it."""
    factor = factored_rows(covariance)
    z = stacked([own + _dot(row, normal[: len(row)]) for own, row in zip(mean, factor, strict=True)])
    log_det = sum(jnp.log(row[i]) for i, row in enumerate(factor))
    return z, -0.5 * total(normal**2) - log_det - 0.5 * LOG_2PI * len(factor)


def _log_row(model: HybridModel, line: Lineages, noise: RowNoise, before: Anchor, z) -> Float[Array, "particles"]:
    """The exact log density of a row given the one before: kernel, transition and reading."""
    emission, start, frame = model.emission, model.start(), line.frame
    assert isinstance(emission, LinearEmission)
    log_mode = model.kernel.log_probability(before.mode, before.z, frame.action)
    log_mode = jnp.where(frame.first, over(start.log_mode, 1), log_mode)
    kept = kept_momenta(model.reset, before.mode, line.mode, before.z)
    mean = model.flow.step_in(line.mode, kept * before.z, frame.action, frame.dt)
    mean = jnp.where(frame.first, pick(over(start.mean, 1), line.mode), mean)
    error = z - mean if noise.whitening is None else times(noise.whitening, z - mean)
    log_move = -total(0.5 * (error / noise.deviation) ** 2 + jnp.log(noise.deviation)) - 0.5 * LOG_2PI * model.latent
    return pick(log_mode, line.mode) + log_move + emission.log_likelihood(z, frame.seen)


class Smoothed(NamedTuple):
    """The law of z along every lineage, given all rows of the window, at the row that was reached going back."""

    branch: Int[Array, "particles"]  # the branch in its row
    mode: Int[Array, "particles"]
    mean: Float[Array, "latent particles"]
    covariance: Float[Array, "latent latent particles"]
    log_gain: Float[Array, "particles"]  # of the rows that were passed


class Drawn(NamedTuple):
    """A point along every lineage at the row that was reached going back, and the factor of the rows passed."""

    branch: Int[Array, "particles"]
    mode: Int[Array, "particles"]
    z: Float[Array, "latent particles"]
    log_factor: Float[Array, "particles"]


def _smoothed_before(model: HybridModel, later: Smoothed, line: Lineages, parent) -> Smoothed:
    """The smoother's law one row earlier."""
    latent = range(model.latent)
    back = _backward(model, line, _row_noise(model, line))
    units = jnp.broadcast_to(over(jnp.eye(model.latent, dtype=model.dtype), 1), line.covariance.shape)
    turned = stacked([stacked(back.shift(unit)) for unit in units])  # the smoother's gain, transposed
    half = stacked(list(product(jnp.swapaxes(turned, 0, 1), later.covariance)))
    left = stacked([stacked([back.left[max(i, j)][min(i, j)] for j in latent]) for i in latent])
    covariance = left + product(half, turned)
    mean = line.before.z + stacked(back.shift(later.mean - line.ahead))
    log_gain = later.log_gain + line.log_gain
    here = Smoothed(parent, line.before.mode, mean, covariance, log_gain)
    return jax.tree.map(lambda new, old: jnp.where(line.frame.valid, new, old), here, later)


def _drawn_before(model: HybridModel, later: Drawn, line: Lineages, parent, normal) -> Drawn:
    """Points one row earlier, drawn from the linearised smoother, and what the row they lead to is worth."""
    noise = _row_noise(model, line)
    back = _backward(model, line, noise)
    mean = map(add, line.before.z, back.shift(later.z - line.ahead))
    z, log_q = _draw(list(mean), back.left, normal)
    before = Anchor(line.before.mode, z)
    log_p = _log_row(model, line, noise, before, later.z)
    log_factor = later.log_factor + log_p - line.log_gain - jnp.where(line.frame.first, 0.0, log_q)
    here = Drawn(parent, *before, log_factor)
    return jax.tree.map(lambda new, old: jnp.where(line.frame.valid, new, old), here, later)


# --- lineages ---------------------------------------------------------------------------------------------------------


def _line(trace: Trace, index: Int[Array, "particles"], count: int) -> tuple[Lineages, Int[Array, "particles"]]:
    """One row of the lineages that go through these branches of it, and the branches they came from."""
    slot = index % count
    mode, z, covariance, parent = (_taken(x, slot) for x in (trace.mode, trace.z, trace.covariance, trace.parent))
    ahead, log_gain = _taken(trace.ahead, index), _taken(trace.log_gain, index)
    line = Lineages(index // count, Anchor(mode, z), covariance, ahead, log_gain, trace.extra, trace.frame)
    return line, parent


def _taken(x: Shaped[Array, "*small branches"], index: Int[Array, "particles"]) -> Shaped[Array, "*small particles"]:
    """The branches at these places; one flat gather keeps them contiguous."""
    rows = jnp.arange(x.size // x.shape[-1], dtype=index.dtype)[:, None] * x.shape[-1]
    flat = x.reshape(-1).at[(rows + index).reshape(-1)].get(mode="promise_in_bounds")
    return flat.reshape(*x.shape[:-1], index.shape[0])


def _of_lineages(lines: Lineages, index: Int[Array, "particles"]) -> Lineages:
    """The rows of some of the lineages."""
    own = lines._replace(extra=None, frame=None)
    taken = jax.tree.map(lambda x: _taken(x, index), own)
    return taken._replace(extra=lines.extra, frame=lines.frame)


def _smoothed(model: HybridModel, trace: Trace, end: Smoothed, count: int) -> tuple[Smoothed, Int[Array, "rows n"]]:
    """The law before the first row of a trace given all of its rows, and the modes of its rows."""

    def back(later: Smoothed, row: Trace):
        line, parent = _line(row, later.branch, count)
        return _smoothed_before(model, later, line, parent), later.branch // count

    return jax.lax.scan(back, end, trace, reverse=True)


def _drawn_along(model: HybridModel, trace: Trace, last: Drawn, normal, count: int) -> Drawn:
    """Points before the first row of a trace, drawn through all of its rows."""

    def back(later: Drawn, inputs):
        row, noise = inputs
        line, parent = _line(row, later.branch, count)
        return _drawn_before(model, later, line, parent, noise), None

    return jax.lax.scan(back, last, (trace, normal), reverse=True)[0]


def _drawn_to_anchor(model: HybridModel, kept: Lineages, last: Drawn, normal) -> Float[Array, "particles"]:
    """The log factor once all rows of `kept` are passed as well: before its first stands the anchor."""

    def back(later: Drawn, inputs):
        line, noise = inputs
        return _drawn_before(model, later, line, later.branch, noise), None

    first, others = (jax.tree.map(lambda x, part=part: x[part], kept) for part in (0, slice(1, None)))
    drawn = jax.lax.scan(back, last, (others, normal), reverse=True)[0]
    log_p = _log_row(model, first, _row_noise(model, first), first.before, drawn.z)
    return drawn.log_factor + jnp.where(first.frame.valid, log_p - first.log_gain, 0.0)


def _filtered_again(
    model: HybridModel, modes: Int[Array, "rows particles"], extra, frames: Frame, anchor: Anchor
) -> tuple[Anchor, Float[Array, "latent latent particles"], Lineages]:
    """The same mode paths and rows with their Gaussian filter started at the anchor's points, and where that ends."""
    emission, start = model.emission, model.start()
    assert isinstance(emission, LinearEmission)

    def one(carry, row):
        before, covariance = carry
        mode, extra, frame = row
        log_mode = model.kernel.log_probability(before.mode, before.z, frame.action)
        log_mode = jnp.where(frame.first, over(start.log_mode, 1), log_mode)
        mean, matrix = move_in(model, before.mode, mode, before.z, frame)
        mean = jnp.where(frame.first, pick(over(start.mean, 1), mode), mean)
        own = row_covariance(model, frame, extra)
        spread = jnp.where(frame.first, 0.0, moved_covariance(matrix, covariance)) + pick(over(own, 1), mode)
        after = updated(emission, mean, spread, frame.seen)
        log_gain = pick(log_mode, mode) + after.log_evidence
        here = Anchor(mode, after.mean), after.covariance
        # A row past the log's end passes on what was there before it.
        here = jax.tree.map(lambda new, old: jnp.where(frame.valid, new, old), here, carry)
        return here, Lineages(mode, before, covariance, mean, log_gain, extra, frame)

    latent, n = anchor.z.shape
    given = anchor, jnp.zeros((latent, latent, n), model.dtype)
    (end, covariance), lines = jax.lax.scan(one, given, (modes, extra, frames))
    return end, covariance, lines


def empty_lineages(model: HybridModel, settings: FilterSettings, frame: Frame) -> Lineages:
    """Rows before the first one: none is valid."""
    n, d, rows = settings.count, model.latent, OVERLAP
    extra = None if settings.outliers is None else jnp.zeros((rows, model.modes, d), model.dtype)
    frames = jax.tree.map(lambda x: jnp.zeros((rows, *jnp.shape(x)), jnp.asarray(x).dtype), frame)
    zero, nowhere = jnp.zeros((rows, d, n), model.dtype), jnp.zeros((rows, n), jnp.int32)
    return Lineages(
        nowhere, Anchor(nowhere, zero), jnp.zeros((rows, d, d, n), model.dtype), zero,
        jnp.zeros((rows, n), model.dtype), extra, frames,
    )  # fmt: skip


def empty_anchor(model: HybridModel, settings: FilterSettings) -> Anchor:
    return Anchor(jnp.zeros(settings.count, jnp.int32), jnp.zeros((model.latent, settings.count), model.dtype))


def correction_layout(model: HybridModel, settings: FilterSettings) -> tuple[Draw, ...]:
    """The randomness of one correction."""
    n = settings.count
    path = Draw("path", (WINDOW, model.latent, n), "normal")
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
    assert particles.covariance is not None
    n, rows = settings.count, trace.parent.shape[0] - OVERLAP
    last, log_weight = _chosen(particles.log_weight, settings, noise)
    early, late = (jax.tree.map(lambda x, part=part: x[part], trace) for part in (slice(rows), slice(rows, None)))

    # Back from the end to the last row that is drawn, whose law that gives; drawn from there to the anchor.
    mode, z, covariance = (_taken(x, last) for x in (particles.mode, particles.z, particles.covariance))
    end = Smoothed(last, mode, z, covariance, jnp.zeros_like(log_weight))
    law, modes = _smoothed(model, late, end, n)
    normal = noise["path"]
    z, log_q = _draw(law.mean, law.covariance, normal[-1])
    some = jnp.any(kept.frame.valid) | jnp.any(early.frame.valid)
    drawn = Drawn(law.branch, law.mode, z, -law.log_gain - jnp.where(some, log_q, 0.0))
    first = _drawn_along(model, early, drawn, normal[OVERLAP - 1 : -1], n)
    # Before the trace's first row branch i of the first N is lineage i of those kept; the others are dead.
    origin = jnp.minimum(first.branch, n - 1)
    log_factor = _drawn_to_anchor(model, _of_lineages(kept, origin), first, normal[: OVERLAP - 1])

    # The rows that were not drawn are filtered again from the points that were.
    old = Anchor(_taken(anchor.mode, origin), _taken(anchor.z, origin))
    anchor = jax.tree.map(lambda new, old: jnp.where(some, new, old), Anchor(law.mode, z), old)
    end, covariance, again = _filtered_again(model, modes, late.extra, late.frame, anchor)
    log_factor = log_factor + jnp.where(late.frame.valid[:, None], again.log_gain, 0.0).sum(0)
    log_factor = jnp.where(jnp.isfinite(log_factor), log_factor, -jnp.inf)
    log_weight, log_mean, ess = normalised(log_weight + log_factor)
    return Corrected(_padded(particles, end, covariance, log_weight, ess), anchor, again, log_mean)


def _padded(particles: Particles, end: Anchor, covariance, log_weight, ess) -> Particles:
    """N branches and room for the others."""
    n, count = log_weight.shape[0], particles.mode.shape[0]

    def padded(x, fill):
        width = [(0, 0)] * (x.ndim - 1) + [(0, count - n)]
        return jnp.pad(x, width, constant_values=fill)

    return particles._replace(
        mode=padded(end.mode, 0), z=padded(end.z, 0.0), covariance=padded(covariance, 0.0),
        log_weight=padded(log_weight, -jnp.inf), ess=ess * n / count,
    )  # fmt: skip


def concluded(model: HybridModel, particles: Particles, kept: Lineages, normal) -> Float[Array, ""]:
    """The log of the mean factor of the rows that no window has corrected yet, at the end of a log."""
    assert particles.covariance is not None
    n = kept.mode.shape[1]
    mode, mean, covariance = particles.mode[:n], particles.z[:, :n], particles.covariance[..., :n]
    z, log_q = _draw(mean, covariance, normal[-1])
    log_q = jnp.where(jnp.any(kept.frame.valid), log_q, 0.0)
    log_factor = _drawn_to_anchor(model, kept, Drawn(mode, mode, z, -log_q), normal[:-1])
    log_factor = jnp.where(jnp.isfinite(log_factor), log_factor, -jnp.inf)
    return normalised(particles.log_weight[:n] + log_factor)[1]
