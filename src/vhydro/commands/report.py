"""`vhydro report RUN`: the page of a run, written again from its files alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vhydro.report.run_page import write_run_page


@dataclass(frozen=True)
class ReportCommand:
    """Write the page of a run again from its files."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder that fit, filter, segment, laws or plan wrote to."""
    episodes: tuple[str, ...] = ()
    """Only these, by name, number from 0, or range such as 200:300, where a page cannot hold all."""


def run_report(config: ReportCommand) -> Path:
    """The page, after its path was printed."""
    if not config.run.is_dir():
        raise FileNotFoundError(f"there is no folder {config.run}; expected a run. Make one: vhydro fit LOGS --out RUN")
    page = write_run_page(config.run, config.episodes)
    print(page)
    return page
