"""A sticky HDP-AR-HMM: a Bayesian segmenter that finds its own number of modes.

Fox, Sudderth, Jordan & Willsky, "A sticky HDP-HMM with application to speaker diarization" (2011) and "Bayesian
nonparametric inference of switching dynamic linear models" (2011): the weak limit with at most `MOST` modes, blocked
Gibbs sampling, and matrix normal inverse Wishart priors of their empirical scale. Hyperparameters are fixed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import invwishart

MOST = 10  # modes
SWEEPS = 60  # of Gibbs sampling; the likeliest of the second half is kept
GAMMA, ALPHA, KAPPA = 2.0, 2.0, 100.0  # concentration of all modes, of a mode's transitions, and its stickiness
SCALE = 0.75  # of the covariance of steps, in the prior of a mode's noise


class Draw(NamedTuple):
    """One sweep's chain and dynamics."""

    log_start: np.ndarray  # (modes,)
    log_moves: np.ndarray  # (modes, modes)
    matrix: np.ndarray  # (modes, width, terms)
    factor: np.ndarray  # (modes, width, width): the Cholesky factor of a mode's noise


def fitted_hdp(steps: Sequence[tuple[np.ndarray, np.ndarray]], seed: int) -> Draw:
    """The likeliest draw. `steps` are, of every episode, what each row follows (rows, terms) and the rows."""
    random = np.random.default_rng(seed)
    given, rows = (np.concatenate([pair[i] for pair in steps]) for i in (0, 1))
    ends = np.cumsum([len(pair[0]) for pair in steps])
    width, terms = rows.shape[1], given.shape[1]
    middle = np.zeros((width, terms))
    middle[:, :width] = np.eye(width)
    scatter = SCALE * np.cov((rows - given[:, :width]).T).reshape(width, width) + 1e-6 * np.eye(width)
    path = _first_path(rows - given[:, :width], ends, random)
    share = np.full(MOST, 1 / MOST)
    best, most = None, -np.inf
    for sweep in range(SWEEPS):
        counts, starts = _transitions(path, ends)
        share = _share(counts, starts, share, random)
        moves = np.stack(
            [random.dirichlet(ALPHA * share + KAPPA * (np.arange(MOST) == k) + counts[k]) for k in range(MOST)]
        )
        start = random.dirichlet(ALPHA * share + starts)
        dynamics = [_dynamics(given[path == k], rows[path == k], middle, scatter, random) for k in range(MOST)]
        matrix, factor = (np.stack(part) for part in zip(*dynamics, strict=True))
        draw = Draw(np.log(np.maximum(start, 1e-300)), np.log(np.maximum(moves, 1e-300)), matrix, factor)
        path, value = _sampled_path(draw, given, rows, ends, random)
        if sweep >= SWEEPS // 2 and value > most:
            best, most = draw, value
    assert best is not None
    return best


