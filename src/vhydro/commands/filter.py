"""`vhydro filter MODEL LOGS`: what is believed of every row, with intervals, and what every step certifies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.blocks import Where, print_totals, run_blocks
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
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
    """Folder for beliefs.npz and summary.json, or for the tables."""
    to: Literal["npz", "parquet"] = "npz"
    """parquet: a table of rows and one of logs, block by block, for any number of logs; needs pyarrow."""
    overwrite: bool = False
    """Replace the tables of another run that are there."""
    level: float = 0.9
    """Of the intervals."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    where: OmitArgPrefixes[Where] = field(default_factory=Where)


def run_filter(config: FilterCommand) -> list[Belief]:
    """The beliefs of every log, after they were written; none where they are too many to hold, in Parquet."""
    if config.to == "parquet":
        totals = run_blocks(
            filter_tables, filter_rows, config.out, verb="filter", model=config.model, logs=config.logs,
            naming=config.naming, reading=config.reading, options={"seed": config.seed, "level": config.level},
            where=config.where, overwrite=config.overwrite,
        )  # fmt: skip
        print_totals(totals, config.out)
        return []
    config.where.refuse_without_blocks(config.to)
    fitted = load(config.model)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), fitted.view)
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


def filter_tables(fitted: Fitted) -> dict[str, dict[str, str]]:
    """One row for each row of a log, and one for each log."""
    bands = {f"{what}.{c}": "float32" for c in fitted.model.channels for what in ("mean", "low", "high")}
    modes = {f"p{i}": "float32" for i in range(fitted.model.modes)}
    named = {"episode": "string", "row": "int64", "time_s": "float64", "mode": "int64", "words": "string"}
    return {
        "rows": {**named, **modes, **bands, "certified": "bool_", "bound": "float32", "faults": "int64"},
        "logs": {"name": "string", "rows": "int64", "certified": "float64", "faults": "int64"}
        | dict.fromkeys(("log_evidence", "evidence_per_reading"), "float64"),
    }


def filter_rows(
    fitted: Fitted, logs: Sequence[Episode], names: Sequence[str], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What is believed of logs, as columns."""
    beliefs = fitted.filter_all(logs, seed=options["seed"])
    every = [_columns(fitted, *found, options["level"]) for found in zip(logs, names, beliefs, strict=True)]
    told = [_row(name, belief, fitted.see(log)) for log, name, belief in zip(logs, names, beliefs, strict=True)]
    rows = {column: np.concatenate([found[column] for found in every]) for column in every[0]}
    return {"rows": rows, "logs": {key: [row[key] for row in told] for key in told[0]}}


def _columns(fitted: Fitted, log: Episode, name: str, belief: Belief, level: float) -> dict[str, Any]:
    (low, high), (mean, _) = fitted.intervals(log, belief, level), fitted.readings(belief)
    modes, record = np.asarray(belief.mode), belief.record
    likeliest, count = modes.argmax(1), len(modes)
    rows = {
        "episode": [name] * count, "row": np.arange(count), "time_s": np.arange(count) * fitted.dt, "mode": likeliest,
        "words": [fitted.names[m] for m in likeliest], "certified": np.asarray(record.certified),
        "bound": np.asarray(record.bound), "faults": np.asarray(record.outliers),
    }  # fmt: skip
    rows |= {f"p{i}": modes[:, i] for i in range(modes.shape[1])}
    for what, values in (("mean", mean), ("low", low), ("high", high)):
        rows |= {f"{what}.{c}": np.asarray(values)[:, i] for i, c in enumerate(fitted.model.channels)}
    return rows


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
