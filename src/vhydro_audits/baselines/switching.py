"""Autoregressive HMMs and switching linear systems: EM around hmmlearn's forward-backward and Viterbi passes.

Both say Δx = W_sᵀ (x, 1, u) + noise_s for every pair of rows, s the mode of the later one. With x the features, that
is the autoregressive HMM. With x latent, y = C x + d + noise seen of it, it is the switching system, fitted by
structured variational EM (Ghahramani and Hinton 2000): q(modes) q(x), each exact given the other. C, d and the
observation noise are shared by the modes. x starts as the principal components that hold 99 % of the variance, q(modes)
as the autoregressive HMM of these. Noise covariances have an inverse Wishart prior worth two rows more than there are
dimensions, at the mean square of Δx: an unused mode falls back to it, and one of constant rows has noise left.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hmmlearn.base import BaseHMM  # pyright: ignore[reportMissingImports] — an extra
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from vhydro.learning.forward_backward import sticky
from vhydro.occlusion import straight_lines

SHORT, LONG = 10, 60  # steps of EM for every start, and for the best of them
STARTS = 2  # of k-means, for each of levels, changes and both together
TOLERANCE = 1e-4  # nats a row, below which EM has settled
STAY = 0.95  # of the modes, to start from
PSEUDO = 0.1  # transitions of every kind that the prior adds
RIDGE = 1e-2  # on W, rows of unit variance: towards x staying as it is
SHARE = 0.99  # of the variance, that the latent state holds to start from
ROUNDS = 20  # of q(x) and q(modes)
SETTLED = 1e-3  # mean change of q(modes) that ends them
NOISE = 1e-3  # least variance of an observation, of a feature's own


def clusters(rows: np.ndarray, modes: int, seed: int) -> KMeans:
    """One start of k-means; of fewer distinct rows than modes it makes fewer clusters, and some modes start empty."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(modes, n_init=1, random_state=seed).fit(rows)  # pyright: ignore[reportArgumentType]


class Chain(BaseHMM):
    """A hidden Markov chain whose rows are the log likelihoods of its modes: only its own probabilities are learnt."""

    def __init__(self, modes: int):
        super().__init__(
            modes, startprob_prior=1 + PSEUDO, transmat_prior=1 + PSEUDO, n_iter=1, params="st", init_params=""
        )
        self.startprob_ = np.full(modes, 1 / modes)
        self.transmat_ = sticky(modes, STAY)

    def _compute_log_likelihood(self, X):
        return X

    def _get_n_fit_scalars_per_param(self):
        return None


class Regression(NamedTuple):
    """Δx in every mode as a Gaussian whose mean is linear in (x, 1, u)."""

    weights: np.ndarray  # (modes, regressors, latent)
    noise: np.ndarray  # (modes, latent, latent)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """The log likelihood of rows (x, 1, u, Δx) in every mode: (rows, modes)."""
        split, out = self.weights.shape[1], np.empty((len(rows), len(self.weights)))
        for k, (weights, noise) in enumerate(zip(*self, strict=True)):
            factor = np.linalg.cholesky(noise)
            white = np.linalg.solve(factor, (rows[:, split:] - rows[:, :split] @ weights).T)
            out[:, k] = -0.5 * (white**2).sum(0) - np.log(np.diag(factor)).sum()
        return out - 0.5 * self.noise.shape[1] * np.log(2 * np.pi)

    def spread_cost(self, spread: np.ndarray) -> np.ndarray:
        """What uncertain rows, of covariance (rows, width, width), add to −log likelihood on average: (rows, modes)."""
        side = np.concatenate([-self.weights, np.broadcast_to(np.eye(self.noise.shape[1]), self.noise.shape)], 1)
        precision = side @ np.linalg.solve(self.noise, side.transpose(0, 2, 1))
        return 0.5 * spread.reshape(len(spread), -1) @ precision.reshape(len(precision), -1).T


