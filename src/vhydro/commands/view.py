"""`vhydro view RUN`: a run in Rerun's viewer, with the file `RUN/run.rrd` to open again or to send on."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vhydro.outputs import LOCK, locked
from vhydro.report.rerun_file import imported_rerun, write_rrd
from vhydro.report.run_files import read_run


@dataclass(frozen=True)
class ViewCommand:
    """Show a run in Rerun's viewer: signals, bands, modes, and bodies in space; needs the extra `rerun`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder that filter or segment wrote to."""
    open: bool = True
    """Whether to open the viewer, where there is a screen; the file is written in any case."""


def run_view(config: ViewCommand) -> Path:
    """The file, after it was written and, where that is possible, shown."""
    imported_rerun()
    run = read_run(config.run)
    if not run.episodes:
        raise FileNotFoundError(
            f"{config.run} has no logs to show; expected what filter or segment writes. "
            f"Run: vhydro filter {config.run} LOGS --out {config.run}"
        )
    with locked(config.run / LOCK, config.run):
        path = write_rrd(run, config.run / "run.rrd")
    print(path)
    if config.open and has_screen():
        subprocess.Popen(
            [sys.executable, "-m", "rerun", str(path)], start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    else:
        print(f"To look at it: rerun {path}")
    return path


def has_screen() -> bool:
    """Whether a window could be opened here."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(k) for k in ("DISPLAY", "WAYLAND_DISPLAY"))
