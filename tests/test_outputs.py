"""Output that is not finished: one run at a time, names of its own, nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vhydro.outputs import LOCK, PARTIAL, BusyError, locked, remove_stale, unfinished, write_whole
from vhydro.report.files import staged


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def hold(folder: Path) -> None:
    with staged(folder):
        pass


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "x"
    write_whole(path, "old")

    def fail():
        with unfinished(path) as part:
            part.write_text("half")
            assert (part.parent, part.name[:3], part.suffix) == (tmp_path, ".x.", PARTIAL)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path) == {"x"}
    assert path.read_text() == "old"


def test_two_runs_never_share_a_partial_name(tmp_path):
    with unfinished(tmp_path / "x") as one, unfinished(tmp_path / "x") as other:
        assert one != other


def test_a_folder_is_written_by_one_run_which_the_second_names(tmp_path):
    with staged(tmp_path / "out") as scratch:
        (scratch / "a").write_text("first")
        with pytest.raises(BusyError, match=rf"out is being written by process {os.getpid()} on .* since 20"):
            hold(tmp_path / "out")
    assert names(tmp_path / "out") == {"a"}
    hold(tmp_path / "out")  # free again


KILLED = """
import os, signal, sys
from pathlib import Path
from vhydro.report.files import staged
with staged(Path(sys.argv[1])) as scratch:
    (scratch / "a").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = names(out)
    assert len(left) == 2
    assert LOCK in left
    with staged(out) as scratch:
        (scratch / "a").write_text("whole")
    assert names(out) == {"a"}
    assert (out / "a").read_text() == "whole"


def test_only_what_is_left_of_the_same_output_is_stale(tmp_path):
    for name in (".x.12ab.partial", ".xy.12ab.partial", "x.partial", ".x.notes"):
        (tmp_path / name).write_text("")
    with unfinished(tmp_path / "x") as mine:
        mine.write_text("")
        remove_stale(tmp_path / "x")
        assert names(tmp_path) == {".xy.12ab.partial", "x.partial", ".x.notes", mine.name}


def test_a_place_that_cannot_be_written_is_said_before_the_work():
    nowhere = Path("/proc/self/nothing")  # not even by an administrator
    if not nowhere.parent.exists():
        pytest.skip("no such place on this system")
    with pytest.raises(OSError, match="nothing cannot be made .*expected a place of your own"), staged(nowhere):
        pytest.fail("the work began")
    with pytest.raises(OSError, match="cannot be written"), locked(nowhere, nowhere):
        pytest.fail("the work began")


def test_files_of_somebody_else_are_not_replaced(tmp_path):
    (tmp_path / "summary.json").write_text("mine")
    files = ("beliefs.npz", "summary.json")
    with pytest.raises(FileExistsError, match="has summary.json but no beliefs.npz"), staged(tmp_path, files):
        pytest.fail("the work began")
    assert names(tmp_path) == {"summary.json"}
    (tmp_path / "beliefs.npz").write_text("an old result")
    with staged(tmp_path, files) as scratch:
        (scratch / "summary.json").write_text("new")
    assert (tmp_path / "summary.json").read_text() == "new"


# --- interrupts -------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import vhydro.cli
from vhydro.outputs import uninterrupted
from vhydro.report.files import staged
folder = Path(sys.argv[1])

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Swallows:
    def __del__(self):
        interrupt()  # raised here, it is reported and forgotten

def run(given):
    with staged(folder) as scratch:
        (scratch / "a").write_text("a")
{work}

vhydro.cli._run = run
sys.argv = ["vhydro", "demo"]
vhydro.cli.main()
print("went on")
"""
WORK = {
    "at once": "interrupt()",
    "swallowed": "x = Swallows(); del x; time.sleep(60)",
    "turned into another error": "try: interrupt()\nexcept KeyboardInterrupt: raise ImportError('half a module')",
    "turned into a user's error": "try: interrupt()\nexcept KeyboardInterrupt: raise ValueError('a bad number')",
    "twice": "try: interrupt()\nfinally: interrupt()",
    "at the end": "with uninterrupted():\n    interrupt()",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_an_interrupt_ends_with_130_and_leaves_nothing(work, tmp_path):
    program = PROGRAM.replace("{work}", textwrap.indent(work, " " * 8))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its jobs ignore it
    try:
        command = [sys.executable, "-c", program, str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vhydro: stopped.\n")
    finished = names(tmp_path / "out") if (tmp_path / "out").exists() else set()
    assert finished == ({"a"} if work == WORK["at the end"] else set())