def decoded(draw: Draw, given: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The likeliest modes of one episode's rows."""
    likely, value, back = _log_likelihood(draw, given, rows), draw.log_start, []
    for n, row in enumerate(likely):
        if n:
            reached = value[:, None] + draw.log_moves
            back.append(reached.argmax(0))
            value = reached.max(0)
        value = value + row
    path = [int(value.argmax())]
    for choice in reversed(back):
        path.append(int(choice[path[-1]]))
    return np.array(path[::-1])


def _first_path(steps: np.ndarray, ends: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Modes by clusters of steps in windows of a few rows."""
    from sklearn.cluster import KMeans

    window = 5
    groups = np.concatenate([np.arange(n) // window for n in np.diff(ends, prepend=0)])
    number = np.cumsum(np.concatenate([[0], np.diff(groups) != 0]))
    means = np.stack([np.bincount(number, steps[:, i]) for i in range(steps.shape[1])], 1)
    means /= np.bincount(number)[:, None]
    kinds = min(MOST, len(np.unique(means, axis=0)))
    found = KMeans(kinds, n_init=1, random_state=int(random.integers(2**31))).fit(means)  # pyright: ignore[reportArgumentType]
    return np.asarray(found.labels_)[number]


def _transitions(path: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.zeros((MOST, MOST))
    inner = np.ones(len(path), bool)
    firsts = np.concatenate([[0], ends[:-1]])
    inner[firsts] = False
    np.add.at(counts, (path[:-1][inner[1:]], path[1:][inner[1:]]), 1)
    return counts, np.bincount(path[firsts], minlength=MOST).astype(float)


def _share(counts: np.ndarray, starts: np.ndarray, share: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The global weights, by the tables of the Chinese restaurant franchise and the overrides of sticky dishes."""
    tables = np.zeros((MOST + 1, MOST))
    for j in range(MOST + 1):
        for k in range(MOST):
            customers = int(starts[k] if j == MOST else counts[j, k])
            if not customers:
                continue
            weight = ALPHA * share[k] + (KAPPA if j == k else 0.0)
            tables[j, k] = (random.random(customers) < weight / (weight + np.arange(customers))).sum()
    for k in range(MOST):
        sticky = KAPPA / (KAPPA + ALPHA * share[k])
        tables[k, k] -= random.binomial(int(tables[k, k]), sticky)
    return random.dirichlet(GAMMA / MOST + tables.sum(0))


def _dynamics(given, rows, middle, scatter, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A draw of a mode's matrix and of the Cholesky factor of its noise, given its rows."""
    width, terms = middle.shape
    precision = np.eye(terms) + given.T @ given
    cross = middle + rows.T @ given
    mean = np.linalg.solve(precision, cross.T).T
    left = scatter + middle @ middle.T + rows.T @ rows - mean @ cross.T
    noise = np.atleast_2d(invwishart.rvs(width + 2 + len(rows), 0.5 * (left + left.T), random_state=random))
    factor = np.linalg.cholesky(noise + 1e-12 * np.eye(width))
    root = np.linalg.cholesky(np.linalg.inv(precision) + 1e-12 * np.eye(terms))
    return mean + factor @ random.normal(size=(width, terms)) @ root.T, factor


def _log_likelihood(draw: Draw, given: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(rows, modes)."""
    out = []
    for matrix, factor in zip(draw.matrix, draw.factor, strict=True):
        error = np.linalg.solve(factor, (rows - given @ matrix.T).T)
        out.append(-0.5 * (error**2).sum(0) - np.log(np.diagonal(factor)).sum())
    return np.stack(out, 1)


def _sampled_path(draw: Draw, given, rows, ends, random: np.random.Generator) -> tuple[np.ndarray, float]:
    """A path of every episode given the draw, and the log likelihood of all rows; episodes side by side."""
    likely = _log_likelihood(draw, given, rows)
    lengths = np.diff(ends, prepend=0)
    firsts, longest = ends - lengths, int(lengths.max())
    padded = np.zeros((len(ends), longest, MOST))
    for i, (first, n) in enumerate(zip(firsts, lengths, strict=True)):
        padded[i, :n] = likely[first : first + n]
    ahead = np.zeros((len(ends), longest, MOST))  # log probability of the rows after each
    for n in range(longest - 2, -1, -1):
        later = padded[:, n + 1] + ahead[:, n + 1]
        reached = np.asarray(logsumexp(draw.log_moves[None] + later[:, None], axis=2))
        ahead[:, n] = np.where((n + 1 < lengths)[:, None], reached, 0.0)
    log_now = draw.log_start + padded[:, 0] + ahead[:, 0]
    total = float(np.sum(np.asarray(logsumexp(log_now, axis=1))))
    path = np.zeros((len(ends), longest), int)
    for n in range(longest):
        if n:
            log_now = draw.log_moves[path[:, n - 1]] + padded[:, n] + ahead[:, n]
        path[:, n] = (log_now + random.gumbel(size=log_now.shape)).argmax(1)
    return np.concatenate([own[:n] for own, n in zip(path, lengths, strict=True)]), total
