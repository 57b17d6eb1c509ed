"""A filter started from a law beside a constant-acceleration Kalman filter: real cube tosses, half hidden in bursts.

    python benchmarks/tosses.py --data FOLDER    # cube_tosses.npz; five minutes

Both learn from the first 200 tosses, hidden and not, and are scored on the last 80. Ours is `toss_model`: the flight of
`toss_law`, and modes of touching by expectation maximisation. The Kalman filter has five noises for the level axes and
five for the upright one, by maximum likelihood. Every score is of the place in m, one reading along one axis, given
what was seen before it; what is shown at a row is not used for that row. Results go to `results/tosses.json`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import tyro
from scipy.optimize import minimize
from scipy.special import logsumexp

from provenance import provenance
from vhydro import Episode, FilterSettings, occlude, read
from vhydro.filter import filter_episodes
from vhydro.filter.frames import Particles
from vhydro.laws import toss_law, toss_model

OUT = Path(__file__).parent / "results" / "tosses.json"
TRAIN, TEST = 200, 80
BURSTS = (10, 30)  # rows; 148 are a second
KEYS = (100, 101)  # of what is hidden in the test tosses
PLACE = ["cube.x", "cube.y", "cube.z"]
CM = 0.01
START = (0.003, 0.02, 0.02, 0.01, 0.05)  # cm and rows: noise of place, speed, acceleration; sensor; first acceleration


def hidden(tosses: Sequence[Episode], level: float, burst: int, key: int) -> list[Episode]:
    """The tosses with a share of their rows hidden."""
    keys = jax.random.split(jax.random.key(key), len(tosses))
    return [occlude(e, level, key=k, burst=burst) for e, k in zip(tosses, keys, strict=True)]


def side_by_side(tosses: Sequence[Episode]) -> np.ndarray:
    """Places in cm, (tosses, rows, 3), NaN where hidden and in the padding."""
    out = np.full((len(tosses), max(len(e.observations) for e in tosses), 3), np.nan)
    for row, e in zip(out, tosses, strict=True):
        row[: len(e.observations)] = e.observations / CM
    return out


def kalman(noises: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance in cm of every reading, given those before it, with constant acceleration."""
    place, speed, push, sensor, begin = np.exp(noises).reshape(2, 5)[[0, 0, 1]].T
    forward = np.array([[1, 1, 0.5], [0, 1, 1], [0, 0, 1.0]])
    noise = np.zeros((3, 3, 3))
    noise[:, range(3), range(3)] = np.stack([place, speed, push], -1) ** 2
    mean = np.zeros((len(seen), 3, 3))
    mean[..., 0] = seen[:, 0]
    start = np.zeros((3, 3, 3))
    start[:, range(3), range(3)] = np.stack([sensor, np.ones(3), begin], -1) ** 2
    spread = np.tile(start, (len(seen), 1, 1, 1))
    means, variances = [mean[..., 0]], [spread[..., 0, 0] + sensor**2]
    for now in np.moveaxis(seen[:, 1:], 1, 0):
        mean, spread = mean @ forward.T, forward @ spread @ forward.T + noise
        variance = spread[..., 0, 0] + sensor**2
        means.append(mean[..., 0])
        variances.append(variance)
        gain = np.where(np.isfinite(now)[..., None], spread[..., 0] / variance[..., None], 0.0)
        mean = mean + gain * np.where(np.isfinite(now), now - mean[..., 0], 0.0)[..., None]
        spread = spread - gain[..., None] * spread[..., None, 0, :]
        spread = 0.5 * (spread + np.swapaxes(spread, -1, -2))
    return np.stack(means, 1), np.stack(variances, 1)


def tuned_kalman(tosses: Sequence[Episode]) -> np.ndarray:
    """The noises that explain the readings of these tosses best, whole and half hidden."""
    seen = side_by_side([*tosses, *hidden(tosses, 0.5, BURSTS[0], 0)])
    counted = np.isfinite(seen)
    counted[:, 0] = False

    def loss(noises: np.ndarray) -> float:
        mean, variance = kalman(np.clip(noises, -12, 4), seen)
        return float(np.mean((0.5 * np.log(variance) + 0.5 * (seen - mean) ** 2 / variance)[counted]))

    return np.clip(minimize(loss, np.log([*START, *START]), method="Powell", options={"maxfev": 400}).x, -12, 4)


