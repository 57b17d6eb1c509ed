"""PySINDy as a peer for law recovery: it gets our data, our modes (or none), our candidate terms, our knowledge.

What it is given. State (q, v) and input a, v the velocity less what the port adds to it: `q̇ = v + G_q a` is known,
v̇ is fitted, one regression for each mode and coordinate. Hidden positions are interpolated (PCHIP); smoothing and
differentiation are PySINDy's `SmoothedFiniteDifference`, over whole episodes or inside each segment of one mode. At
a sample where the held input changes it sees the mean of both. Its columns are those a Hamiltonian gives: for every
energy term θ the part of `−∂θ/∂q + d/dt ∂θ/∂v` that the state decides, v (damping), and the inputs that the port
lets act. The acceleration's part of `d/dt ∂θ/∂v` is left out, since it is the target itself; p⁴ and p₀p₁ then have
no column and cannot be found, which spares the peer wrong terms wherever the truth does not hold them.

What it chooses. Smoothing window, whole episodes or segments (in the weak form: the test functions' length) and
threshold come from a grid, by the error of v̇ on held-out episodes, never from the truth. Among settings that differ
from the best by no more than a standard error, or by next to nothing, the sparsest is kept and refitted to all
episodes. The ensemble takes the window that plain STLSQ chose.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.library import Term
from vhydro_audits.baselines.sindy_law import PeerLaw, Row, Source, columns, peer_law, sources_of
from vhydro_audits.baselines.sindy_motion import CLEAR, WINDOWS, Motion, Track, runs, smoothed_motion

REFERENCE = 9  # samples: the window whose derivative all settings are judged by
THRESHOLDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of a term's share in the norm of v̇
RIDGE = 1e-3  # on columns of norm 1
LENGTHS = (9, 13, 25, 51)  # samples, of the weak form's test functions
TESTS = 2  # test functions in a stretch of that length
MODELS = 20  # in an ensemble
DRAWN = 1000  # rows for each of them, at most
LOSS = 3e-4  # of v̇'s mean square, that a sparser setting may cost on held-out episodes
FEWEST = 6  # of the shortest stretches a method can use, that it needs of a mode
HELD_OUT = 0.25  # of the episodes in which a mode occurs

Method = Literal["stlsq", "ensemble", "weak"]


class Setting(NamedTuple):
    """One way to make rows for the regression."""

    window: int  # index into WINDOWS
    cut: bool = False
    length: int = 0  # of test functions, in samples; 0 for the derivative form


def sindy(
    recording: Recording,
    problem: Problem,
    contacts: tuple[tuple[Term, ...], ...],
    method: Method,
    *,
    modes: bool,
    seed: int,
) -> PeerLaw:
    """The law PySINDy finds, mode by mode, or with `modes=False` one law for all samples, without contact terms."""
    _refuse(recording, problem, contacts, method)
    peer = _pysindy()
    count, n = len(problem.modes), problem.positions
    motion = smoothed_motion(peer, recording, problem, modes, cut=modes and method != "weak")
    rows: list[list[Row] | None] = []
    notes: list[str] = []
    with _seeded(seed):
        for mode in range(count if modes else 1):
            terms = (*problem.library, *contacts[mode]) if modes else problem.library
            sources = [sources_of(problem, terms, i) for i in range(n)]
            held_out, why = _held_out(motion, mode, method, seed)
            name = problem.modes[mode] if modes else "all samples"
            notes += [f"{name}: not fitted, {why}"] if why else []
            fit = partial(_fitted, peer, motion, mode, held_out, method)
            found = [] if why else [fit(s, i) for i, s in enumerate(sources)]
            rows.append([Row(s, c) for s, c in zip(sources, found, strict=True)] if found else None)
    return peer_law(problem, rows if modes else rows * count, notes)


def _refuse(recording: Recording, problem: Problem, contacts: tuple, method: str) -> None:
    """Raises if the arguments do not belong together."""
    n, names = problem.positions, ("stlsq", "ensemble", "weak")
    if method not in names:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(names)}. Name one of them.")
    widths = (recording.positions.shape[-1], recording.actions.shape[-1], recording.modes.shape[-1], len(contacts))
    expected = (n, len(problem.inputs), len(problem.modes), len(problem.modes))
    if widths != expected:
        raise ValueError(
            f"the recording and contacts have (positions, inputs, modes, contacts) {widths}; the problem expects "
            f"{expected}. Give the problem that belongs to the recording, and contact terms for every mode."
        )
    if np.isnan(problem.port[:n]).any():
        raise ValueError(
            "the port is unknown in a position's row; expected numbers there, since only v̇ is fitted. "
            "Put 0 where an input does not move the position directly."
        )
    if recording.positions.shape[1] <= max(WINDOWS):
        raise ValueError(
            f"episodes have {recording.positions.shape[1]} samples; expected more than {max(WINDOWS)}, the longest "
            "smoothing window. Record longer episodes."
        )


def _pysindy():
    try:
        import pysindy  # pyright: ignore[reportMissingImports] — an extra
    except ImportError as missing:
        raise ValueError(
            "PySINDy is not installed; expected it for this peer. Run `pip install 'vhydro[peers]'`."
        ) from missing
    return pysindy


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """PySINDy draws from NumPy's global generator: seeded here, and put back as it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _held_out(motion: Motion, mode: int, method: Method, seed: int) -> tuple[np.ndarray, str]:
    """Which episodes judge a mode's settings, (episodes,) bool; and why it cannot be fitted, or nothing."""
    here = motion.labels == mode
    shortest = min(LENGTHS) if method == "weak" else 2 * CLEAR + 1
    long = [(e, stop - start) for e, start, stop in runs(np.where(here, 0, -1)) if stop - start >= shortest]
    samples, holders = sum(length for _, length in long), np.unique([e for e, _ in long]).astype(int)
    drawn = np.random.default_rng(seed).permutation(holders)[: max(1, round(HELD_OUT * len(holders)))]
    left = sum(length for e, length in long if e not in drawn)
    why = (
        f"it has {samples} samples in stretches of at least {shortest}, {left} of them outside the episodes held out; "
        f"{FEWEST * shortest} are needed, with others held out."
    )
    return np.isin(np.arange(len(here)), drawn), why if left < FEWEST * shortest or len(holders) < 2 else ""


