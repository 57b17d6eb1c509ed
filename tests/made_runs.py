"""Folders of runs as the verbs write them, of any size, without a model: for what only reads them."""

import json
from pathlib import Path

import numpy as np

MODES = ("nothing", "peg with the hand", "cube & <peg> with the hand")
HOSTILE = "</script><img src=x onerror=alert(1)>"


def made_run(
    folder: Path, *, episodes: int = 3, rows: int = 120, channels: int = 4, verbs: str = "fit filter segment laws plan"
) -> Path:
    """A run of logs of `rows` rows, with a third of the readings hidden, a fault in each log and three modes."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = [f"log {i}" for i in range(episodes - 1)] + [HOSTILE]
    total, first = episodes * rows, np.arange(episodes + 1) * rows
    time = np.tile(np.arange(rows), episodes)[:, None] / rows
    mean = np.sin(2 * np.pi * time * (1 + np.arange(channels)) + np.arange(channels)).astype(np.float32)
    width = (0.05 + 0.05 * random.random((total, channels))).astype(np.float32)
    values = mean + (0.02 * random.normal(size=mean.shape)).astype(np.float32)
    dark = random.random(values.shape) < 1 / 3
    faults = np.zeros(values.shape, bool)
    faults[first[:-1] + rows // 2, 0] = True
    values[faults], dark[faults] = 1e6, False
    path = np.tile(np.repeat([0, 1, 2], [rows // 3, rows // 3, rows - 2 * (rows // 3)]), episodes)
    if "fit" in verbs:
        _fit(folder)
    if "filter" in verbs:
        arrays = {
            "mean": mean, "deviation": width / 2, "low": mean - width, "high": mean + width,
            "modes": 0.9 * np.eye(3, dtype=np.float32)[path] + np.float32(1 / 30),
            "certified": np.arange(total) % 10 != 3, "bound": np.zeros(total, np.float32),
            "surprise": random.exponential(0.5, values.shape).astype(np.float32) + 9 * faults,
            "first_row": first, "names": np.array(names), "mode_names": np.array(MODES),
            "channels": np.array([f"body.{i}" for i in range(channels)]), "units": np.array(["m"] * channels),
            "groups": np.array([f"group {i // 3}" for i in range(channels)]), "faults": faults,
            "observations": np.where(dark, np.nan, values), "hidden": np.where(dark, values, np.nan),
            "surprise_limit": np.full(channels, 6.0), "mixing": np.full(total, 0.2, np.float32),
            "certificate": np.full(total, 2, np.int8),
        }  # fmt: skip
        np.savez_compressed(folder / "beliefs.npz", **arrays)  # pyright: ignore[reportArgumentType]
        logs = [{"name": n, "rows": rows, "certified": 0.9, "faults": 1} for n in names]
        told = {"level": 0.9, "modes": MODES, "logs": logs, "hide": 1 / 3, "dt": 0.05, "calibrated": True, "model": "a"}
        _write(folder / "summary.json", told)
    if "segment" in verbs:
        cuts = [0, rows // 3, 2 * (rows // 3), rows]
        segments = [{"start": cuts[m], "end": cuts[m + 1], "mode": m, "confidence": 0.9 - m / 10} for m in range(3)]
        each = [{"name": n, "segments": segments} for n in names]
        _write(folder / "segments.json", {"dt": 0.05, "modes": MODES, "episodes": each})
        parts = {"path": path, "first_row": first, "names": np.array(names), "model": np.array("a")}
        np.savez_compressed(folder / "posteriors.npz", **parts)  # pyright: ignore[reportArgumentType]
    if "laws" in verbs:
        _write(folder / "laws.json", _law())
    if "plan" in verbs:
        proof = {
            "certified": False, "bound": 0.4, "risk": 0.1, "margin": 0.1, "shift": 0.2, "delta": 0.3, "beta": 0.05,
            "how": "parameters", "speaks_of": "the plan run open loop", "assumes": ["the law holds"],
            "why": "0.4 > 0.3",
        }  # fmt: skip
        plan = {"cost": 0.2, "risk": 0.1, "dt": 0.05, "proof": proof, "log": HOSTILE, "task": "task.py", "model": "a"}
        _write(folder / "plan.json", plan | {"inputs": ["force"], "actions": [[0.5], [1.0], [-0.5]]})
    return folder


def _fit(folder: Path) -> None:
    channel = {"name": HOSTILE, "group": "object", "unit": "m"}
    told = {
        "logs_from": "logs/", "format": "npz", "words": ["saw 3 logs", f"it reads {HOSTILE}"], "model": "a",
        "limits": ["not used: arm.joint_1"], "view": "mechanics", "modes": MODES, "dt": 0.05, "channels": [channel],
        "inputs": [], "asked": {"modes": 3}, "settings": {"gate": {"tolerance": 0.25}}, "latent": 4, "version": "0",
        "seconds": 3.2, "law": None,
    }  # fmt: skip
    _write(folder / "fit.json", told)


def _law() -> dict:
    times = np.arange(60) * 0.05
    course = np.stack([np.sin(times)], 1)
    modes = [
        {"name": "free", "status": "identified", "equations": [r"H &= 0.5 p^2", r"\dot p &= -0.2 p + \mathit{force}"],
         "reasons": []},
        {"name": "wall", "status": "unidentified", "equations": [r"H &= p^2 + 1203 \tfrac{1}{2} [q -1]_+^{2}"],
         "reasons": ["too few samples"]},
    ]  # fmt: skip
    stiffness = {"name": "stiffness", "value": 1203.4, "low": 1198.0, "high": 1208.8, "unit": "N/m", "identified": True}
    return {
        "estimator": "shooting", "shared": [], "modes": modes, "constants": [stiffness], "chi_square": 1.01,
        "notes": [],
        "held_out": [{"seconds": 0.5, "windows": 12, "excess": 1.1}], "logs_from": "logs/", "model": "a",
        "prediction": {
            "log": "log 2", "held_out": True, "others": 2, "dt": 0.05, "starts": [0, 20, 40], "names": ["q"],
            "units": ["m"], "seen": (course + 0.01).tolist(), "predicted": course.tolist(), "rms": [0.01],
            "spread": [0.7], "stretches": 3, "lost": 0,
            "whole": {"times": times.tolist(), "seen": (course + 0.01).tolist(), "predicted": course.tolist(),
                      "holds": 2.0, "seconds": 3.0, "all": False, "told": False},
        },
        "phase": [{
            "name": HOSTILE, "unit": "m", "rate": "m/s", "modes": [0, 1], "low": [-1.1, -1.1], "high": [1.1, 1.1],
            "q": course[:, 0].tolist(), "v": np.cos(times).tolist(), "mode": [0] * 40 + [1] * 20, "carried": False,
            "surfaces": [{"mode": 1, "sign": 1.0, "place": 0.9}], "held": [{"name": HOSTILE, "value": 0.0, "unit": ""}],
            "field": [{"mode": m, "q": [0.1 * m, 0.2], "v": [0.3, 0.4]} for m in (0, 1)],
        }],
        "friction": [{
            "name": HOSTILE, "unit": "m", "rate": "m/s", "force": "N", "v": [-1.0, 1.0], "f": [-0.2, 0.2],
            "mode": [0, 0], "seconds": 0.1, "medians": {"v": [1.0], "f": [0.2]},
            "curves": [{"mode": 0, "v": [-1.0, 1.0], "f": [-0.2, 0.2], "words": "0.2 v"}],
        }],
    }  # fmt: skip


def _write(path: Path, value) -> None:
    path.write_text(json.dumps(value), "utf-8")
