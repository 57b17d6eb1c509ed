"""Peers that cut episodes into modes: HMMs (Gaussian, autoregressive, sticky HDP), switching systems, change points.

All get the same features, one array of rows for every episode, and give one mode for every row of the test episodes.
None sees a label. Features are standardised by the training rows, and those that are constant there are dropped;
without any left there is one mode, as no evidence speaks for more. Starts come from k-means, several of them, scored
by the training likelihood; paths are Viterbi's. The change-point method alone is told something about the truth, the
number of changes in every test episode, and it alone clusters on the test episodes.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from vhydro.learning.forward_backward import sticky
from vhydro_audits.baselines.hdp import MOST, decoded, fitted_hdp

RESTARTS = 6
STEPS = 100  # of EM, at most

Episodes = Sequence[np.ndarray]
Paths = list[np.ndarray]


def gaussian_hmm(train: Episodes, test: Episodes, modes: int, *, seed: int) -> Paths:
    """The paths of hmmlearn's Gaussian HMM with full covariances.

    A covariance has an inverse Wishart prior at the identity, worth two rows more than there are features: rows that
    do not vary within a mode would otherwise have infinite likelihood.
    """
    train, test = _standardised(train, test, modes)
    if _one_mode(train, modes):
        return [np.zeros(len(x), int) for x in test]
    rows, lengths = np.concatenate(train), [len(x) for x in train]
    seeds = np.random.default_rng(seed).integers(2**31, size=RESTARTS).tolist()
    with _alone():
        fits = [_gaussian(rows, modes, start).fit(rows, lengths) for start in seeds]
        best = max(fits, key=lambda fit: fit.score(rows, lengths))
        return [best.predict(x).astype(int) for x in test]


def ar_hmm(
    train: Episodes, test: Episodes, modes: int, *, seed: int, inputs: tuple[Episodes, Episodes] | None = None
) -> Paths:
    """The paths of a linear autoregressive HMM of order 1, x' = A x + b + B u + noise, all four by mode.

    `inputs` are those of the training and the test episodes, one row less than there are features: the last row of
    features has no successor. The first row takes the mode of the second.
    """
    pushed = _standardised_inputs(train, test, inputs)
    train, test = _standardised(train, test, modes)
    if _one_mode(train, modes) or not any(len(x) > 1 for x in train):
        return [np.zeros(len(x), int) for x in test]
    switching = _module("vhydro_audits.baselines.switching", "hmmlearn")
    inner = [switching.pairs(x, u) for x, u in zip(train, pushed[0], strict=True) if len(x) > 1]
    rows, lengths = np.concatenate(inner), [len(x) for x in inner]
    _enough(len(rows), modes, "pairs of rows")
    with _alone():
        fit = switching.fitted_ar(rows, lengths, modes, train[0].shape[1], seed)
        found = [
            fit.chain.predict(fit.regression(switching.pairs(x, u)))
            for x, u in zip(test, pushed[1], strict=True)
            if len(x) > 1
        ]
    return _with_first_rows(np.concatenate([*found, np.zeros(0, int)]), test, fit.chain.startprob_)


def hdp_hmm(train: Episodes, test: Episodes, *, seed: int, inputs: tuple[Episodes, Episodes] | None = None) -> Paths:
    """The paths of a sticky HDP-AR-HMM, which finds its own number of modes; how, `hdp.py` says.

    `inputs` and the first row are as in `ar_hmm`.
    """
    pushed = _standardised_inputs(train, test, inputs)
    train, test = _standardised(train, test, 1)
    inner = [_steps(x, u) for x, u in zip(train, pushed[0], strict=True) if len(x) > 1]
    if not train[0].shape[1] or sum(len(rows) for _, rows in inner) <= MOST:
        return [np.zeros(len(x), int) for x in test]
    with _alone():
        draw = fitted_hdp(inner, seed)
        found = [decoded(draw, *_steps(x, u)) for x, u in zip(test, pushed[1], strict=True) if len(x) > 1]
    return _with_first_rows(np.concatenate([*found, np.zeros(0, int)]), test, np.exp(draw.log_start))


def _steps(rows: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What every row but the first follows, and those rows."""
    return np.concatenate([rows[:-1], inputs, np.ones((len(rows) - 1, 1))], 1), rows[1:]


