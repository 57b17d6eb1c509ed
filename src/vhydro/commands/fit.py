"""`vhydro fit LOGS --out MODEL`: a model of robot logs, found without labels and kept in one file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.fitted import Fitted
from vhydro.fitting import fit
from vhydro.learning.start import AUTO
from vhydro.outputs import LOCK, locked, remove_stale
from vhydro.storage import is_model_file
from vhydro.usage import at_least


@dataclass(frozen=True)
class FitCommand:
    """Fit a model to robot logs, without labels, and keep it as one file for filter, segment and laws."""

    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path = Path("model.vhydro")
    """The file of the model."""
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
    refuse_unwritable(config.out)
    view = config.naming.chosen()
    with locked(config.out.with_name(f".{config.out.name}{LOCK}"), config.out):
        remove_stale(config.out)
        logs = config.naming.applied(read(config.logs, **vars(config.reading)))
        fitted = fit(
            logs, modes=config.modes, view=view, refine=config.refine, seed=config.seed,
        )  # fmt: skip
        fitted.save(config.out)
    print(fitted)
    print("".join(f"note: {note}\n" for note in logs.notes), end="")
    print(config.out)
    return fitted


def refuse_unwritable(path: Path) -> None:
    """Raises before any work if a file cannot be written there, or would take the place of something else."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file for the model. Give --out FILE.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; expected one. Create it first.")
    if path.exists() and not is_model_file(path):
        raise FileExistsError(f"{path} exists and is no model file; expected a new file. Give --out FILE.vhydro.")
