"""The signals of a log made small for a page: thinned so that no peak is lost, rounded to what a screen shows, packed.

A log of more rows than `points` is cut into as many cells. Of every pair of cells a signal keeps its least and its
greatest value in the order in which they came; a band keeps its widest, a strip its worst.
"""

import gzip
import json
import struct
from base64 import b64encode
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from vhydro.report.run_files import RunEpisode

FINE, COARSE = 16383, 4095  # steps that a channel's range is rounded to, where there is room and where there is not
POINTS = (600, 450, 340, 260, 200, 170, 140, 110)  # that a signal may keep
BUDGET = 4_400_000  # characters that all logs of a page may take
SURPRISE_STEP, SURPRISE_MOST = 0.05, 12.0
REACH = 2.0  # times the range of what was seen and believed that a band may reach beyond it


def cell_rows(rows: int, points: int) -> int:
    """How many rows a cell has, for a signal of at most so many points."""
    return max(-(-rows // points), 1)


def in_cells(values: np.ndarray, size: int) -> np.ndarray:
    """(cells, rows of a cell, …): the last row is repeated until the last cell is full."""
    more = -len(values) % size
    return np.concatenate([values, np.repeat(values[-1:], more, 0)]).reshape(-1, size, *values.shape[1:])


def extremes(values: np.ndarray, size: int) -> np.ndarray:
    """Least and greatest value of every pair of cells, in the order in which they came; NaN where there is none."""
    if size == 1:
        return values
    parts = in_cells(values, 2 * size)
    known = np.isfinite(parts)
    low, high = np.where(known, parts, np.inf), np.where(known, parts, -np.inf)
    falls = low.argmin(1) > high.argmax(1)
    low, high = (np.where(known.any(1), x, np.nan) for x in (low.min(1), high.max(1)))
    both = np.stack([np.where(falls, high, low), np.where(falls, low, high)], 1)
    return both.reshape(-1, *values.shape[1:])[: -(-len(values) // size)]


def scales(signals: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value that each channel's picture shows. Faults and endless bands do not count."""
    seen = np.where(signals["faults"], np.nan, signals["observations"])
    inside = np.stack([signals["mean"], seen, signals["hidden"]])
    inside = np.where(np.isfinite(inside), inside, np.nan)
    low, high = _quiet(np.nanmin, inside), _quiet(np.nanmax, inside)
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    span = np.where(high > low, high - low, np.maximum(np.abs(high), 1e-9) * 0.02)
    floor, ceiling = (
        np.nan_to_num(_quiet(np.nanmin, signals["low"][None]), nan=0.0, neginf=-1e300),
        np.nan_to_num(_quiet(np.nanmax, signals["high"][None]), nan=0.0, posinf=1e300),
    )
    return (
        np.minimum(low, np.maximum(floor, low - REACH * span)) - 0.02 * span,
        np.maximum(high, np.minimum(ceiling, high + REACH * span)) + 0.02 * span,
    )


def _quiet(reduce: Any, values: np.ndarray) -> np.ndarray:
    """Over layers and rows; NaN for a channel of which nothing is known, without a warning."""
    none = np.isnan(values).all((0, 1))
    return np.where(none, np.nan, reduce(np.where(none, 0.0, values), (0, 1)))


def filled(episode: RunEpisode) -> dict[str, np.ndarray]:
    """The signals of a log with what older files do not have: nothing seen, nothing hidden, no fault."""
    signals = dict(episode.signals)
    for name in ("mean", "low", "high"):
        signals[name] = signals[name].astype(np.float64)  # with room for what is endless
    nothing = np.full(signals["mean"].shape, np.nan, np.float32)
    for name in ("observations", "hidden"):
        signals.setdefault(name, nothing)
    signals.setdefault("faults", np.zeros(nothing.shape, bool))
    return signals


def packed(episode: RunEpisode, points: int, steps: int = COARSE) -> str:
    """The episode as base64 of gzip: four bytes of length, a header in JSON, then arrays as the header lists them."""
    header, arrays = _arrays(episode, points, steps)
    listed, body = [], b""
    for name, array in arrays.items():
        data = _bytes(array)
        listed.append([name, "u1" if array.dtype == np.uint8 else "i2", int(array.shape[0]), len(data)])
        body += data
    text = json.dumps(header | {"arrays": listed}, ensure_ascii=True, allow_nan=False).encode()
    return b64encode(gzip.compress(struct.pack("<I", len(text)) + text + body, 6, mtime=0)).decode()


def _bytes(array: np.ndarray) -> bytes:
    """Differences along each row, low bytes first and high bytes after, which compress well."""
    if array.dtype == np.uint8:
        return array.tobytes()
    steps = np.diff(array.astype(np.int32), axis=1, prepend=0).astype("<i2")
    planes = steps.reshape(-1).view(np.uint8).reshape(-1, 2)
    return planes.T.tobytes()


def _arrays(episode: RunEpisode, points: int, steps: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is known of a log as small integers: channels × points, of strips 1 × points."""
    header: dict[str, Any] = {"rows": episode.rows, "points": 0, "cell": 1, "levels": steps}
    header["segments"] = [list(s) for s in episode.segments]
    if not episode.signals:
        return header, {}
    signals = filled(episode)
    held = np.unique(signals["certificate"]) if "certificate" in signals else []
    header["certificate"] = "none" if len(held) and not np.any(held) else ""
    header["share"] = float(np.mean(signals["certified"]))
    size = cell_rows(episode.rows, points)
    header["cell"], header["points"] = size, -(-episode.rows // size)
    low, high = scales(signals)
    header["low"], header["high"] = [float(f"{x:.6g}") for x in low], [float(f"{x:.6g}") for x in high]

    def levels(values: np.ndarray) -> np.ndarray:
        finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
        scaled = (finite - low) / (high - low)
        return np.round(np.clip(scaled, 0, 1) * steps).astype(np.int16).T

    mean = levels(extremes(signals["mean"], size))
    arrays = {
        "mean": mean,
        "up": levels(in_cells(signals["high"], size).max(1)) - mean,
        "down": mean - levels(in_cells(signals["low"], size).min(1)),
    }
    for name, source in (("seen", "observations"), ("hidden", "hidden")):
        values = extremes(signals[source], size)
        known = np.isfinite(values).T
        if known.any():
            arrays[name] = np.where(known, levels(values) - mean, 0).astype(np.int16)
            arrays[f"{name}_known"] = known.astype(np.uint8)
    arrays["modes"] = np.round(255 * in_cells(signals["modes"], size).mean(1)).astype(np.uint8).T
    arrays |= _strips(signals, size)
    header["faults"] = np.argwhere(signals["faults"])[:500].tolist()
    likeliest = episode.path if episode.path is not None else signals["modes"].argmax(1)
    header["path"] = runs(likeliest)
    return header, {k: np.ascontiguousarray(v) for k, v in arrays.items()}


def _strips(signals: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """Certificate (1 where all rows of a cell have one), surprise and λ of every cell."""
    out = {"certified": in_cells(signals["certified"].astype(np.uint8), size).min(1)[None]}
    if "surprise" in signals:
        most = np.nan_to_num(signals["surprise"], nan=0.0, posinf=SURPRISE_MOST).max(1)
        top = in_cells(most.clip(0, SURPRISE_MOST), size).max(1)
        out["surprise"] = np.round(top / SURPRISE_STEP).astype(np.uint8)[None]
    if "mixing" in signals:
        spent = np.nan_to_num(in_cells(signals["mixing"], size).max(1)).clip(0, 1)
        out["mixing"] = np.round(255 * spent).astype(np.uint8)[None]
    return out


def runs(codes: np.ndarray) -> list[list[int]]:
    """Stretches of one code each: first row, row after the last, code."""
    if not len(codes):
        return []
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    return [[a, b, int(codes[a])] for a, b in pairwise(edges)]


def packed_all(episodes: Sequence[RunEpisode], budget: int = BUDGET) -> tuple[list[str], int]:
    """The episodes that fit the budget, each packed, and how many points a signal kept.

    All are thinned alike, the harder the more they are; what does not fit even so is left out from the end.
    """
    some = list(episodes)[:: max(len(episodes) // 6, 1)]
    ways = [(POINTS[0], FINE), *((points, COARSE) for points in POINTS)]
    points, steps = next((way for way in ways if len(episodes) * _mean_size(some, *way) < 0.95 * budget), ways[-1])
    out, total = [], 0
    for episode in episodes:
        text = packed(episode, points, steps)
        total += len(text)
        if total > budget and out:
            break
        out.append(text)
    return out, points


def _mean_size(episodes: Sequence[RunEpisode], points: int, steps: int) -> float:
    return sum(len(packed(e, points, steps)) for e in episodes) / max(len(episodes), 1)
