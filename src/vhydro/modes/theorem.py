"""How fast a segment's mode becomes certain: the bound of Thm 2 beside what the clamped posterior really does.

Clamp each mode `s` over a segment of `L` steps. Its predictive law of the next observation is Gaussian with means
`mean[:, s]` and independent channels of spread `sd`, the same for all modes. Hidden values are NaN and drop out. With
the standardised separation `a = (μ_m − μ_s) / sd` and the residual `e = (O − μ_m) / sd` of the segment's mode `m`,

    R = log p_m(O) / p_s(O) = Σ_c a²/2 + a e

is affine in `e`. Where mode m's law is true, `E[R] = Σ a²/2` (the divergence) and the centred part is Gaussian with
variance `Σ a²`. With noise and gains shared by all modes `a` depends on actions and hidden channels alone, never on
the observations, so that `Γ` and `V` are fixed before anything is seen, as the theorem needs. Where an action is itself
measured (the gap between a joint and its target), the bound is for that action given.

The truth of a real log is not `p_m`. What is assumed of it instead, with the constants `b` and `κ`:

    |E[e_c | F]| ≤ b_c, and e − E[e | F] is sub-Gaussian with proxy κ in every direction, given the past.

Then `Γ = Σ a²/2 − |a| b` and `V = κ Σ a²` are constants for which the theorem holds. They are measured on validation
segments by `residual_constants`; the model's own are b = 0, κ = 1. No finite sample proves such an assumption:
`conditions_hold` says only that every Γ is positive and that the segment's residuals do not contradict the constants.
It never looks at the log ratios. Where the assumption is true, at most a share δ of segments have conditions that hold
and a bound that does not: the theorem promises no more.

The probability is over segments whose mode and ends were not chosen from their own observations. For a mode read off
the same segment's posterior, the union over the M modes asks for `delta / M`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, xlogy

from vhydro.modes.segments import SUM_ERROR

BIAS_ERRORS = 2.0  # standard errors by which a measured bias may be wrong
ROUNDING = 1e-9  # of log odds, relative where they are large


class Constants(NamedTuple):
    """What the residuals of a segment's own mode are allowed: a mean up to the bias, and a sub-Gaussian proxy."""

    bias: np.ndarray  # (channels,), in units of the predictive spread
    proxy: float  # 1 where the model is right


class Concentration(NamedTuple):
    """Thm 2 on one segment; arrays have one entry for each wrong mode, in order."""

    mode: int
    log_posterior: np.ndarray  # (modes,), clamped
    gamma: np.ndarray
    variance: np.ndarray  # V, the proxy of the summed log ratio
    prior_odds: np.ndarray  # B, log π_s/π_m
    bound: float
    realised: float  # Π_L(S ≠ m)
    holds: bool  # decided on log odds, which do not underflow
    conditions_hold: bool


class Transfer(NamedTuple):
    """Thm 2 for another mode posterior of the same segment."""

    divergence: float  # ε_q = KL(q ‖ Π_L)
    bound: float
    realised: float  # q(S ≠ m)
    holds: bool


def log_increments(mean: ArrayLike, sd: ArrayLike, seen: ArrayLike) -> np.ndarray:
    """`log p_s(O_{ℓ+1} | F_ℓ)` of the seen channels, (steps, modes); 0 where all are hidden."""
    mean, sd, seen = _segment(mean, sd, seen)
    residual = (seen[:, None] - mean) / sd[:, None]
    density = -0.5 * residual**2 - np.log(sd)[:, None] - 0.5 * math.log(2 * math.pi)
    return np.where(np.isnan(density), 0.0, density).sum(axis=2)


def clamped_log_posterior(increments: ArrayLike, prior: ArrayLike) -> np.ndarray:
    """`log Π_L(S = s)`, (modes,), of a segment with these log increments; the prior's where it has no step.

    Paper: Thm 2, the clamped-mode posterior.
    """
    increments = np.asarray(increments, dtype=float)
    if increments.ndim != 2 or not np.isfinite(increments).all():
        raise ValueError(f"increments have the shape {increments.shape}; expected finite ones, (steps, modes).")
    log_joint = np.log(_prior(prior, increments.shape[1])) + increments.sum(axis=0)
    return log_joint - np.logaddexp.reduce(log_joint)


