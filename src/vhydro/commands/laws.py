"""`vhydro laws MODEL LOGS`: the law of every mode, printed and kept."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.fitted import load
from vhydro.laws.constants import table
from vhydro.laws.law import Law
from vhydro.laws.writing import latex, text
from vhydro.report.files import staged

FILES = ("law.json", "law.txt", "law.tex")


@dataclass(frozen=True)
class LawsCommand:
    """Print the law of every mode of logs, with its constants and their 95 % intervals."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A file that `vhydro fit` wrote, of logs with positions and forces."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path | None = None
    """Folder for law.json, law.txt and law.tex."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0


def run_laws(config: LawsCommand) -> Law:
    """The law, after it was printed and written."""
    fitted, logs = load(config.model), read(config.logs, **vars(config.reading))
    with nullcontext() if config.out is None else staged(config.out, FILES) as folder:
        law = fitted.laws(list(logs), seed=config.seed)
        if folder is not None:
            law.save(folder / "law.json")
            (folder / "law.txt").write_text(text(law) + "\n" + table(law), "utf-8")
            (folder / "law.tex").write_text(latex(law), "utf-8")
    print(text(law))
    print(table(law), end="")
    if config.out is not None:
        print(f"\n{config.out}: {', '.join(FILES)}")
    return law
