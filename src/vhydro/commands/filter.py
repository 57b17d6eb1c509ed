"""`vhydro filter MODEL LOGS`: what is believed of every row, with intervals, and what every step certifies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.filter import Belief
from vhydro.fitted import Fitted, load
from vhydro.report.files import staged, write_json


@dataclass(frozen=True)
class FilterCommand:
    """Filter logs: calibrated intervals, mode probabilities and the certificate of every step."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A file that `vhydro fit` wrote."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("beliefs")
    """Folder for beliefs.npz and summary.json."""
    level: float = 0.9
    """Of the intervals."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0


def run_filter(config: FilterCommand) -> list[Belief]:
    """The beliefs of every log, after they were written."""
    fitted, logs = load(config.model), read(config.logs, **vars(config.reading))
    with staged(config.out, ("beliefs.npz", "summary.json")) as folder:
        episodes = list(logs)
        beliefs = fitted.filter_all(episodes, seed=config.seed)
        bands = [fitted.intervals(e, b, config.level) for e, b in zip(episodes, beliefs, strict=True)]
        np.savez_compressed(folder / "beliefs.npz", **_arrays(fitted, logs.names, beliefs, bands))  # pyright: ignore[reportArgumentType]
        rows = [_row(n, b, fitted.see(e)) for n, b, e in zip(logs.names, beliefs, episodes, strict=True)]
        write_json(folder / "summary.json", {"level": config.level, "modes": list(fitted.names), "logs": rows})
    print(f"{'log':24}{'rows':>7}{'certified':>11}{'faults':>8}{'evidence a reading':>20}")
    for row in rows:
        name = row["name"] if len(row["name"]) <= 23 else f"…{row['name'][-22:]}"
        print(f"{name:24}{row['rows']:7}{row['certified']:11.0%}{row['faults']:8}{row['evidence_per_reading']:20.3f}")
    print(config.out / "beliefs.npz")
    return beliefs


def _row(name: str, belief: Belief, seen) -> dict:
    return {
        "name": name,
        "rows": len(belief.mean),
        "certified": float(np.mean(belief.record.certified)),
        "faults": int(np.asarray(belief.record.outliers).sum()),
        "log_evidence": float(belief.log_evidence),
        "evidence_per_reading": float(belief.log_evidence) / max(int(seen.observed.sum()), 1),
    }


def _arrays(fitted: Fitted, names, beliefs: list[Belief], bands) -> dict[str, np.ndarray]:
    readings = [fitted.readings(b) for b in beliefs]
    joined = {
        "mean": [m for m, _ in readings],
        "deviation": [d for _, d in readings],
        "low": [low for low, _ in bands],
        "high": [high for _, high in bands],
        "modes": [np.asarray(b.mode) for b in beliefs],
        "certified": [np.asarray(b.record.certified) for b in beliefs],
        "bound": [np.asarray(b.record.bound) for b in beliefs],
        "surprise": [np.asarray(b.record.surprise) for b in beliefs],
    }
    arrays = {name: np.concatenate(parts).astype(parts[0].dtype) for name, parts in joined.items()}
    return arrays | {
        "first_row": np.cumsum([0, *(len(b.mean) for b in beliefs)]),
        "names": np.array(names),
        "channels": np.array(fitted.model.channels),
        "mode_names": np.array(fitted.names),
    }
