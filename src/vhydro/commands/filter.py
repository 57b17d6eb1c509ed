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
from vhydro.fitted import Fitted, digest, load
from vhydro.fitting import darkened
from vhydro.intervals import intervals
from vhydro.report.files import staged, write_json
from vhydro.report.run_page import refuse_foreign_page, write_run_page
from vhydro.usage import UsageError, at_least, share
from vhydro.views.view import AXES


@dataclass(frozen=True)
class FilterCommand:
    """Filter logs: calibrated intervals, mode probabilities and the certificate of every step."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """What `vhydro fit` wrote: a file, or the folder of a run."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("beliefs")
    """Folder for beliefs.npz, summary.json and the page index.html, or for the tables."""
    to: Literal["files", "parquet"] = "files"
    """parquet: a table of rows and one of logs, block by block, for any number of logs; needs pyarrow."""
    overwrite: bool = False
    """Replace the tables of another run that are there."""
    level: float = 0.9
    """Share of readings that the intervals hold, between 0 and 1."""
    hide: float = 0.0
    """Share of what a camera sees to hide in bursts, to see how well the model fills it in; not for --to parquet."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0
    """Of the particles, for models that need them."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    where: OmitArgPrefixes[Where] = field(default_factory=Where)

    def __post_init__(self):
        at_least("seed", self.seed, 0)
        share("level", self.level)
        if self.hide:
            share("hide", self.hide)
            if self.to == "parquet":
                raise UsageError(
                    "--hide with --to parquet, which filters logs as they are; expected --to files. Leave it out."
                )


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
    beliefs, rows = kept_beliefs(config)
    print(f"{'log':24}{'rows':>7}{'certified':>11}{'faults':>8}{'evidence a reading':>20}")
    for row in rows:
        name = row["name"] if len(row["name"]) <= 23 else f"…{row['name'][-22:]}"
        print(f"{name:24}{row['rows']:7}{row['certified']:11.0%}{row['faults']:8}{row['evidence_per_reading']:20.3f}")
    print(config.out / "beliefs.npz")
    print(config.out / "index.html")
    return beliefs


def kept_beliefs(config: FilterCommand) -> tuple[list[Belief], list[dict[str, Any]]]:
    """The beliefs of every log, after they were written with their page, and a line about each."""
    fitted = load(config.model)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), fitted.view)
    refuse_foreign_page(config.out)
    with staged(config.out, ("beliefs.npz", "summary.json")) as folder:
        whole = [fitted.see(log) for log in logs]
        seen = [darkened(fitted.view, e, config.hide, seed=config.seed, number=i) for i, e in enumerate(whole)]
        beliefs = fitted.filter_seen(seen, seed=config.seed)
        calibrated = fitted.model.calibration is not None
        bands = [
            intervals(fitted.model, e, b, config.level, calibrated=calibrated)
            for e, b in zip(seen, beliefs, strict=True)
        ]
        arrays = _arrays(fitted, logs.names, beliefs, bands) | _signals(fitted, whole, seen, beliefs)
        np.savez_compressed(folder / "beliefs.npz", **arrays)  # pyright: ignore[reportArgumentType]
        rows = [_row(n, b, e) for n, b, e in zip(logs.names, beliefs, seen, strict=True)]
        told = {"logs_from": str(config.logs), "hide": config.hide, "seed": config.seed, "calibrated": calibrated}
        told |= {"dt": fitted.dt, "engine": fitted.settings.engine, "model": digest(config.model)}
        write_json(folder / "summary.json", {"level": config.level, "modes": list(fitted.names), "logs": rows, **told})
    write_run_page(config.out)
    return beliefs, rows


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


def _signals(
    fitted: Fitted, whole: Sequence[Episode], seen: Sequence[Episode], beliefs: Sequence[Belief]
) -> dict[str, np.ndarray]:
    """What was read beside what is believed of it, and what every step spent and doubted."""
    values = np.concatenate([e.observations for e in seen]).astype(np.float32)
    shown = np.concatenate([e.observed for e in seen])
    known = np.concatenate([e.observed for e in whole]) & ~shown
    truth = np.concatenate([e.observations for e in whole]).astype(np.float32)
    records = [b.record for b in beliefs]
    surprise = np.concatenate([np.asarray(r.surprise) for r in records])
    limit = np.inf if fitted.settings.outliers is None else fitted.settings.outliers
    most = limit if fitted.model.outliers is None else np.maximum(np.asarray(fitted.model.outliers), limit)
    return {
        "observations": np.where(shown, values, np.nan),
        "hidden": np.where(known, truth, np.nan),
        "faults": (surprise > most) & shown,
        "surprise_limit": np.broadcast_to(np.asarray(most, np.float32), (len(fitted.model.channels),)),
        "mixing": np.concatenate([np.asarray(r.mixing) for r in records]),
        "certificate": np.concatenate([np.asarray(r.certificate) for r in records]).astype(np.int8),
        "units": np.array([c.unit for c in whole[0].channels]),
        "groups": np.array([c.group for c in whole[0].channels]),
    } | _hand(whole)


def _hand(whole: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Where the hand is before every step, of a view that knows one; the last row repeats the one before."""
    names = [c.name for c in whole[0].inputs]
    if not {f"hand.{a}" for a in AXES} <= set(names):
        return {}
    columns = [names.index(f"hand.{a}") for a in AXES]
    places = [e.actions[:, columns] for e in whole]
    return {"hand": np.concatenate([np.concatenate([p, p[-1:]]) for p in places]).astype(np.float32)}
