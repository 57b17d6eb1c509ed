"""`vhydro laws find LOGS`: the law of every mode of logs of positions and forces, in one go."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.fit import refuse_no_file
from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.options import ReadOptions
from vhydro.fitting import find_law
from vhydro.laws.bounces import ImpactLaw
from vhydro.laws.constants import table
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.writing import text
from vhydro.learning.start import AUTO
from vhydro.usage import UsageError, at_least


@dataclass(frozen=True)
class FindCommand:
    """Find the law of every mode of logs and print it, without the model that `vhydro fit` keeps to filter with."""

    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder of episodes; the format is recognised from its content."""
    modes: int | Literal["auto"] = AUTO
    """How many modes; auto: one, two or three, the most that the logs speak for."""
    out: Path | None = None
    """A file for the law as JSON, such as law.json."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)
    seed: int = 0
    """Of what is drawn: which logs are held out, where the search starts, particles."""

    def __post_init__(self):
        at_least("seed", self.seed, 0)
        if isinstance(self.modes, int):
            at_least("modes", self.modes, 1)
        if self.naming.view not in ("auto", "mechanics"):
            raise UsageError(
                f"--view {self.naming.view}; expected the mechanics view, of positions and forces. Leave --view out."
            )


def run_find(config: FindCommand) -> AnyLaw | ImpactLaw:
    """The law, after it was printed and, where there is a file for it, written."""
    if config.out is not None:
        refuse_no_file(config.out, "the law")
    view = config.naming.chosen()
    logs = config.naming.applied(read(config.logs, **vars(config.reading)))
    law = find_law(list(logs), modes=config.modes, view="mechanics" if view == AUTO else view, seed=config.seed)
    print(text(law))
    print(table(law), end="")
    print("".join(f"note: {note}\n" for note in logs.notes), end="")
    if config.out is not None:
        law.save(config.out)
        print(config.out)
    return law