def _fitted(peer, motion: Motion, mode: int, held_out, method: Method, sources: tuple[Source, ...], i: int):
    """The coefficients of one momentum's row, (sources,), settings chosen on held-out episodes."""
    judged = (motion.labels == mode) & motion.inner & held_out[:, None]
    target = motion.tracks[WINDOWS.index(REFERENCE)].acceleration[judged][:, i]
    episode = np.nonzero(judged)[0]
    rows = partial(_rows, peer, motion, mode, sources, i)

    def tried(settings: list[Setting], optimiser: Callable, shorten: Callable, thresholds) -> tuple:
        trials, found, errors = [], [], []
        for setting in settings:
            x, y = rows(setting, ~held_out)
            if len(y) < len(sources):
                continue
            x, y = shorten(x, y)
            offered = columns(sources, i, *(t[judged] for t in (*motion.tracks[setting.window][:2], motion.inputs)))
            for threshold in thresholds:
                trials.append((setting, threshold))
                found.append(optimiser(threshold, x, y))
                errors.append((offered @ found[-1] - target) ** 2)
        each = np.array([[e[episode == k].mean() for k in np.unique(episode)] for e in errors])
        return trials[_sparsest(each / (np.mean(target**2) or 1.0), np.count_nonzero(found, axis=1))]

    optimiser = partial(_stlsq, peer)
    setting, threshold = tried(_settings(motion, method), optimiser, _condensed, THRESHOLDS)
    if method == "ensemble":
        optimiser = partial(_bagged, peer)
        near = THRESHOLDS.index(threshold)
        nearby = THRESHOLDS[max(near - 1, 0) : near + 2]  # all of them would take longer than they are worth
        setting, threshold = tried([setting], optimiser, lambda x, y: (x, y), nearby)
    return optimiser(threshold, *rows(setting, np.ones_like(held_out)))


def _condensed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same least-squares problem in as many rows as x has columns, and one: thresholds are then tried fast."""
    r = np.asarray(np.linalg.qr(np.column_stack([x, y]), mode="r"))
    return r[:, :-1], r[:, -1]


def _settings(motion: Motion, method: Method) -> list[Setting]:
    windows = range(len(WINDOWS))
    if method == "weak":
        return [Setting(window, length=length) for window, length in product(windows, LENGTHS)]
    return [Setting(window, cut) for cut in ((False, True) if motion.cut else (False,)) for window in windows]


def _sparsest(errors: np.ndarray, sizes: np.ndarray) -> int:
    """The smallest of the trials, (trials, episodes) errors, that is not clearly worse than the best."""
    worse = errors - errors[errors.mean(1).argmin()]
    close = worse.mean(1) <= np.maximum(worse.std(1) / np.sqrt(errors.shape[1]), LOSS)
    return int(np.lexsort((errors.mean(1), np.where(close, sizes, np.inf)))[0])


def _stlsq(peer, threshold: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coefficients of thresholded least squares, which refits those it keeps."""
    return _sparse(peer.STLSQ(threshold=threshold, alpha=RIDGE, normalize_columns=True), x, y)


