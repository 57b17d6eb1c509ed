"""`vhydro audit page`: the pages of finished audits and the index over them, from their result files alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vhydro.report.page import write_page
from vhydro.usage import UsageError
from vhydro_audits.pages import laws, modes, planning, support
from vhydro_audits.pages.frame import AUDITS, index_html

PUBLISH = {"laws": laws.publish, "modes": modes.publish, "planning": planning.publish, "support": support.publish}


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
    """The paths of the pages that were written, `index.html` in each audit's folder; of all, the index too."""
    if command.audit == "all":
        pages = write_pages(Path("results"))
    else:
        pages = [PUBLISH[command.audit](command.out or Path("results") / command.audit)[0]]
    print(*pages, sep="\n")
    return pages


def write_pages(folder: Path) -> list[Path]:
    """The paths of the index over all audits in `folder` and of their pages."""
    written = [PUBLISH[name](folder / name) for name in AUDITS]
    index = write_page(folder, index_html([card for _, card in written]))
    return [index, *(path for path, _ in written)]
