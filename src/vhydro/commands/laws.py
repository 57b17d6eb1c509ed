"""`vhydro laws MODEL LOGS`: the law of every mode, printed and kept."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.blocks import Where, print_totals, run_blocks
from vhydro.commands.law_pictures import pictures
from vhydro.commands.law_reading import law_reading, terms
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.episodes import Episode
from vhydro.fitted import Fitted, digest, load
from vhydro.laws.constants import constants, is_identified, table
from vhydro.laws.export import c_code, numpy_code
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Law
from vhydro.laws.writing import latex, text
from vhydro.report.files import staged, write_json
from vhydro.report.run_page import refuse_foreign_page, write_run_page
from vhydro.usage import UsageError, at_least

FILES = ("law.json", "law.txt", "law.tex", "law.c", "law.py")


@dataclass(frozen=True)
class LawsCommand:
    """Print the law of every mode of logs, with its constants and their 95 % intervals.

    `vhydro laws find LOGS` does it without a model.
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """What `vhydro fit` wrote of logs with positions and forces: a file, or the folder of a run."""
    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    out: Path | None = None
    """Folder for law.json, law.txt, law.tex, law.c and law.py (the accelerations as functions that need no more than
    math.h or math), and the page index.html; or for the tables."""
    to: Literal["files", "parquet"] = "files"
    """parquet: the law of every block of logs and a table of their constants; needs --out and pyarrow."""
    overwrite: bool = False
    """Replace the tables of another run that are there."""
    estimator: Literal["shooting", "weak", "lasso", "lagrange"] | None = None
    """shooting, weak, lasso, or lagrange for inertia that couples or changes; that of the model if not given."""
    seed: int = 0
    """Of the particles, for models that need them."""
    json: bool = False
    """Print one JSON document on stdout, and everything else on stderr."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    where: OmitArgPrefixes[Where] = field(default_factory=Where)

    def __post_init__(self):
        at_least("seed", self.seed, 0)
        if self.to == "parquet" and self.out is None:
            raise UsageError("--to parquet without --out; expected a folder for the tables. Give --out FOLDER.")


def run_laws(config: LawsCommand) -> AnyLaw | None:
    """The law, after it was printed and written; none where every block has its own, in Parquet."""
    if config.to == "parquet":
        assert config.out is not None  # it was refused otherwise
        totals = run_blocks(
            laws_tables, laws_rows, config.out, apart=False, verb="laws", model=config.model, logs=config.logs,
            naming=config.naming, reading=config.reading, options={"seed": config.seed, "estimator": config.estimator},
            where=config.where, overwrite=config.overwrite,
        )  # fmt: skip
        print_totals(totals, config.out)
        return None
    config.where.refuse_without_blocks(config.to)
    law = kept_law(config)
    print(text(law))
    print(table(law), end="")
    if config.out is not None:
        print(f"\n{config.out}: {', '.join(FILES)}")
        print(config.out / "index.html")
    return law


def kept_law(config: LawsCommand) -> AnyLaw:
    """The law, after it was written with its page, where there is a folder for them."""
    fitted = load(config.model)
    logs = config.naming.applied(read(config.logs, **vars(config.reading)), fitted.view)
    if config.out is not None:
        refuse_foreign_page(config.out)
    with nullcontext() if config.out is None else staged(config.out, FILES) as folder:
        law = fitted.laws(list(logs), estimator=config.estimator, seed=config.seed)
        if folder is not None:
            told = {"logs_from": str(config.logs), "model": digest(config.model)}
            told |= pictures(fitted, list(logs), law, seed=config.seed)
            write_json(folder / "laws.json", law_reading(law) | told)
            law.save(folder / "law.json")
            (folder / "law.txt").write_text(text(law) + "\n" + table(law), "utf-8")
            (folder / "law.tex").write_text(latex(law), "utf-8")
            (folder / "law.c").write_text(c_code(law), "utf-8")
            (folder / "law.py").write_text(numpy_code(law), "utf-8")
    if config.out is not None:
        write_run_page(config.out)
    return law


def laws_tables(_fitted: Fitted) -> dict[str, dict[str, str]]:
    """One row for each block's law, and one for each of its constants."""
    block = {"first": "string", "last": "string", "logs": "int64"}
    numbers = dict.fromkeys(("value", "low", "high"), "float64")
    return {
        "laws": {**block, "text": "string", "identified": "bool_"},
        "constants": {**block, "constant": "string", **numbers, "unit": "string", "identified": "bool_"},
    }


def laws_rows(fitted: Fitted, logs: Sequence[Episode], names: Sequence[str], options: Mapping[str, Any]) -> dict:
    """The law of the logs of a block, as columns."""
    law = fitted.laws(logs, estimator=options["estimator"], seed=options["seed"])
    found = constants(law) if isinstance(law, Law) else terms(law)
    known = [is_identified(law, c) for c in found.values()]
    block = {"first": names[0], "last": names[-1], "logs": len(names)}
    every = {k: [v] * len(found) for k, v in block.items()}
    ends = [c.interval for c in found.values()]
    return {
        "laws": {k: [v] for k, v in block.items()} | {"text": [text(law)], "identified": [not law.problems]},
        "constants": every | {
            "constant": list(found), "value": [c.value for c in found.values()], "low": [low for low, _ in ends],
            "high": [high for _, high in ends], "unit": [c.unit for c in found.values()], "identified": known,
        },
    }  # fmt: skip