def _bagged(peer, threshold: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coefficients of those terms that most of the ensemble keeps, refitted to all rows as far as these tell.

    The ensemble's own answer is each coefficient's median, whose terms no longer cancel where columns are nearly
    collinear: that would make the peer look worse than it is.
    """
    inner = peer.STLSQ(threshold=threshold, alpha=RIDGE, normalize_columns=True)
    many = peer.EnsembleOptimizer(inner, bagging=True, n_models=MODELS, n_subset=DRAWN)
    out = _sparse(many, x, y)
    kept = out != 0
    norms = np.linalg.norm(x[:, kept], axis=0)
    out[kept] = np.linalg.lstsq(x[:, kept] / norms, y, rcond=RIDGE)[0] / norms
    return out


def _sparse(optimiser, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What an optimiser of PySINDy makes of y and the columns of x; columns that add nothing get 0."""
    out = np.zeros(x.shape[1])
    used, norm = _distinct(x), np.linalg.norm(y)
    if norm and used.any():
        with warnings.catch_warnings():
            # That a threshold removed every term, or did not settle, is one more setting to be judged.
            warnings.simplefilter("ignore")
            out[used] = norm * optimiser.fit(x[:, used], y / norm).coef_[0]
    return out


def _distinct(x: np.ndarray) -> np.ndarray:
    """Which columns are neither 0 throughout nor a multiple of a later one: contact terms come last, and stay."""
    norms = np.linalg.norm(x, axis=0)
    unit = x / np.where(norms > 0, norms, 1.0)
    return (norms > 0) & (np.abs(np.triu(unit.T @ unit, 1)) < 1 - 1e-10).all(1)


def _rows(peer, motion: Motion, mode: int, sources, i: int, setting: Setting, episodes: np.ndarray):
    """Columns (rows, sources) and targets (rows,) of a setting, from some of the episodes."""
    here = (motion.labels == mode) & episodes[:, None]
    track = (motion.cut if setting.cut else motion.tracks)[setting.window]
    if setting.length:
        return _weak_rows(peer, motion, track, here, sources, i, setting.length)
    here &= np.isfinite(track.acceleration[..., i])
    q, v, a = (values[here] for values in (*track[:2], motion.inputs))
    return columns(sources, i, q, v, a), track.acceleration[here][:, i]


def _weak_rows(peer, motion: Motion, track: Track, here: np.ndarray, sources, i: int, length: int):
    """The same, integrated against PySINDy's test functions inside stretches of `length` samples of one mode."""
    starts = [
        (episode, at)
        for episode, start, stop in runs(np.where(here, 0, -1))
        for at in range(start, stop - length + 1, length // 2)
    ]
    if not starts:
        return np.zeros((0, len(sources))), np.zeros(0)
    episode, at = np.array(starts).T
    pick = (episode[:, None], at[:, None] + np.arange(length))
    q, v, a = (values[pick] for values in (*track[:2], motion.inputs))
    flat = (values.reshape(-1, values.shape[-1]) for values in (q, v, a))
    offered = columns(sources, i, *flat).reshape(*v.shape[:2], -1)
    value, slope = _test_functions(peer, length, motion.dt)
    x = np.einsum("kt,ptc->pkc", value, offered).reshape(-1, len(sources))
    return x, -(v[..., i] @ slope.T).ravel()


def _test_functions(peer, length: int, dt: float) -> tuple[np.ndarray, np.ndarray]:
    """PySINDy's quadrature weights of test functions φ and of dφ/dt: (functions, times) each."""
    span = (length - 1) * dt
    weak = peer.WeakPDELibrary(spatiotemporal_grid=dt * np.arange(length), H_xt=0.45 * span, K=TESTS)
    value, slope = np.zeros((TESTS, length)), np.zeros((TESTS, length))
    for k, (inside,) in enumerate(weak.inds_k):
        value[k, inside], slope[k, inside] = weak.fullweights0[k], weak.fulltweights[k]
    return value, slope
