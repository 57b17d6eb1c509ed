"""The pages of the committed results, written by the command as a user runs it."""

import subprocess
import sys
from pathlib import Path

from vhydro_audits.pages.frame import AUDITS

RESULTS = Path(__file__).parents[3] / "results"


def linked(folder: Path, audit: str) -> Path:
    """A folder that holds an audit's committed files and no page."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (RESULTS / audit).iterdir():
        if file.suffix != ".html":
            (folder / file.name).symlink_to(file)
    return folder


def written_pages(folder: Path) -> tuple[Path, list[str]]:
    """The folder of the pages, and what the command said; in a process of its own, without the tests' type checks."""
    for audit in AUDITS:
        linked(folder / "results" / audit, audit)
    command = [sys.executable, "-c", "from vhydro.cli import main; main(['audit', 'page'])"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / "results", done.stdout.split()
