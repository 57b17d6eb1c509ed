"""Progress: told to whoever listens, shown on a terminal, and nowhere else."""

import os
import pty
import re
import sys
from dataclasses import replace

import jax
import numpy as np

from known_logs import valve_log
from vhydro.filter import filter_episodes
from vhydro.filter.run import PART, TOGETHER
from vhydro.fitting import fit
from vhydro.progress import _times, counted, heard, on_terminal, tell


def test_nobody_hears_it_unless_asked(capfd):
    tell("work", 1, 2)
    assert list(counted([1, 2], "work")) == [1, 2]
    with on_terminal():
        tell("work", 1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_listener_hears_every_part():
    said = []
    with heard(lambda *words: said.append(words)):
        assert list(counted("ab", "letters")) == ["a", "b"]
        assert list(counted(iter("ab"), "letters", 3)) == ["a", "b"]
    tell("after", 1, 1)
    assert said == [("letters", n, 2) for n in range(3)] + [("letters", n, 3) for n in range(3)]


def test_the_time_left_is_that_of_the_parts_that_were_done_here():
    assert _times(0, 10, 5) == "0/10, 0:05"
    assert _times(5, 10, 60) == "5/10, 1:00, 1:00 left"
    assert _times(9, 10, 3600, begun=8) == "9/10, 1:00:00, 1:00:00 left"  # eight were there before
    assert _times(10, 10, 7) == "10/10, 0:07"
    assert _times(0, None, 7) == "0:07"


def test_a_fit_and_a_long_filter_say_how_far_they_are():
    """Stages in their order, each to its end; a library call prints nothing."""
    said = []
    logs = [valve_log(seed) for seed in range(3)]
    with heard(lambda *words: said.append(words)):
        fitted = fit(logs, modes=1, refine=False)
        many = fitted.filter_all([logs[0]] * (TOGETHER + 2))
    stages = list(dict.fromkeys(what for what, _, _ in said))
    assert stages[0] == "finding modes through the plain view"
    assert stages[1] == "finding modes: numbers of modes tried"
    assert stages[-1] == "filtering logs"
    assert [(done, total) for what, done, total in said if what == stages[-1]] == [
        (TOGETHER, TOGETHER + 2), (TOGETHER + 2, TOGETHER + 2),
    ]  # fmt: skip
    assert len(many) == TOGETHER + 2


def test_what_is_filtered_in_parts_is_what_is_filtered_at_once():
    logs = [valve_log(seed) for seed in range(3)]
    fitted = fit(logs, modes=2, refine=False, calibrate=False)
    several = [replace(log, observations=log.observations + 0.01 * i) for i, log in enumerate(logs * 30)]
    seen, keys = [fitted.see(log) for log in several], jax.random.split(jax.random.key(0), len(several))
    parts = filter_episodes(fitted.model, seen, key=keys, settings=fitted.settings)
    at_once = filter_episodes(fitted.model, seen[:PART], key=keys[:PART], settings=fitted.settings)
    assert len(parts) == 90 > PART
    for one, other in zip(parts, at_once, strict=False):
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-4, atol=1e-5)


def shown(program: str) -> str:
    """What a program shows on a terminal, without what steers it."""
    seen = []

    def keep(handle: int) -> bytes:
        seen.append(os.read(handle, 65536))
        return seen[-1]

    status = pty.spawn([sys.executable, "-c", program], keep, lambda handle: b"")
    assert status == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode())


PROGRAM = """
import time
from vhydro.progress import Bar, counted, heard, on_terminal
bar = Bar(0.0)
time.sleep(0.1)
with heard(bar):
    for _ in counted(range(20), "digging"):
        time.sleep(0.05)
    print("found gold")
bar.close()
with on_terminal():
    for _ in counted(range(3), "too quick to be shown"):
        pass
"""


def test_a_terminal_shows_a_bar_with_the_time_left(capfd):
    text = shown(PROGRAM)
    capfd.readouterr()
    assert re.search(r"digging .* \d+/20, 0:0\d, 0:0\d left", text)
    assert "found gold" in text
    assert "too quick" not in text
