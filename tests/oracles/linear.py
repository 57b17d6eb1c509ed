"""Exact answers for linear Gaussian systems, with one mode (Kalman) or several (every mode path enumerated).

    s_0 ~ start_prob,       z_0 | s_0 ~ N(start_mean[s_0], start_cov[s_0]),       y_t = C z_t + c + N(0, R),
    s_{t+1} ~ table[s_t],   z_{t+1} = F[s_{t+1}] z_t + f[s_{t+1}] + N(0, Q[s_{t+1}]).

`Y` has shape (T+1, channels), its first row is emitted by z_0, and a NaN entry is hidden. Predicted
covariances and R must be invertible. A belief may have leading axes: a whole level of the tree of mode paths
moves in one call.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax


class System(NamedTuple):
    """A switching linear system of M modes, in the order that `switching_posterior(*system, Y)` takes."""

    start_prob: np.ndarray  # (M,)
    start_mean: np.ndarray  # (M, d)
    start_cov: np.ndarray  # (M, d, d)
    table: np.ndarray  # (M, M), each row sums to 1
    F: np.ndarray  # (M, d, d)
    f: np.ndarray  # (M, d)
    Q: np.ndarray  # (M, d, d)
    C: np.ndarray  # (channels, d)
    c: np.ndarray  # (channels,)
    R: np.ndarray  # (channels, channels)


class Filtered(NamedTuple):
    """`log p(y_{0:T})` with the mean and covariance of z_t given y_{0:t}, for all t."""

    log_evidence: float
    mean: np.ndarray  # (T+1, d)
    cov: np.ndarray  # (T+1, d, d)


class SwitchingPosterior(NamedTuple):
    """Evidence, mode laws and state means at every t, given y_{0:t} (filtered) or y_{0:T} (smoothed)."""

    log_evidence: float
    filtered_mode: np.ndarray  # (T+1, M)
    filtered_mean: np.ndarray  # (T+1, d)
    smoothed_mode: np.ndarray  # (T+1, M)
    smoothed_mean: np.ndarray  # (T+1, d)


class Belief(NamedTuple):
    """z_t given a mode path and y_{0:t}, with `log p(path, y_{0:t})`."""

    mean: np.ndarray  # (..., d)
    cov: np.ndarray  # (..., d, d)
    log_joint: np.ndarray  # (...)


def _transposed(matrix):
    return np.swapaxes(matrix, -1, -2)


def _applied(matrix, vector):
    return (matrix @ vector[..., None])[..., 0]


def gaussian_log_density(residual, cov):
    """The log density of a residual (..., k) under the centred Gaussian of this covariance (..., k, k)."""
    distance = (residual * _applied(np.linalg.inv(cov), residual)).sum(-1)
    return -0.5 * (distance + np.linalg.slogdet(cov)[1] + residual.shape[-1] * np.log(2 * np.pi))


def predicted(belief: Belief, F, f, Q) -> Belief:
    """The belief about z_{t+1} before y_{t+1}."""
    return belief._replace(mean=_applied(F, belief.mean) + f, cov=F @ belief.cov @ _transposed(F) + Q)


def conditioned(belief: Belief, C, c, R, y) -> Belief:
    """The belief about z_t after the channels of y that are not NaN."""
    seen = ~np.isnan(y)
    C, R = C[seen], R[np.ix_(seen, seen)]
    error = y[seen] - c[seen] - belief.mean @ C.T
    spread = C @ belief.cov @ C.T + R
    gain = _transposed(np.linalg.solve(spread, C @ belief.cov))
    keep = np.eye(belief.mean.shape[-1]) - gain @ C
    return Belief(
        belief.mean + _applied(gain, error),
        keep @ belief.cov @ _transposed(keep) + gain @ R @ _transposed(gain),
        belief.log_joint + gaussian_log_density(error, spread),
    )


def kalman_filtered(F, f, Q, C, c, R, m0, P0, Y) -> Filtered:
    """The exact filter of one linear Gaussian path.

    F, f and Q are fixed, or sequences of T whose entry t leads from z_t to z_{t+1}: a clamped mode path.
    """
    steps, d = len(Y) - 1, len(m0)
    F, Q = np.broadcast_to(F, (steps, d, d)), np.broadcast_to(Q, (steps, d, d))
    f = np.broadcast_to(f, (steps, d))
    beliefs = [conditioned(Belief(m0, P0, np.zeros(())), C, c, R, Y[0])]
    for t in range(steps):
        beliefs.append(conditioned(predicted(beliefs[-1], F[t], f[t], Q[t]), C, c, R, Y[t + 1]))
    mean, cov = np.stack([b.mean for b in beliefs]), np.stack([b.cov for b in beliefs])
    return Filtered(float(beliefs[-1].log_joint), mean, cov)


def kalman_log_evidence(F, f, Q, C, c, R, m0, P0, Y) -> float:
    """The exact `log p(y_{0:T})`; F, f and Q may be sequences, as in `kalman_filtered`."""
    return kalman_filtered(F, f, Q, C, c, R, m0, P0, Y).log_evidence


def _log(prob):
    with np.errstate(divide="ignore"):
        return np.log(prob)


def _branched(level: Belief, system: System) -> Belief:
    """The predicted beliefs of paths one mode longer: path i continues path i // M and ends in mode i % M."""
    modes, paths = len(system.start_prob), len(level.mean)
    F, f, Q = (np.concatenate([each] * paths) for each in (system.F, system.f, system.Q))
    longer = Belief(*(each.repeat(modes, axis=0) for each in level))
    moves = np.tile(_log(system.table).ravel(), paths // modes)
    return predicted(longer._replace(log_joint=longer.log_joint + moves), F, f, Q)


def _tree(system: System, Y) -> tuple[list[Belief], list[Belief]]:
    """The beliefs of all M^(t+1) paths at every t, before and after y_t."""
    sensor = system.C, system.c, system.R
    priors = [Belief(system.start_mean, system.start_cov, _log(system.start_prob))]
    levels = [conditioned(priors[0], *sensor, Y[0])]
    for y in Y[1:]:
        priors.append(_branched(levels[-1], system))
        levels.append(conditioned(priors[-1], *sensor, y))
    return priors, levels


def _smoothed_means(priors: list[Belief], levels: list[Belief], F) -> list[np.ndarray]:
    """The mean of z_t given y_{0:T} and each full path, for all t: Rauch–Tung–Striebel along every path."""
    modes, (leaves, d) = len(F), levels[-1].mean.shape
    means = [levels[-1].mean]
    for prior, level in zip(reversed(priors[1:]), reversed(levels[:-1]), strict=True):
        parent_mean, parent_cov = level.mean.repeat(modes, axis=0), level.cov.repeat(modes, axis=0)
        step = np.concatenate([F] * len(level.mean))
        gain = _transposed(np.linalg.solve(prior.cov, step @ parent_cov))
        surprise = means[0].reshape(len(prior.mean), -1, d) - prior.mean[:, None]
        earlier = parent_mean[:, None] + surprise @ _transposed(gain)
        means.insert(0, earlier.reshape(leaves, d))
    return means


def switching_posterior(start_prob, start_mean, start_cov, table, F, f, Q, C, c, R, Y) -> SwitchingPosterior:
    """The exact evidence, mode laws and state means of a switching system, over all M^(T+1) mode paths."""
    system, modes = System(start_prob, start_mean, start_cov, table, F, f, Q, C, c, R), len(start_prob)
    priors, levels = _tree(system, Y)
    weights = [softmax(level.log_joint) for level in levels]
    smoothed = _smoothed_means(priors, levels, F)
    return SwitchingPosterior(
        float(logsumexp(levels[-1].log_joint)),
        np.stack([weight.reshape(-1, modes).sum(0) for weight in weights]),
        np.stack([weight @ level.mean for weight, level in zip(weights, levels, strict=True)]),
        np.stack([weights[-1].reshape(modes**t, modes, -1).sum((0, 2)) for t in range(len(Y))]),
        np.stack([weights[-1] @ mean for mean in smoothed]),
    )


def switching_log_evidence(start_prob, start_mean, start_cov, table, F, f, Q, C, c, R, Y) -> float:
    """The exact `log p(y_{0:T})` of a switching system, by enumeration of all M^(T+1) mode paths."""
    _, levels = _tree(System(start_prob, start_mean, start_cov, table, F, f, Q, C, c, R), Y)
    return float(logsumexp(levels[-1].log_joint))


def _random_cov(rng, count: int, d: int, size: float) -> np.ndarray:
    """Full covariances (count, d, d) whose standard deviations are near `size`."""
    factor = np.eye(d) + 0.3 * rng.standard_normal((count, d, d))
    return size**2 * (factor @ _transposed(factor) + 0.1 * np.eye(d))


def _random_stable(rng, count: int, d: int) -> np.ndarray:
    """Matrices (count, d, d) of spectral radius between 0.6 and 0.95."""
    matrix = np.eye(d) + 0.5 * rng.standard_normal((count, d, d))
    radius = np.abs(np.linalg.eigvals(matrix)).max(-1)
    return matrix * (rng.uniform(0.6, 0.95, count) / radius)[:, None, None]


def random_system(rng: np.random.Generator, modes: int, latent: int, channels: int) -> System:
    """A stable system with sticky modes that push apart, unit-sized states and independent channel noise."""
    sticky = 0.7 * np.eye(modes) + 0.3 * rng.dirichlet(np.ones(modes), modes)
    return System(
        start_prob=rng.dirichlet(3 * np.ones(modes)),
        start_mean=rng.standard_normal((modes, latent)),
        start_cov=_random_cov(rng, modes, latent, 0.7),
        table=sticky,
        F=_random_stable(rng, modes, latent),
        f=0.5 * rng.standard_normal((modes, latent)),
        Q=_random_cov(rng, modes, latent, 0.3),
        C=rng.standard_normal((channels, latent)),
        c=0.5 * rng.standard_normal(channels),
        R=np.diag(rng.uniform(0.2, 0.6, channels) ** 2),
    )


def simulate(system: System, steps: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The modes (steps+1,), states (steps+1, d) and observations (steps+1, channels) of one episode."""
    modes = [rng.choice(len(system.start_prob), p=system.start_prob)]
    states = [rng.multivariate_normal(system.start_mean[modes[0]], system.start_cov[modes[0]])]
    for _ in range(steps):
        s = rng.choice(len(system.start_prob), p=system.table[modes[-1]])
        modes.append(s)
        states.append(rng.multivariate_normal(system.F[s] @ states[-1] + system.f[s], system.Q[s]))
    z = np.stack(states)
    noise = rng.multivariate_normal(np.zeros(len(system.c)), system.R, steps + 1)
    return np.array(modes), z, z @ system.C.T + system.c + noise


def hide(Y: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A copy of Y in which each entry is NaN with probability `share`."""
    return np.where(rng.random(Y.shape) < share, np.nan, Y)
