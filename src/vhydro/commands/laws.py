"""`vhydro laws MODEL LOGS`: the law of every mode, printed and kept."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.blocks import Where, print_totals, run_blocks
from vhydro.commands.mapping import Naming
from vhydro.commands.rates import of_rate
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
from vhydro.fitted import Fitted, load
from vhydro.laws.constants import Constant, constants, table
from vhydro.laws.export import c_code, numpy_code
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law
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
    """Folder for law.json, law.txt, law.tex, and law.c and law.py: the accelerations as functions without imports; or
    for the tables."""
    to: Literal["files", "parquet"] = "files"
    """parquet: the law of every block of logs and a table of their constants; needs --out and pyarrow."""
    overwrite: bool = False
    """Replace the tables of another run that are there."""
    estimator: Literal["shooting", "weak", "lasso", "lagrange"] | None = None
    """shooting, weak, lasso, or lagrange for inertia that couples or changes; that of the model if not given."""
    only_rate: float | None = None
    """Only logs of this sampling rate in Hz, where there are several."""
    seed: int = 0
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    where: OmitArgPrefixes[Where] = field(default_factory=Where)


def run_laws(config: LawsCommand) -> AnyLaw | None:
    """The law, after it was printed and written; none where every block has its own, in Parquet."""
    if config.to == "parquet":
        if config.out is None:
            raise ValueError("--to parquet without --out; expected a folder for the tables.")
        totals = run_blocks(
            laws_tables, laws_rows, config.out, apart=False, verb="laws", model=config.model, logs=config.logs,
            naming=config.naming, reading=config.reading, options={"seed": config.seed, "estimator": config.estimator},
            where=config.where, overwrite=config.overwrite,
        )  # fmt: skip
        print_totals(totals, config.out)
        return None
    config.where.refuse_without_blocks(config.to)
    fitted = load(config.model)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), fitted.view)
    logs = of_rate(logs, config.only_rate)
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


def laws_tables(_fitted: Fitted) -> dict[str, dict[str, str]]:
    """One row for each block's law, and one for each of its constants."""
    block = {"first": "string", "last": "string", "logs": "int64"}
    numbers = dict.fromkeys(("value", "low", "high"), "float64")
    return {
        "laws": {**block, "text": "string", "identified": "bool_"},
        "constants": {**block, "constant": "string", **numbers, "unit": "string", "identified": "bool_"},
    }


def _terms(law: LagrangeLaw) -> dict[str, Constant]:
    """The terms of every mode with inertia that couples, by their names."""
    return {
        f"{name} of {law.modes[mode]}": Constant(n.value, n.error, "")
        for mode in range(len(law.modes))
        for name, n in law.terms(mode).items()
    }


def laws_rows(fitted: Fitted, logs: Sequence[Episode], names: Sequence[str], options: Mapping[str, Any]) -> dict:
    """The law of the logs of a block, as columns."""
    law = fitted.laws(logs, estimator=options["estimator"], seed=options["seed"])
    found = constants(law) if isinstance(law, Law) else _terms(law)
    doubtful = [f" of {law.modes[mode]}" for mode, _ in law.problems]
    known = [not any(of in name for of in doubtful) for name in found]
    block = {"first": names[0], "last": names[-1], "logs": len(names)}
    every = {k: [v] * len(found) for k, v in block.items()}
    ends = [c.interval for c in found.values()]
    return {
        "laws": {k: [v] for k, v in block.items()} | {"text": [text(law)], "identified": [not doubtful]},
        "constants": every | {
            "constant": list(found), "value": [c.value for c in found.values()], "low": [low for low, _ in ends],
            "high": [high for _, high in ends], "unit": [c.unit for c in found.values()], "identified": known,
        },
    }  # fmt: skip
