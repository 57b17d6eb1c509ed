"""`vhydro audit page`: the page of a finished audit, from its result files alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vhydro.usage import UsageError
from vhydro_audits.pages.laws import write_laws_page
from vhydro_audits.pages.modes import write_modes_page
from vhydro_audits.pages.planning import write_planning_page
from vhydro_audits.pages.support import write_support_page

WRITERS = {
    "laws": write_laws_page,
    "modes": write_modes_page,
    "planning": write_planning_page,
    "support": write_support_page,
}


@dataclass(frozen=True)
class PageCommand:
    """`vhydro audit page`: the page of an audit, from its result files; no model runs."""

    # which: laws, modes, planning, support or all
    audit: Annotated[
        tyro.conf.Positional[Literal["laws", "modes", "planning", "support", "all"]], tyro.conf.arg(metavar="AUDIT")
    ] = "all"
    out: Path | None = None  # the audit's folder; results/AUDIT if not given

    def __post_init__(self):
        if self.out is not None and self.audit == "all":
            raise UsageError("--out is the folder of one audit; say which: `vhydro audit page AUDIT --out FOLDER`.")


def run_page(command: PageCommand) -> list[Path]:
    """The paths of the pages that were written, `index.html` in each audit's folder."""
    names = [*WRITERS] if command.audit == "all" else [command.audit]
    pages = [WRITERS[name](command.out or Path("results") / name) for name in names]
    print(*pages, sep="\n")
    return pages
