"""`vhydro laws MODEL LOGS`: the law of every mode, printed and kept."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vhydro.commands.rates import of_rate
from vhydro.data import read
from vhydro.fitted import load
from vhydro.laws.constants import table
from vhydro.laws.export import c_code, numpy_code
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.writing import latex, text
from vhydro.report.files import staged

FILES = ("law.json", "law.txt", "law.tex", "law.c", "law.py")


@dataclass(frozen=True)
class LawsCommand:
    """Print the law of every mode of logs, with its constants and their 95 % intervals."""

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A file that `vhydro fit` wrote, of logs with positions and forces."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path | None = None
    """Folder for law.json, law.txt, law.tex, and law.c and law.py: the accelerations as functions without imports."""
    estimator: Literal["shooting", "weak", "lasso", "lagrange"] | None = None
    """shooting, weak, lasso, or lagrange for inertia that couples or changes; that of the model if not given."""
    rate: float | None = None
    """Only logs of this sampling rate in Hz, where there are several."""
    seed: int = 0


def run_laws(config: LawsCommand) -> AnyLaw:
    """The law, after it was printed and written."""
    fitted, logs = load(config.model), of_rate(read(config.logs), config.rate)
    with nullcontext() if config.out is None else staged(config.out, FILES) as folder:
        law = fitted.laws(logs, estimator=config.estimator, seed=config.seed)
        if folder is not None:
            law.save(folder / "law.json")
            (folder / "law.txt").write_text(text(law) + "\n" + table(law), "utf-8")
            (folder / "law.tex").write_text(latex(law), "utf-8")
            (folder / "law.c").write_text(c_code(law), "utf-8")
            (folder / "law.py").write_text(numpy_code(law), "utf-8")
    print(text(law))
    print(table(law), end="")
    if config.out is not None:
        print(f"\n{config.out}: {', '.join(FILES)}")
    return law