def ours(model, tosses: Sequence[Episode]) -> list[tuple[np.ndarray, ...]]:
    """Weights, means and variances in m of the branches of every row (rows, 3, branches), and the row's log evidence.

    In a row that was hidden they are those given what was seen before it.
    """
    settings = FilterSettings(particles=32, engine="gaussian", corrected=False, outliers=None, history=True)
    unit, sensor = float(model.scale[0]), np.asarray(model.emission.noise, float)
    out = []
    beliefs = filter_episodes(model, tosses, key=jax.random.key(0), settings=settings)
    for belief, toss in zip(beliefs, tosses, strict=True):
        rows, branches = len(toss.observations), belief.history
        assert isinstance(branches, Particles)
        assert branches.covariance is not None
        variance = np.stack([np.asarray(branches.covariance, float)[:rows, i, i] for i in range(3)], 1)
        variance = np.maximum(variance, 0.0)  # rounding may leave less
        mean, weight = np.asarray(branches.z, float)[:rows, :3], np.asarray(branches.log_weight, float)[:rows]
        evidence = np.asarray(belief.record.log_normaliser, float)[:rows]
        out.append((weight, mean * unit, (variance + sensor[:, None] ** 2) * unit**2, evidence))
    return out


def scores(nll: np.ndarray, off: np.ndarray, deviation: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """Scores of hidden readings, and the NLL of seen ones; widths are of intervals stretched to hold 90 %."""
    stretch = float(np.quantile(np.abs(off) / deviation, 0.9))
    return {
        "hidden_nll": float(nll.mean()), "hidden_rmse_mm": float(1e3 * np.sqrt(np.mean(off**2))),
        "hidden_width_mm": float(2e3 * stretch * deviation.mean()), "seen_nll": float(seen.mean()),
    }  # fmt: skip


def scored_ours(model, whole: Sequence[Episode], partly: Sequence[Episode]) -> dict[str, float]:
    nll, off, deviation, shown = [], [], [], []
    for (weight, mean, variance, log_seen), truth, seen in zip(ours(model, partly), whole, partly, strict=True):
        dark = np.asarray(np.isnan(seen.observations))
        weight = weight - logsumexp(weight, axis=1, keepdims=True)
        each = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (truth.observations[..., None] - mean) ** 2 / variance
        nll.append(-logsumexp(weight[:, None] + each, axis=2)[dark])
        share = np.exp(weight)[:, None]
        middle = (share * mean).sum(2)
        off.append((truth.observations - middle)[dark])
        deviation.append(np.sqrt((share * (variance + (mean - middle[..., None]) ** 2)).sum(2))[dark])
        shown.append(-log_seen[1:][~dark[1:].any(1)] / 3)
    return scores(*map(np.concatenate, (nll, off, deviation, shown)))


def scored_kalman(noises: np.ndarray, whole: Sequence[Episode], partly: Sequence[Episode]) -> dict[str, float]:
    truth, seen = side_by_side(whole), side_by_side(partly)
    mean, variance = kalman(noises, seen)
    nll = 0.5 * np.log(2 * np.pi * variance * CM**2) + 0.5 * (truth - mean) ** 2 / variance
    there = np.isfinite(truth)
    there[:, 0] = False
    dark, shown = there & np.isnan(seen), there & np.isfinite(seen)
    return scores(nll[dark], (truth - mean)[dark] * CM, np.sqrt(variance[dark]) * CM, nll[shown])


def main(data: Path) -> None:
    """Learn from some tosses, score others, and keep it."""
    logs = list(read(data / "cube_tosses.npz"))
    places = [log.select(PLACE) for log in logs]
    mass, size = (float(logs[0].info[name]) for name in ("mass", "half_width"))
    model = toss_model(toss_law(logs[:TRAIN], mass=mass, half_sizes=size), logs[:TRAIN])
    noises, test, rows = tuned_kalman(places[:TRAIN]), places[-TEST:], {}
    for burst in BURSTS:
        found = []
        for key in KEYS:
            partly = hidden(test, 0.5, burst, key)
            found.append({"ours": scored_ours(model, test, partly), "kalman": scored_kalman(noises, test, partly)})
        rows[str(burst)] = {
            who: {k: float(np.mean([f[who][k] for f in found])) for k in found[0][who]} for who in ("ours", "kalman")
        }
        print(burst, json.dumps(rows[str(burst)], indent=1))
    kept = {"meta": provenance(train=TRAIN, test=TEST, keys=KEYS), "bursts": rows, "noises": np.exp(noises).tolist()}
    OUT.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    print(OUT)


if __name__ == "__main__":
    tyro.cli(main)
