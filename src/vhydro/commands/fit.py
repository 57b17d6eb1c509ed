"""`vhydro fit LOGS --out RUN`: a model of robot logs, found without labels, with the page that says what it is."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.law_reading import law_reading
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.dataset import Dataset
from vhydro.data.options import ReadOptions
from vhydro.filter.settings import as_record
from vhydro.fitted import MODEL, Fitted, digest
from vhydro.fitting import fit
from vhydro.learning.start import AUTO
from vhydro.outputs import LOCK, locked, remove_stale
from vhydro.report.files import staged, version, write_json
from vhydro.report.run_page import refuse_foreign_page, write_run_page
from vhydro.storage import is_model_file
from vhydro.usage import at_least

SUFFIX = Path(MODEL).suffix
# How lines of a fit's report begin that say what it could not do.
LIMITS = ("not used", "not refined", "units nobody knows", "one mode", "intervals are the belief's own")


@dataclass(frozen=True)
class FitCommand:
    """Fit a model to robot logs, without labels, and keep it for filter, segment, laws and plan."""

    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("model.vhydro")
    """Folder of a run, for model.vhydro, fit.json and the page index.html; NAME.vhydro: the file of the model alone."""
    modes: int | Literal["auto"] = AUTO
    """How many modes; auto: the most that the logs speak for."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    refine: bool = True
    """Whether noise and transitions are refined; without it a fit is a quick look."""
    seed: int = 0
    """Of what is drawn: which logs are held out, where the search starts, particles."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""

    def __post_init__(self):
        at_least("seed", self.seed, 0)
        if isinstance(self.modes, int):
            at_least("modes", self.modes, 1)


def run_fit(config: FitCommand) -> Fitted:
    """The fitted model, after it was described and kept."""
    fitted, logs = kept_fit(config)
    print(fitted)
    print("".join(f"note: {note}\n" for note in logs.notes), end="")
    print(config.out if is_alone(config.out) else config.out / "index.html")
    return fitted


def is_alone(out: Path) -> bool:
    """Whether a path is that of a model alone, and not of the folder of a run."""
    return out.suffix == SUFFIX


def kept_fit(config: FitCommand) -> tuple[Fitted, Dataset]:
    """The fitted model, after it was kept, with its page where it has a folder; and the logs it is of."""
    if is_alone(config.out):
        refuse_unwritable(config.out)
        with locked(config.out.with_name(f".{config.out.name}{LOCK}"), config.out):
            remove_stale(config.out)
            fitted, logs, _ = _fitted(config)
            fitted.save(config.out)
        return fitted, logs
    refuse_foreign_page(config.out)
    if (config.out / MODEL).exists():
        refuse_unwritable(config.out / MODEL)
    with staged(config.out) as folder:
        fitted, logs, seconds = _fitted(config)
        fitted.save(folder / MODEL)
        write_json(folder / "fit.json", told(fitted, logs, config, digest(folder), seconds))
    write_run_page(config.out)
    return fitted, logs


def _fitted(config: FitCommand) -> tuple[Fitted, Dataset, float]:
    """The model, the logs it is of, and how many seconds it took."""
    view, begun = config.naming.chosen(), time.perf_counter()
    logs = config.naming.applied(read(config.logs, **vars(config.reading)))
    fitted = fit(logs, modes=config.modes, view=view, refine=config.refine, seed=config.seed)
    return fitted, logs, time.perf_counter() - begun


def told(fitted: Fitted, logs: Dataset, config: FitCommand, model: str, seconds: float) -> dict[str, Any]:
    """What the page says of a fit: on what, through which view, with which settings, and what it could not do."""
    words, limits = divided(fitted.report)
    asked = {"modes": config.modes, "refine": config.refine, "seed": config.seed}
    return {
        "logs_from": str(config.logs), "format": logs.format, "words": words, "limits": [*limits, *logs.notes],
        "view": fitted.view.kind, "modes": list(fitted.names), "dt": fitted.dt, "model": model,
        "channels": [asdict(c) for c in fitted.channels], "inputs": [asdict(c) for c in fitted.inputs],
        "asked": asked, "settings": as_record(fitted.settings), "latent": fitted.model.latent, "version": version(),
        "seconds": round(seconds, 1), "law": None if fitted.law is None else law_reading(fitted.law),
    }  # fmt: skip


def divided(report: Sequence[str]) -> tuple[list[str], list[str]]:
    """A fit's report: what it did, and what it could not do. Modes are named elsewhere."""
    lines = [line for line in report if not line.startswith("  mode ")]
    short = [line for line in lines if line.startswith(LIMITS) or "hardly occurs" in line]
    return [line for line in lines if line not in short], short


def refuse_no_file(path: Path, of: str) -> None:
    """Raises before any work if no file can be at a path: one `of` what, for the words."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file for {of}. Give --out FILE.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; expected one. Create it first.")


def refuse_unwritable(path: Path) -> None:
    """Raises before any work if a file cannot be written there, or would take the place of something else."""
    refuse_no_file(path, "the model")
    if path.exists() and not is_model_file(path):
        raise FileExistsError(f"{path} exists and is no model file; expected a new file. Give --out FILE.vhydro.")