def slds(
    train: Episodes, test: Episodes, modes: int, *, seed: int, inputs: tuple[Episodes, Episodes] | None = None
) -> Paths:
    """The paths of a switching linear system: x' = A x + b + B u + noise by mode, features a noisy image of x.

    `inputs` and the first row are as in `ar_hmm`; how it is fitted, `switching.py` says. Features of the test episodes
    may be NaN where they are hidden: the system infers them.
    """
    pushed = _standardised_inputs(train, test, inputs)
    train, test = _standardised(train, test, modes, gaps=True)
    if _one_mode(train, modes) or not any(len(x) > 1 for x in train):
        return [np.zeros(len(x), int) for x in test]
    switching = _module("vhydro_audits.baselines.switching", "hmmlearn")
    data = switching.padded(train, pushed[0])
    _enough(sum(data.lengths), modes, "pairs of rows")
    with _alone():
        model = switching.fitted_switching(data, modes, seed)
        unseen = switching.padded(test, pushed[1])
        found = switching.decoded(model, unseen) if unseen.lengths else np.zeros(0, int)
    return _with_first_rows(found, test, model.chain.startprob_)


def changes(
    train: Episodes,
    test: Episodes,
    modes: int,
    counts: Sequence[int] | None,
    *,
    seed: int,
    penalty: float | None = None,
) -> Paths:
    """The paths of ruptures: exact kernel change points (rbf, median bandwidth), their segments clustered into modes.

    `counts` is the true number of changes of every test episode; with `counts=None` a `penalty` decides it instead
    (PELT). Segments become modes by k-means on the means of the TEST segments, weighted by their lengths; neighbours
    get different modes, so that every change shows in the path.
    """
    _refuse_counts(test, counts, penalty)
    train, test = _standardised(train, test, modes)
    if _one_mode(train, modes):
        return [np.zeros(len(x), int) for x in test]
    peer = _module("ruptures", "ruptures")
    asked = [None] * len(test) if counts is None else counts
    ends = [_ends(peer, x, count, penalty) for x, count in zip(test, asked, strict=True)]
    spans = [np.diff(stops, prepend=0) for stops in ends]
    means = [np.add.reduceat(x, [0, *e[:-1]]) / n[:, None] for x, e, n in zip(test, ends, spans, strict=True)]
    distinct = len(np.unique(np.concatenate(means).round(9), axis=0))  # means of equal rows differ by rounding
    clusters = KMeans(min(modes, distinct), n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    with _alone():
        clusters.fit(np.concatenate(means), sample_weight=np.concatenate(spans))
    costs = [n[:, None] * clusters.transform(m) ** 2 for m, n in zip(means, spans, strict=True)]
    return [np.repeat(_differing(cost), n) for cost, n in zip(costs, spans, strict=True)]


def _gaussian(rows: np.ndarray, modes: int, seed: int) -> Any:
    """hmmlearn's model, its means those of k-means, its covariances that of the rows around them."""
    hmm, switching = _module("hmmlearn.hmm", "hmmlearn"), _module("vhydro_audits.baselines.switching", "hmmlearn")
    width, clusters = rows.shape[1], switching.clusters(rows, modes, seed)
    around = np.cov(rows - clusters.cluster_centers_[clusters.labels_], rowvar=False).reshape(width, width)
    model = hmm.GaussianHMM(
        modes,
        "full",
        means_weight=1e-2,  # an unused mode would otherwise have no mean at all
        covars_prior=(width + 2) * np.eye(width),
        covars_weight=2 * width + 2,  # hmmlearn takes off the width
        startprob_prior=1 + switching.PSEUDO,
        transmat_prior=1 + switching.PSEUDO,
        n_iter=STEPS,
        tol=switching.TOLERANCE * len(rows),
        init_params="",
    )
    model.startprob_, model.transmat_ = np.full(modes, 1 / modes), sticky(modes, switching.STAY)
    model.n_features, model.means_ = width, clusters.cluster_centers_
    model.covars_ = np.tile(around + 1e-2 * np.eye(width), (modes, 1, 1))
    return model


def _ends(peer: Any, rows: np.ndarray, count: int | None, penalty: float | None) -> np.ndarray:
    """Where the segments of one episode end."""
    if count == 0 or len(rows) < 2:
        return np.array([len(rows)])
    return np.array(peer.KernelCPD(kernel="rbf", min_size=1, jump=1).fit(rows).predict(n_bkps=count, pen=penalty))


def _differing(costs: np.ndarray) -> np.ndarray:
    """The cheapest modes of segments, costs (segments, modes), no two neighbours alike where there is a choice."""
    again = np.diag(np.full(costs.shape[1], np.inf if costs.shape[1] > 1 else 0.0))
    total, back = costs[0], []
    for cost in costs[1:]:
        reached = total[:, None] + again
        back.append(reached.argmin(0))
        total = reached.min(0) + cost
    path = [int(total.argmin())]
    for choice in reversed(back):
        path.append(int(choice[path[-1]]))
    return np.array(path[::-1])


def _with_first_rows(found: np.ndarray, test: Episodes, start: np.ndarray) -> Paths:
    """Modes of pairs of rows, of all episodes in a row, as paths: the first row takes the mode of the second."""
    pieces = np.split(found.astype(int), np.cumsum([len(x) - 1 for x in test])[:-1])
    return [np.concatenate([p[:1] if len(p) else [int(start.argmax())], p]) for p in pieces]


def _standardised(
    train: Episodes, test: Episodes, modes: int, *, gaps: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Both with mean 0 and variance 1 over the training rows, without features that are constant there."""
    if modes < 1:
        raise ValueError(f"{modes} modes were asked for; expected at least 1. Ask for one or more.")
    _refuse_episodes(train, test, "features", least=1, gaps=gaps)
    rows = np.concatenate(train)
    _enough(len(rows), modes, "rows")
    return _scaled(rows, train), _scaled(rows, test)


def _standardised_inputs(train: Episodes, test: Episodes, inputs: tuple[Episodes, Episodes] | None):
    """Inputs of training and test episodes as `_standardised` makes features; of no width where there are none."""
    if inputs is None:
        return tuple([np.zeros((max(len(x) - 1, 0), 0)) for x in episodes] for episodes in (train, test))
    _refuse_episodes(*inputs, "inputs", least=0)
    for kind, episodes, given in (("training", train, inputs[0]), ("test", test, inputs[1])):
        found, expected = [len(u) for u in given], [len(x) - 1 for x in episodes]
        if found != expected:
            raise ValueError(
                f"inputs of the {kind} episodes have {found} rows; expected {expected}, one less than the features. "
                "Give the inputs that lead from each row to the next."
            )
    rows = np.concatenate(inputs[0])
    return tuple(_scaled(rows, given) if len(rows) else [u[:, :0] for u in given] for given in inputs)


def _scaled(rows: np.ndarray, episodes: Episodes) -> list[np.ndarray]:
    mean, scale = rows.mean(0), rows.std(0)
    varies = scale > 1e-9 * np.maximum(1.0, np.abs(mean))  # what rounding leaves of a constant is not a feature
    return [(np.asarray(x, float)[:, varies] - mean[varies]) / scale[varies] for x in episodes]


def _one_mode(train: Episodes, modes: int) -> bool:
    return modes == 1 or not train[0].shape[1]


def _enough(found: int, modes: int, what: str) -> None:
    if found < modes:
        raise ValueError(f"the training episodes have {found} {what}; expected at least {modes}, one for every mode.")


def _refuse_episodes(train: Episodes, test: Episodes, what: str, least: int, *, gaps: bool = False) -> None:
    """Raises unless all arrays are (rows, width) of one width, with at least so many rows, and finite.

    With `gaps` the test episodes may hold NaN.
    """
    if not len(train) or not len(test):
        raise ValueError(f"{len(train)} training and {len(test)} test episodes were given; expected some of each.")
    width = np.shape(train[0])[-1:]
    for kind, episodes in (("training", train), ("test", test)):
        for i, x in enumerate(episodes):
            if x.ndim != 2 or x.shape[1:] != width or len(x) < least:
                raise ValueError(
                    f"{what} of {kind} episode {i} have shape {x.shape}; expected (rows, {width[0]}) as in the first "
                    f"training episode, with at least {least} rows."
                )
            allowed = np.isnan(x) if gaps and kind == "test" else np.zeros(x.shape, bool)
            if bad := np.count_nonzero(~np.isfinite(x) & ~allowed):
                raise ValueError(
                    f"{what} of {kind} episode {i} have {bad} values that are not finite; expected none. "
                    "Fill hidden values first."
                )


def _refuse_counts(test: Episodes, counts: Sequence[int] | None, penalty: float | None) -> None:
    """Raises unless either a feasible number of changes for every test episode or a penalty is given."""
    if (counts is None) == (penalty is None):
        raise ValueError("both or neither of counts and penalty were given; expected one. Leave the other None.")
    if penalty is not None and not penalty > 0:
        raise ValueError(f"penalty is {penalty}; expected a positive number.")
    if counts is not None and len(counts) != len(test):
        raise ValueError(f"{len(counts)} counts of changes were given; expected {len(test)}, one a test episode.")
    for i, count in enumerate(counts or ()):
        if not 0 <= count < len(test[i]):
            raise ValueError(
                f"{count} changes were asked for in test episode {i}; expected 0 to {len(test[i]) - 1}, as it has "
                f"{len(test[i])} rows."
            )


def _module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as missing:
        raise ValueError(
            f"{package} is not installed; expected it for this peer. Run `pip install 'vhydro[peers]'`."
        ) from missing


@contextmanager
def _alone() -> Iterator[None]:
    """One thread, as the matrices are small and waiting for a second takes longer, and hmmlearn's log below errors
    silenced: a start that stops improving is only one of several."""
    log = logging.getLogger("hmmlearn")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with threadpool_limits(1):
            yield
    finally:
        log.setLevel(before)
