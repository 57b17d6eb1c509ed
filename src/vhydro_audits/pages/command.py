"""`vhydro audit page`: the pages of finished audits and the index over them, from their result files alone."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from vhydro.report.page import write_page
from vhydro_audits.pages.frame import AUDITS, Card, index_html
from vhydro_audits.pages.laws import laws_page, read_laws, write_laws_page
from vhydro_audits.pages.modes import modes_page, read_modes, write_modes_page
from vhydro_audits.pages.planning import planning_page, read_planning, write_planning_page
from vhydro_audits.pages.support import read_support, support_page, write_support_page

WRITERS: dict[str, Callable[[Path], Path]] = {
    "laws": write_laws_page,
    "modes": write_modes_page,
    "planning": write_planning_page,
    "support": write_support_page,
}
CARDS: dict[str, Callable[[Path], Card]] = {
    "laws": lambda folder: laws_page(*read_laws(folder)).card,
    "modes": lambda folder: modes_page(read_modes(folder)).card,
    "planning": lambda folder: planning_page(*read_planning(folder)).card,
    "support": lambda folder: support_page(read_support(folder)).card,
}


@dataclass(frozen=True)
class PageCommand:
    """`vhydro audit page`: the page of an audit, from its result files; no model runs."""

    audit: tyro.conf.Positional[Literal["laws", "modes", "planning", "support", "all"]] = "all"
    out: Path | None = None  # the audit's folder; results/AUDIT if not given

    def __post_init__(self):
        if self.out is not None and self.audit == "all":
            raise ValueError("--out is the folder of one audit; say which: vhydro audit page AUDIT --out FOLDER.")


def run_page(command: PageCommand) -> list[Path]:
    """The paths of the pages that were written, `index.html` in each audit's folder; of all, the index too."""
    if command.audit != "all":
        pages = [WRITERS[command.audit](command.out or Path("results") / command.audit)]
    else:
        pages = write_pages(Path("results"))
    print(*pages, sep="\n")
    return pages


def write_pages(folder: Path) -> list[Path]:
    """The paths of the index over all audits in `folder` and of their pages."""
    pages = [WRITERS[name](folder / name) for name in AUDITS]
    return [write_page(folder, index_html([CARDS[name](folder / name) for name in AUDITS])), *pages]
