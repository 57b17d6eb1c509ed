"""`vhydro laws find`: from logs to printed laws with one command; what cannot be meant is told in words."""

import numpy as np
import pytest

from command_line import outcome
from laws.law_logs import swinging
from vhydro import fitting
from vhydro.data import write
from vhydro.episodes import Channel, Episode
from vhydro.laws import load_law


def springs(*, extra: str = "", names: tuple[str, str] = ("cart", "push")) -> list[Episode]:
    """A mass on a spring, with spans of 40 rows hidden; `extra` is the name of a channel of its velocity."""
    recording, random = swinging(1e-3), np.random.default_rng(0)
    out = []
    for seen, force in zip(recording.positions, recording.actions, strict=True):
        q = seen.copy()
        for first in random.integers(40, 340, 2).tolist():
            q[first : first + 40] = np.nan
        channels = [Channel(names[0], unit="m")]
        if extra:
            q = np.concatenate([q, np.gradient(seen, recording.dt, axis=0)], 1)
            channels.append(Channel(extra, unit="m/s" if extra == "rate" else ""))
        out.append(Episode(q, force, recording.dt, tuple(channels), (Channel(names[1], unit="N"),)))
    return out


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    path = tmp_path_factory.mktemp("find") / "springs.npz"
    write(springs(extra="rate"), path)
    return path


def test_one_command_finds_the_law_with_spans_hidden_and_a_velocity_beside(logs, tmp_path, capsys):
    asked = ["--modes", "1", "--out", str(tmp_path / "law.json")]
    status, out, errors = outcome(["laws", "find", str(logs), *asked], capsys)
    assert (status, "Warning" in errors, "unidentified" in out) == (0, False, False)
    assert "stiffness" in out
    law = load_law(tmp_path / "law.json")
    assert law.coordinates == ("cart", "p")
    assert law.status(0) == "identified"


def test_of_very_long_logs_a_law_is_found_from_stretches(logs, monkeypatch, capsys):
    """Every log has its share of them, and the law says so."""
    monkeypatch.setattr(fitting, "MOST_ROWS", 1600)
    monkeypatch.setattr(fitting, "STRETCH", 200)
    status, out, _ = outcome(["laws", "find", str(logs), "--modes", "1"], capsys)
    rows = sum(len(log.observations) for log in springs())
    assert (status, "stiffness" in out) == (0, True)
    assert f"It is found from 1,600 of {rows:,} rows, in 8 stretches at equal steps." in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--modes", "0"], "expected at least 1"),
        (["--positions", "cart", "--forces", "push", "push"], "more than once"),
        (["--view", "plain"], "expected the mechanics view"),
    ],
)
def test_what_cannot_be_meant_is_misuse(logs, flags, words, capsys):
    status, _, errors = outcome(["laws", "find", str(logs), *flags], capsys)
    assert (status, words in errors, "Traceback" in errors) == (2, True, False)


def test_no_force_is_told_with_the_flags_that_name_one(logs, capsys):
    status, _, errors = outcome(["laws", "find", str(logs), "--positions", "cart"], capsys)
    assert status == 1
    assert "--forces" in errors
    assert not {"port", "dissipation", "Traceback"} & set(errors.replace("`", " ").split())


def test_where_no_file_can_be_is_told_before_any_work(logs, tmp_path, capsys):
    status, _, errors = outcome(["laws", "find", str(logs), "--out", str(tmp_path / "no" / "law.json")], capsys)
    assert (status, "no folder" in errors) == (1, True)
    status, _, errors = outcome(["laws", "find", str(logs), "--out", str(tmp_path)], capsys)
    assert (status, "is a folder; expected a file for the law" in errors) == (1, True)


def test_another_view_finds_no_law(tmp_path, capsys):
    path = tmp_path / "plain.npz"
    write([Episode(np.zeros((50, 1)), np.zeros((49, 0)), 0.1, (Channel("heat", unit="K"),))] * 2, path)
    status, _, errors = outcome(["laws", "find", str(path)], capsys)
    assert status == 1
    assert "--positions" in errors
