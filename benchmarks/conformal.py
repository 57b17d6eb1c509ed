"""Coverage and width of conformal intervals, by episodes (ours) and by readings (each a score of its own), simulated.

Every study calibrates on K episodes of 60 dependent readings. In `none` episodes are alike, in `mild` and `strong` each
has a log-normal scale (sd of the log .25 and .75), in `heavy` the scale is that of a Student-t with 2 degrees of
freedom, in `offset` each episode is off by a normal constant of sd 2. In `rare` one episode in ten is
five times as wide.

Coverage of a reading of a new episode is exact for each study's factors; its standard error is over studies. Writes
`results/conformal.json`.
"""

import json
from pathlib import Path

import numpy as np
from scipy.stats import norm, t

from provenance import provenance
from vhydro.calibration import LEVELS, conformal_factors

OUT = Path(__file__).parent / "results" / "conformal.json"
KINDS = ("none", "mild", "strong", "heavy", "offset", "rare")
SPREAD = {"none": 0.0, "mild": 0.25, "strong": 0.75}  # sd of the log of an episode's scale
COUNTS = {5: 400, 9: 400, 20: 200, 50: 100, 100: 100}  # episodes, and how many studies of so many
SHOWN = (0.5, 0.8, 0.9, 0.95)
READINGS, PERSISTENCE = 60, 0.8


def scores(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Scores of episodes: the given shape, and readings last."""
    error = rng.normal(size=(*shape, READINGS))
    for i in range(1, READINGS):
        error[..., i] = PERSISTENCE * error[..., i - 1] + np.sqrt(1 - PERSISTENCE**2) * error[..., i]
    if kind == "offset":
        return np.abs(error + 2 * rng.normal(size=(*shape, 1)))
    if kind == "heavy":
        return np.abs(error) / np.sqrt(rng.chisquare(2, size=(*shape, 1)) / 2)
    if kind == "rare":
        return np.abs(error) * np.where(rng.uniform(size=(*shape, 1)) < 0.1, 5.0, 1.0)
    return np.abs(error) * np.exp(SPREAD[kind] * rng.normal(size=(*shape, 1)))


def coverage(kind: str, factor: np.ndarray) -> np.ndarray:
    """The share of a new episode's scores that are at most the factor, over all such episodes."""
    if kind == "heavy":
        return 2 * t.cdf(factor, 2) - 1
    if kind == "offset":
        return 2 * norm.cdf(factor / np.sqrt(1 + 2**2)) - 1
    if kind == "rare":
        return 2 * (0.9 * norm.cdf(factor) + 0.1 * norm.cdf(factor / 5)) - 1
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    return 2 * norm.cdf(factor[..., None] / np.exp(SPREAD[kind] * node)) @ weight / weight.sum() - 1


def by_episodes(score: np.ndarray) -> np.ndarray:
    """The factors of every study (studies, levels), each of which is a group of the calibration."""
    study, episode, _ = (x.ravel() for x in np.indices(score.shape))
    band, hidden = np.zeros(study.size, int), np.zeros(study.size, bool)
    return conformal_factors(score.ravel(), episode, study, band, hidden, groups=len(score), bands=1)[0][:, 0, 0]


def by_readings(score: np.ndarray) -> np.ndarray:
    """The same if all n readings were exchangeable: the ⌈(n + 1) a⌉-th smallest."""
    placed = np.sort(score.reshape(len(score), -1))
    return placed[:, np.ceil((placed.shape[1] + 1) * LEVELS - 1e-9).astype(int) - 1]


def row(kind: str, count: int, studies: int, rng: np.random.Generator) -> dict:
    """Coverage of both ways at the shown levels, and the median ratio of their widths."""
    score = scores(kind, (studies, count), rng)
    at = [int(np.argmin(np.abs(LEVELS - level))) for level in SHOWN]
    ours, pooled = by_episodes(score)[:, at], by_readings(score)[:, at]
    out: dict = {"kind": kind, "episodes": count, "studies": studies, "levels": SHOWN}
    for name, factors in (("", ours), ("_by_readings", pooled)):
        inside = coverage(kind, factors)
        out[f"coverage{name}"] = inside.mean(0).round(4).tolist()
        out[f"se{name}"] = (inside.std(0, ddof=1) / np.sqrt(studies)).round(4).tolist()
    return out | {"width_ratio": np.median(ours / pooled, axis=0).round(3).tolist()}


def main() -> None:
    rng, rows = np.random.default_rng(0), []
    for kind in KINDS:
        for count, studies in COUNTS.items():
            rows.append(row(kind, count, studies, rng))
            print(json.dumps(rows[-1]), flush=True)
    OUT.write_text(json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