def residual_constants(residuals: Sequence[ArrayLike], tail: float = 0.0) -> Constants:
    """The bias and proxy that the standardised residuals (steps, channels) of several segments ask for.

    Each segment's residuals are those of its own mode, NaN where hidden; segments must be others than those to be
    bounded. The bias of a channel is its mean's size plus two standard errors, with segments as the independent
    units. The proxy is the largest of 1, the variance in the worst direction of one step, that of a segment's sum per
    step (larger where residuals persist), and the least `κ` with `P(|e| ≥ t) ≤ 2 exp(−t²/2κ)` at every residual seen.
    `tail` leaves out that share of the largest residuals of a channel, for logs with a few gross outliers: the
    constants then hold for segments without them, and `conditions_hold` refuses the others.

    With few segments for many channels the worst direction is overstated, which loosens the bound.
    """
    if not 0 <= tail < 1:
        raise ValueError(f"tail is {tail}; expected a share of residuals in [0, 1).")
    segments = _residual_segments(residuals)
    pooled = np.concatenate(segments)
    centre = np.nanmean(pooled, axis=0)
    steps = np.nan_to_num(pooled - centre)
    sums = np.array([np.nan_to_num(segment - centre).sum(axis=0) for segment in segments])
    known = (~np.isnan(pooled)).astype(float)
    pairs = np.maximum(known.T @ known, 1)  # channels never seen together have no correlation to speak of
    error = np.sqrt((sums**2).sum(axis=0)) / np.diag(pairs)
    tails = [_tail_proxy(channel[~np.isnan(channel)], tail) for channel in (pooled - centre).T]
    proxy = max(1.0, _largest_variance(steps, pairs), _largest_variance(sums, pairs), *tails)
    return Constants(np.abs(centre) + BIAS_ERRORS * error, float(proxy))


def concentration(
    mean: ArrayLike,
    sd: ArrayLike,
    seen: ArrayLike,
    mode: int,
    prior: ArrayLike,
    delta: float = 0.05,
    constants: Constants | None = None,
) -> Concentration:
    """The bound on `Π_L(S ≠ m)` that holds with probability 1 − δ, and its realised value, on one segment.

    `mean` (steps, modes, channels), `sd` and `seen` (steps, channels) and `prior` (modes,) are as the module says;
    without constants the model's own are used. The bound is `A/(1+A)` with `A = Σ_s exp(B_s − Γ_s + u_s)` and
    `u_s = sqrt(2 V_s log((M−1)/δ))`. The conditions are that every `Γ_s` is positive (so never with nothing seen and a
    mode to confuse) and that the segment's residuals are within the constants: where these are right, those tests
    fail on a share of at most δ of segments.

    Paper: Thm 2.
    """
    mean, sd, seen = _segment(mean, sd, seen)
    _, modes, channels = mean.shape
    _check_level(mode, modes, delta)
    weights = _prior(prior, modes)
    constants = _constants(constants, channels)
    log_posterior = clamped_log_posterior(log_increments(mean, sd, seen), weights)
    wrong = np.delete(np.arange(modes), mode)
    separation = _separation(mean, sd, seen, mode)[:, wrong]
    gamma = (separation**2 / 2 - np.abs(separation) * constants.bias).sum(axis=(0, 2))
    variance = constants.proxy * (separation**2).sum(axis=(0, 2))
    prior_odds = np.log(weights[wrong] / weights[mode])
    margin = np.sqrt(2 * variance * math.log(max(modes - 1, 1) / delta))
    log_bound = np.logaddexp.reduce(prior_odds - gamma + margin)
    log_odds = np.logaddexp.reduce(log_posterior[wrong]) - log_posterior[mode]
    within = _within((seen - mean[:, mode]) / sd, constants, delta)
    return Concentration(
        mode=mode,
        log_posterior=log_posterior,
        gamma=gamma,
        variance=variance,
        prior_odds=prior_odds,
        bound=float(expit(log_bound)),
        realised=float(expit(log_odds)),
        holds=_at_most(log_odds, log_bound),
        conditions_hold=bool((gamma > 0).all()) and within,
    )


def transfer(found: Concentration, q: ArrayLike) -> Transfer:
    """The bound for a mode posterior `q` (modes,) of the same segment: that of Thm 2 plus `sqrt(ε_q/2)`, at most 1.

    It must hold wherever `found.holds`. `q` may be the filter's or smoother's at the segment's last row, or any other.

    Paper: Thm 2, the variational transfer.
    """
    q = _probabilities(q, len(found.log_posterior), "q")
    divergence = max(0.0, float((xlogy(q, q) - q * found.log_posterior).sum()))
    bound = min(1.0, found.bound + math.sqrt(divergence / 2))
    realised = float(np.delete(q, found.mode).sum())
    return Transfer(divergence, bound, realised, realised <= bound + ROUNDING)


def _separation(mean: np.ndarray, sd: np.ndarray, seen: np.ndarray, mode: int) -> np.ndarray:
    """`a = (μ_m − μ_s) / sd`, (steps, modes, channels); 0 where hidden, which takes no part in the log ratio."""
    return np.where(np.isnan(seen)[:, None], 0.0, (mean[:, mode, None] - mean) / sd[:, None])


def _within(residual: np.ndarray, constants: Constants, delta: float) -> bool:
    """Whether a segment's residuals are within the constants by three tests that together fail with probability ≤ δ.

    The size of all of them (the tail of a sub-Gaussian vector's norm: Hsu, Kakade and Zhang, 2012), the mean of each
    channel and the largest. The constants' bias is granted in full to each.
    """
    known = ~np.isnan(residual)
    count = int(known.sum())
    if not count:
        return True
    bias, proxy = constants
    size = np.sqrt((residual[known] ** 2).sum()) - np.sqrt((known * bias**2).sum())
    t = math.log(3 / delta)
    total = size <= math.sqrt(proxy * (count + 2 * math.sqrt(count * t) + 2 * t))
    seen = known.sum(axis=0)
    used = seen > 0
    drift = np.abs(np.nansum(residual, axis=0)[used]) / seen[used] - bias[used]
    centred = drift <= np.sqrt(2 * proxy * math.log(6 * used.sum() / delta) / seen[used])
    largest = (np.abs(residual) - bias)[known].max()
    return bool(total and centred.all() and largest <= math.sqrt(2 * proxy * math.log(6 * count / delta)))


