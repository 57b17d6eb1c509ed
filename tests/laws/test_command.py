"""`vhydro laws`: what the flags say is known, and the law of a file printed and kept."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from vhydro.cli import main
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.laws import load_law
from vhydro.laws.command import LawsCommand, problem_of, recording_of
from vhydro.systems import Pendulum, Puck, simulate, to_episodes


@pytest.fixture(scope="module")
def episodes():
    return to_episodes(simulate(Puck(), 6, 400, 0.005, key=jax.random.key(3)), 0.001, key=jax.random.key(4))


@pytest.fixture(scope="module")
def file(episodes, tmp_path_factory):
    names = tuple(f"episode {i}" for i in range(len(episodes)))
    path = tmp_path_factory.mktemp("log") / "puck.npz"
    return write_npz(Dataset("memory", Path("puck"), names, lambda i: episodes[i]), path)


def test_episodes_of_different_length_are_padded_with_nothing(episodes):
    short = replace(
        episodes[0], observations=episodes[0].observations[:101], actions=episodes[0].actions[:100], labels={}
    )
    found = recording_of([short, episodes[1]], ["q"], 2)
    assert found.positions.shape == (2, 401, 1)
    assert np.isnan(found.positions[0, 101:]).all()
    assert found.modes[0, 101:].sum() == 0
    np.testing.assert_allclose(found.modes[1].sum(-1), 1)


def test_a_step_that_changes_is_refused(episodes):
    with pytest.raises(ValueError, match=r"steps of 0.005 to 0.01 s; expected one for all"):
        recording_of([episodes[0], replace(episodes[1], dt=0.01)], ["q"], 2)


def test_flags_say_what_is_known(episodes):
    plain = problem_of(episodes[0], LawsCommand("find", Path("x")), 3)
    np.testing.assert_array_equal(plain.port, [[0], [1]])
    moved = problem_of(episodes[0], LawsCommand("find", Path("x"), carried_by=("a0",), friction=(1.2,)), 3)
    np.testing.assert_array_equal(moved.port, [[-1], [np.nan]])
    assert moved.dissipation.tolist() == [1.2]
    with pytest.raises(ValueError, match="unknown input 'torque'; the log has a0"):
        problem_of(episodes[0], LawsCommand("find", Path("x"), forces=("torque",)), 3)
    with pytest.raises(ValueError, match="2 frictions for 1 positions"):
        problem_of(episodes[0], LawsCommand("find", Path("x"), friction=(1.0, 2.0)), 3)
    swing = to_episodes(simulate(Pendulum(), 1, 10, 0.005, key=jax.random.key(0)), 0.0, key=jax.random.key(0))[0]
    assert "cos(angle)" in [
        t.text(("angle", "p")) for t in problem_of(swing, LawsCommand("find", Path("x")), 1).library
    ]


def test_the_law_of_a_file_is_found_printed_and_kept(file, tmp_path, capsys):
    main(["laws", "find", str(file), "--modes", "3", "--estimator", "weak", "--out", str(tmp_path / "law")])
    said = capsys.readouterr().out
    law = load_law(tmp_path / "law" / "law.json")
    assert [law.status(m) for m in range(3)] == ["identified"] * 3
    assert "mass" in said
    assert abs(0.5 / next(iter(law.energy(law.form.base).values())).value - 0.5) < 0.01
    assert {b.guard.side for b in law.form.blocks if b.guard} == {"above", "below"}
    assert (tmp_path / "law" / "model.safetensors").exists()