class Fit(NamedTuple):
    """A fitted autoregressive HMM."""

    chain: Chain
    regression: Regression
    log_likelihood: float


def pairs(states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Rows (x, 1, u, Δx) of one episode, or of padded ones: one less than there are states."""
    before = states[..., :-1, :]
    return np.concatenate([before, np.ones_like(before[..., :1]), inputs, np.diff(states, axis=-2)], -1)


def fitted_regression(moments: np.ndarray, counts: np.ndarray, usual: np.ndarray) -> Regression:
    """The regression that second moments of rows, (modes, width, width), summed over `counts` rows, call for."""
    split = moments.shape[-1] - len(usual)
    xx, xy, yy = moments[:, :split, :split], moments[:, :split, split:], moments[:, split:, split:]
    weights = np.linalg.solve(xx + RIDGE * np.eye(split), xy)
    rest = yy - weights.transpose(0, 2, 1) @ xy  # with what the ridge cost in it, and so never negative
    prior = len(usual) + 2
    noise = (0.5 * (rest + rest.transpose(0, 2, 1)) + prior * np.diag(usual)) / (counts[:, None, None] + prior)
    return Regression(weights, noise)


def usual_change(rows: np.ndarray, latent: int) -> np.ndarray:
    """The mean square of Δx in rows (x, 1, u, Δx), and a little for what never changes: (latent,)."""
    return np.mean(rows[:, -latent:] ** 2, axis=0) + 1e-6


def fitted_ar(rows: np.ndarray, lengths: list[int], modes: int, latent: int, seed: int) -> Fit:
    """The autoregressive HMM of the start that short EM likes best, fitted to its end."""
    levels, changes = rows[:, :latent], rows[:, -latent:] / np.sqrt(usual_change(rows, latent))
    rng, tried = np.random.default_rng(seed), []
    for features in (levels, changes, np.hstack([levels, changes])) * STARTS:
        labels = clusters(features, modes, int(rng.integers(2**31))).labels_
        tried.append(_em(rows, lengths, np.eye(modes)[labels], Chain(modes), latent, SHORT))
    best = max(tried, key=lambda fit: fit.log_likelihood)
    shares = best.chain.predict_proba(best.regression(rows), lengths)
    return _em(rows, lengths, shares, best.chain, latent, LONG)


def _em(rows: np.ndarray, lengths: list[int], shares: np.ndarray, chain: Chain, latent: int, steps: int) -> Fit:
    usual, reached = usual_change(rows, latent), [-np.inf]
    while True:
        moments = np.stack([(rows * share[:, None]).T @ rows for share in shares.T])
        regression = fitted_regression(moments, shares.sum(0), usual)
        scores = regression(rows)
        shares = chain.fit(scores, lengths).predict_proba(scores, lengths)
        reached.append(float(chain.monitor_.history[-1]))
        if len(reached) > steps or reached[-1] - reached[-2] < TOLERANCE * len(rows):
            return Fit(chain, regression, reached[-1])


class Padded(NamedTuple):
    """Episodes in one array, the shorter ones filled up."""

    seen: np.ndarray  # (episodes, rows, features), straight lines where hidden
    known: np.ndarray  # the same shape, bool
    inputs: np.ndarray  # (episodes, rows − 1, inputs)
    real: np.ndarray  # (episodes, rows) bool

    @property
    def lengths(self) -> list[int]:
        """How many pairs of rows every episode has, those without left out."""
        return [n for n in (self.real.sum(1) - 1).tolist() if n]


class Switching(NamedTuple):
    """A fitted switching linear system."""

    chain: Chain
    regression: Regression
    emission: np.ndarray  # (latent + 1, features): C, and d in the last row
    noise: np.ndarray  # (features,)
    start: tuple[np.ndarray, np.ndarray]  # mean and variance of the first state, (latent,) each


class Belief(NamedTuple):
    """The Gaussian q(x)."""

    means: np.ndarray  # (episodes, rows, latent)
    spreads: np.ndarray  # (episodes, rows, latent, latent)
    cross: np.ndarray  # (episodes, rows − 1, latent, latent): covariance of a row with the next


def padded(seen: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> Padded:
    """Episodes in one array; NaN means hidden."""
    rows = max(2, *(len(s) for s in seen))

    def fill(values: Sequence[np.ndarray], n: int) -> np.ndarray:
        return np.stack([np.pad(v, ((0, n - len(v)), (0, 0))) for v in values])

    known = fill([~np.isnan(s) for s in seen], rows)
    real = np.arange(rows) < np.array([[len(s)] for s in seen])
    return Padded(fill([straight_lines(s) for s in seen], rows), known, fill(inputs, rows - 1), real)


def fitted_switching(data: Padded, modes: int, seed: int) -> Switching:
    """The switching linear system that variational EM reaches from principal components and their AR-HMM."""
    rows = data.seen[data.real]
    centre = rows.mean(0)
    _, sizes, axes = np.linalg.svd(rows - centre, full_matrices=False)
    latent = 1 + int(np.searchsorted(np.cumsum(sizes**2) / np.sum(sizes**2), SHARE - 1e-9))
    latent = min(latent, len(sizes))
    states = (data.seen - centre) @ axes[:latent].T
    rest = rows - centre - states[data.real] @ axes[:latent]
    inner = pairs(states, data.inputs)[data.real[:, 1:]]
    fit = fitted_ar(inner, data.lengths, modes, latent, seed)
    start = states[data.real].mean(0), states[data.real].var(0) + NOISE
    emission = np.vstack([axes[:latent], centre])
    model = Switching(fit.chain, fit.regression, emission, np.mean(rest**2, 0) + NOISE, start)
    usual = usual_change(inner, latent)
    shares = fit.chain.predict_proba(fit.regression(inner), data.lengths)
    for _ in range(ROUNDS):
        belief = smoothed(model, data, shares)
        model = _updated(model, data, belief, shares, usual)
        scores = _expected(model, data, belief)
        model.chain.fit(scores, data.lengths)
        before, shares = shares, model.chain.predict_proba(scores, data.lengths)
        if np.abs(shares - before).mean() < SETTLED:
            break
    return model


def decoded(model: Switching, data: Padded) -> np.ndarray:
    """The most likely mode of every pair of rows, (pairs,), once q(x) and q(modes) agree."""
    states = (data.seen - model.emission[-1]) @ np.linalg.pinv(model.emission[:-1])
    scores = model.regression(pairs(states, data.inputs)[data.real[:, 1:]])
    shares = model.chain.predict_proba(scores, data.lengths)
    for _ in range(ROUNDS):
        scores = _expected(model, data, smoothed(model, data, shares))
        before, shares = shares, model.chain.predict_proba(scores, data.lengths)
        if np.abs(shares - before).mean() < SETTLED:
            break
    return model.chain.predict(scores, data.lengths)


def smoothed(model: Switching, data: Padded, shares: np.ndarray) -> Belief:
    """q(x) given q(modes), (pairs, modes): a block tridiagonal system, solved forwards and back.

    Rows that fill up an episode are tied to nothing, and so change nothing.
    """
    diagonal, linear, links = _information(model, data, shares)
    ahead: list[np.ndarray] = [np.linalg.inv(diagonal[:, 0])]
    towards, rows = [linear[:, 0]], data.real.shape[1]
    for t in range(1, rows):
        gain = links[:, t - 1] @ ahead[-1]
        towards.append(linear[:, t] + _times(gain, towards[-1]))
        ahead.append(np.linalg.inv(diagonal[:, t] - gain @ links[:, t - 1].swapaxes(1, 2)))
    means, spreads, cross = [_times(ahead[-1], towards[-1])], [ahead[-1]], []
    for t in range(rows - 2, -1, -1):
        link = links[:, t].swapaxes(1, 2)
        gain = ahead[t] @ link
        cross.append(gain @ spreads[-1])
        means.append(_times(ahead[t], towards[t] + _times(link, means[-1])))
        spreads.append(ahead[t] + cross[-1] @ gain.swapaxes(1, 2))
    return Belief(*(np.stack(values[::-1], 1) for values in (means, spreads, cross)))


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[..., None])[..., 0]


def _information(model: Switching, data: Padded, shares: np.ndarray):
    """Precision blocks of all x, their linear terms, and minus the blocks that tie a row to the one before."""
    mean, variance = model.start
    weights, latent, inner = model.regression.weights, len(mean), data.real[:, 1:]
    emission, offset = model.emission[:-1], model.emission[-1]
    real = data.real[..., None]
    weight = data.known / model.noise
    diagonal = np.where(real[..., None], (weight[..., None, :] * emission) @ emission.T, np.eye(latent))
    linear = np.where(real, (data.seen - offset) * weight @ emission.T, 0.0)
    diagonal[:, 0] += np.diag(1 / variance)
    linear[:, 0] += mean / variance
    share = np.zeros((*inner.shape, shares.shape[1]))
    share[inner] = shares
    links = np.zeros((*inner.shape, latent, latent))
    for k, precision in enumerate(np.linalg.inv(model.regression.noise)):
        step = np.eye(latent) + weights[k, :latent].T
        drift = (weights[k, latent] + data.inputs @ weights[k, latent + 1 :]) @ precision
        part = share[..., k, None]
        diagonal[:, 1:] += part[..., None] * precision
        diagonal[:, :-1] += part[..., None] * (step.T @ precision @ step)
        links += part[..., None] * (precision @ step)
        linear[:, 1:] += part * drift
        linear[:, :-1] -= part * (drift @ step)
    return diagonal, linear, links


def _spread(data: Padded, belief: Belief) -> np.ndarray:
    """The covariance of every row (x, 1, u, Δx) under q(x): (pairs, width, width)."""
    inner, latent = data.real[:, 1:], belief.means.shape[-1]
    width = 2 * latent + 1 + data.inputs.shape[-1]
    before, after, cross = belief.spreads[:, :-1][inner], belief.spreads[:, 1:][inner], belief.cross[inner]
    out = np.zeros((len(before), width, width))
    out[:, :latent, :latent] = before
    out[:, :latent, -latent:] = cross - before
    out[:, -latent:, :latent] = (cross - before).swapaxes(1, 2)
    out[:, -latent:, -latent:] = after + before - cross - cross.swapaxes(1, 2)
    return out


def _expected(model: Switching, data: Padded, belief: Belief) -> np.ndarray:
    """The mean log likelihood of every pair of rows in every mode, under q(x)."""
    rows = pairs(belief.means, data.inputs)[data.real[:, 1:]]
    return model.regression(rows) - model.regression.spread_cost(_spread(data, belief))


def _updated(model: Switching, data: Padded, belief: Belief, shares: np.ndarray, usual: np.ndarray) -> Switching:
    """The system with the parameters that q(x) and q(modes) call for, its chain as it was."""
    rows, spread = pairs(belief.means, data.inputs)[data.real[:, 1:]], _spread(data, belief)
    moments = np.stack([(rows * share[:, None]).T @ rows + np.tensordot(share, spread, 1) for share in shares.T])
    seen, states = data.seen[data.real], belief.means[data.real]
    states = np.hstack([states, np.ones((len(states), 1))])
    around = np.zeros((states.shape[1],) * 2)
    around[:-1, :-1] = belief.spreads[data.real].sum(0)
    emission = np.linalg.solve(states.T @ states + around + RIDGE * np.eye(len(around)), states.T @ seen)
    missed = np.mean((seen - states @ emission) ** 2, 0) + np.sum(emission * (around @ emission), 0) / len(seen)
    regression = fitted_regression(moments, shares.sum(0), usual)
    return model._replace(regression=regression, emission=emission, noise=np.maximum(missed, NOISE))