def _at_most(log_value: float, log_bound: float) -> bool:
    """Whether the value is within the bound, up to rounding (they are equal where nothing separates the modes)."""
    return bool(log_value <= log_bound) or math.isclose(log_value, log_bound, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _largest_variance(sums: np.ndarray, pairs: np.ndarray) -> float:
    """The variance per step in the direction of channels where it is largest, of sums over one or more steps."""
    return float(np.linalg.eigvalsh(sums.T @ sums / pairs)[-1])


def _tail_proxy(residual: np.ndarray, tail: float) -> float:
    """The least `κ` with `2 exp(−t²/2κ)` at least the share of residuals of size t or more, at each of them."""
    sizes = np.sort(np.abs(residual))[::-1]
    share = np.arange(1, len(sizes) + 1) / len(sizes)
    kept = slice(min(int(tail * len(sizes)), len(sizes) - 1), None)
    return float((sizes**2 / (2 * np.log(2 / share)))[kept].max())


def _residual_segments(residuals: Sequence[ArrayLike]) -> list[np.ndarray]:
    """The residuals of every segment, refused unless two or more say something of every channel."""
    segments = [np.asarray(segment, dtype=float) for segment in residuals]
    shapes = [segment.shape for segment in segments]
    if len({shape[1:] for shape in shapes}) != 1 or len(shapes[0]) != 2 or not shapes[0][1]:
        raise ValueError(f"residuals have the shapes {shapes}; expected (steps, channels), the same channels for all.")
    if any(np.isinf(segment).any() for segment in segments):
        raise ValueError("residuals hold infinite values; expected standardised residuals, NaN where hidden.")
    count = sum(not np.isnan(segment).all() for segment in segments)
    if count < 2:
        raise ValueError(f"{count} segments have a residual; expected 2 or more, or the spread of segments is unknown.")
    unknown = np.flatnonzero(np.isnan(np.concatenate(segments)).all(axis=0))
    if unknown.size:
        raise ValueError(f"channels {unknown.tolist()} are hidden in every segment; leave them out.")
    return segments


def _segment(mean: ArrayLike, sd: ArrayLike, seen: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The predictive means and spreads and the observations as arrays that belong together."""
    mean, sd, seen = (np.asarray(values, dtype=float) for values in (mean, sd, seen))
    if mean.ndim != 3 or not mean.shape[1] or not mean.shape[2]:
        raise ValueError(f"mean has the shape {mean.shape}; expected (steps, modes, channels).")
    expected = (mean.shape[0], mean.shape[2])
    for name, values in (("sd", sd), ("seen", seen)):
        if values.shape != expected:
            raise ValueError(f"{name} has the shape {values.shape}; expected {expected}, as mean {mean.shape} has.")
    if not np.isfinite(mean).all() or not (np.isfinite(sd) & (sd > 0)).all() or np.isinf(seen).any():
        raise ValueError("expected finite means, positive finite spreads, and observations finite or NaN where hidden.")
    return mean, sd, seen


def _check_level(mode: int, modes: int, delta: float) -> None:
    if not 0 <= mode < modes:
        raise ValueError(f"the segment's mode is {mode}; expected one of 0 to {modes - 1}, as mean has.")
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; expected a probability strictly between 0 and 1.")


def _constants(constants: Constants | None, channels: int) -> Constants:
    """The constants, or the model's own."""
    if constants is None:
        return Constants(np.zeros(channels), 1.0)
    bias = np.asarray(constants.bias, dtype=float)
    if bias.shape != (channels,) or not (np.isfinite(bias) & (bias >= 0)).all():
        raise ValueError(f"the bias is {bias}; expected {channels} finite values of 0 or more, one for each channel.")
    if not 0 < constants.proxy < math.inf:
        raise ValueError(f"the proxy is {constants.proxy}; expected a positive number, 1 where the model is right.")
    return Constants(bias, float(constants.proxy))


def _prior(prior: ArrayLike, modes: int) -> np.ndarray:
    weights = _probabilities(prior, modes, "the prior")
    if not (weights > 0).all():
        raise ValueError(f"the prior is {weights}; expected no zero, a mode ruled out beforehand is not a candidate.")
    return weights


def _probabilities(values: ArrayLike, modes: int, what: str) -> np.ndarray:
    """The probabilities of the modes, with the rounding of their sum taken off."""
    array = np.asarray(values, dtype=float)
    if array.shape != (modes,):
        raise ValueError(f"{what} has the shape {array.shape}; expected ({modes},), one probability for each mode.")
    if not (array >= 0).all() or abs(array.sum() - 1) > SUM_ERROR:
        raise ValueError(f"{what} is {array}; expected probabilities that sum to 1.")
    return array / array.sum()
