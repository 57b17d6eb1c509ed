"""The step of a log from its time stamps."""

from pathlib import Path

import numpy as np
import pytest

from vhydro.data.timing import step_from_stamps


def step(stamps):
    return step_from_stamps(Path("log.csv"), "log", "t", stamps)


@pytest.mark.parametrize("rate", [10, 50, 200])
def test_stamps_that_jitter_tell_one_rate_for_all_files(rate):
    random = np.random.default_rng(rate)
    for rows in (100, 600, 3000):
        stamps = np.arange(rows) / rate + 0.035 / rate * random.uniform(-1, 1, rows)
        dt, notes = step(stamps)
        assert dt == 1 / rate
        assert len(notes) == 1
        assert "time stamps jitter by up to" in notes[0]


def test_a_rate_that_is_none_is_not_made_one():
    """29.97 frames a second are not 30 where the stamps can tell."""
    random = np.random.default_rng(0)
    stamps = np.arange(3000) / 29.97 + 1e-3 * random.uniform(-1, 1, 3000)
    assert step(stamps)[0] == pytest.approx(1 / 29.97, rel=2e-5)


def test_gaps_are_no_part_of_the_mean():
    random = np.random.default_rng(1)
    stamps = np.arange(600) / 50 + 5e-4 * random.uniform(-1, 1, 600)
    stamps[300:] += 2.0
    dt, notes = step(stamps)
    assert dt == 0.02
    assert any("gaps in time: 1" in n for n in notes)


def test_even_stamps_are_taken_as_they_are():
    assert step(0.033 * np.arange(50)) == (pytest.approx(0.033, rel=1e-12), ())
