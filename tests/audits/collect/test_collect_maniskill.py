"""Collecting in ManiSkill: what is refused, the worker's own parts, and one real episode where it is installed."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import h5py
import numpy as np
import pytest
import tyro

from vhydro.data import read
from vhydro.data.sample import FILES
from vhydro.episodes import Episode
from vhydro_audits.collect.maniskill import (
    FOLDER,
    REMEDY,
    VARIABLE,
    Collected,
    ManiSkillConfig,
    Task,
    collect_maniskill,
    summary,
)
from vhydro_audits.collect.maniskill_worker import attempts, contacts, motions, recording
from vhydro_audits.collect.worker import interpreter

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-maniskill"
STILL = 1e-5  # m a step; a resting cube creeps by less than 1e-6


# --- the configuration ----------------------------------------------------------------------------------------


def test_flags_are_parsed():
    config = tyro.cli(ManiSkillConfig, args=["PushCube", "--episodes", "3", "--out", "x", "--policy", "noisy"])
    assert (config.task, config.episodes, config.policy, config.file) == (
        "PushCube",
        3,
        "noisy",
        Path("x/PushCube-v1.h5"),
    )


def test_the_help_names_every_task(capsys):
    with pytest.raises(SystemExit):
        tyro.cli(ManiSkillConfig, args=["--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(get_args(Task)) <= words


def test_every_task_has_its_bodies_and_its_file():
    tasks = get_args(Task)
    assert set(contacts.OBJECTS) == set(tasks)
    assert {task: FILES[task] for task in tasks} == {task: ManiSkillConfig(task, Path()).file.name for task in tasks}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"episodes": 0}, "--episodes 0; expected at least 1"),
        ({"seed": -1}, "--seed -1; expected a number from 0"),
        ({"seed": 2**31}, "--seed 2147483648"),
        ({"noise": 0.0}, "--noise 0; expected radians"),
        ({"out": Path("logs.h5") / "runs"}, "without it"),
    ],
)
def test_a_bad_configuration_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        ManiSkillConfig(**{"task": "PushCube", "out": Path("x"), **wrong})


@pytest.mark.parametrize("ending", [".h5", ".json"])
def test_an_earlier_file_is_not_overwritten(tmp_path, ending):
    existing = tmp_path / f"PushCube-v1{ending}"
    existing.write_text("mine")
    with pytest.raises(ValueError, match="Pass --overwrite"):
        collect_maniskill(ManiSkillConfig("PushCube", tmp_path))
    assert existing.read_text() == "mine"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="which is a file; expected a folder"):
        collect_maniskill(ManiSkillConfig("PushCube", tmp_path / "x"))


def test_the_summary_counts_failures():
    record = Collected(Path(__file__), (10, 20), (True, False), attempts=5, seconds=1.0)
    assert "1 of 2 episodes succeeded (50%); seeds without a demonstration to start from: 3" in summary("noisy", record)
    assert "2 of 5 attempts succeeded (40%) and were kept; 15 steps on average, 10 to 20" in summary("planned", record)


# --- finding it --------------------------------------------------------------------------------------


def simulator(given):
    return interpreter(given, VARIABLE, FOLDER, "mani_skill", REMEDY)


def fake_environment(folder: Path, status: int) -> Path:
    """A Python that answers every question about its modules with this status."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    return python


def test_without_the_simulator_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match="make maniskill.*mplib==0.1.1 numpy==1.26.4.*--python or " + VARIABLE):
        collect_maniskill(ManiSkillConfig("PushCube", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_of_a_parent_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    python = fake_environment(tmp_path / ".venv-maniskill", status=0)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert simulator(None) == python


def test_the_variable_goes_before_the_folder_and_the_option_before_both(tmp_path, monkeypatch):
    fake_environment(tmp_path / ".venv-maniskill", status=0)
    monkeypatch.chdir(tmp_path)
    named, asked = (fake_environment(tmp_path / name, status=0) for name in ("named", "asked"))
    monkeypatch.setenv(VARIABLE, str(named))
    assert simulator(None) == named
    assert simulator(asked) == asked


def test_a_python_without_maniskill_is_refused(tmp_path):
    python = fake_environment(tmp_path, status=1)
    with pytest.raises(ValueError, match="cannot import 'mani_skill'. Run `make maniskill`"):
        simulator(python)


# --- attempts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes_only", "kept", "tried"), [(True, [True, True, True], 6), (False, [True, False, True], 4)]
)
def test_only_what_the_policy_keeps_becomes_an_episode(successes_only, kept, tried):
    outcomes, said = {7: True, 8: None, 9: False, 10: True, 11: False, 12: True}, []
    facts = attempts.collected(
        outcomes.__getitem__, lambda: 5, lambda _, **event: said.append(event["seed"]),
        episodes=3, seed=7, successes_only=successes_only,
    )  # fmt: skip
    assert facts == {"attempts": tried, "lengths": [5, 5, 5], "successes": kept}
    assert said == list(range(7, 7 + tried))


def test_too_many_failures_end_the_run():
    tried = []
    with pytest.raises(ValueError, match=r"20 attempts in a row came to nothing \(seeds 3 to 22\)"):
        attempts.collected(tried.append, lambda: 5, lambda *_, **event: None, episodes=1, seed=3, successes_only=False)
    assert tried == list(range(3, 23))


# --- motions ----------------------------------------------------------------------------------------------------


def test_noise_starts_at_zero_and_has_its_deviation_and_correlation():
    walks, correlation = 4000, 5.0
    path = motions.smooth_noise(np.random.default_rng(0), 41, walks, deviation=0.1, correlation=correlation)
    assert np.all(path[0] == 0)
    share = path[-1] / 0.1
    error = np.sqrt(2 / walks)  # of a variance
    assert abs(share.var() - 1) < 5 * error
    assert abs(np.mean(share * path[-6] / 0.1) - np.exp(-5 / correlation)) < 5 * error


def test_a_smooth_path_ends_at_its_waypoints_at_rest():
    waypoints = np.array([[0.0, 1.0], [2.0, 0.0], [-1.0, 3.0]])
    path = motions.smooth_path(waypoints, 50)
    assert path.shape == (100, 2)
    np.testing.assert_allclose(path[[49, 99]], waypoints[1:])
    speed = np.abs(np.diff(path, axis=0)).max(1)
    assert max(speed[[0, 48, 49, 98]]) < 0.01 * speed.max()


# --- contacts ---------------------------------------------------------------------------------------------------


def touch(first: int, second: int, *impulses):
    """A contact as SAPIEN reports it."""
    bodies = [SimpleNamespace(entity=SimpleNamespace(per_scene_id=number)) for number in (first, second)]
    return SimpleNamespace(bodies=bodies, points=[SimpleNamespace(impulse=i) for i in impulses])


def test_forces_add_up_and_turn_round_with_the_pair():
    names, pairs = {1: "cube", 2: "table", 3: "hand"}, (("cube", "hand"), ("cube", "table"), ("hand", "table"))
    seen = [touch(1, 2, [0, 0, 0.1], [0, 0, 0.2]), touch(3, 1, [0.5, 0, 0]), touch(9, 1, [7, 7, 7])]
    forces = contacts.pair_forces(seen, names, pairs, timestep=0.01)
    np.testing.assert_allclose(forces, [[-50, 0, 0], [0, 0, 30], [0, 0, 0]])


def test_a_step_keeps_the_last_the_mean_and_the_largest_of_its_substeps():
    log = contacts.StepForces((("cube", "hand"),))
    for substep in ([3, 4, 0], [0, 0, 1], [0, 0, 0], [0, 0, 2]):
        log.substep(np.array([substep], float))
        if substep[2]:
            log.end_step()
    arrays = log.arrays()["cube__hand"]
    np.testing.assert_allclose(arrays["force"], [[0, 0, 1], [0, 0, 2]])
    np.testing.assert_allclose(arrays["force_mean"], [[1.5, 2, 0.5], [0, 0, 1]])
    np.testing.assert_allclose(arrays["force_norm_max"], [5, 2])
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.float32)}


def test_the_gripper_is_paired_with_everything_but_itself():
    pairs = contacts.body_pairs(["cube", "peg"])
    assert len(pairs) == len(set(map(frozenset, pairs))) == 12
    assert ("cube", "peg") in pairs
    assert ("lfinger", "table") in pairs
    assert not any(set(pair) <= set(contacts.GRIPPER) for pair in pairs)


# --- files that are whole or not there ----------------------------------------------------------------------------


def write(stage: Path, words: str) -> None:
    for ending in (".h5", ".json"):
        recording.beside(stage, ending).write_text(words)


def test_files_appear_together_at_the_end(tmp_path):
    with recording.staged(tmp_path / "new", "A-v1", overwrite=False) as stage:
        write(stage, "done")
        assert all(p.name.startswith(".") for p in stage.parent.iterdir())
    assert {p.name: p.read_text() for p in (tmp_path / "new").iterdir()} == {"A-v1.h5": "done", "A-v1.json": "done"}


def interrupted_run(folder: Path) -> None:
    with recording.staged(folder, "A-v1", overwrite=True) as stage:
        write(stage, "half")
        raise KeyboardInterrupt


def test_an_interrupted_run_leaves_the_folder_as_it_was(tmp_path):
    write(tmp_path / "A-v1", "old")
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"A-v1.h5": "old", "A-v1.json": "old"}


def test_a_file_that_appeared_meanwhile_is_kept(tmp_path):
    stage, final = tmp_path / "stage", tmp_path / "A-v1"
    write(stage, "mine")
    write(final, "theirs")
    with pytest.raises(FileExistsError, match="A-v1.h5 appeared"):
        recording.publish(stage, final, overwrite=False)
    assert recording.beside(final, ".h5").read_text() == recording.beside(final, ".json").read_text() == "theirs"
    recording.publish(stage, final, overwrite=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"A-v1.h5": "mine", "A-v1.json": "mine"}


def test_contacts_must_match_the_actions(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["traj_0/actions"] = np.zeros((3, 8))
        with pytest.raises(ValueError, match="2 rows of force of a__b for 3 actions"):
            recording.write_contacts(file["traj_0"], {"a__b": {"force": np.zeros((2, 3))}})


# --- the real thing -----------------------------------------------------------------------------------------------


def arrays(path: Path) -> dict[str, np.ndarray]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def with_simulator(test):
    """Skips the test where ManiSkill cannot run."""
    linux = pytest.mark.skipif(sys.platform != "linux", reason="ManiSkill's motion planner exists for Linux only")
    there = pytest.mark.skipif(not ENVIRONMENT.is_dir(), reason="needs .venv-maniskill, which `make maniskill` creates")
    return linux(there(test))


@with_simulator
def test_a_pushed_cube_moves_with_the_first_force(tmp_path, capsys):
    python = ENVIRONMENT / "bin" / "python"
    collected = collect_maniskill(ManiSkillConfig("PushCube", tmp_path, episodes=1, seed=5, python=python))
    assert "1 of 1 attempts succeeded" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["PushCube-v1.h5", "PushCube-v1.json"]
    found, steps = arrays(collected.file), collected.lengths[0]
    episode = {name.removeprefix("traj_0/"): values for name, values in found.items()}
    assert episode["actions"].shape == (steps, 8)
    assert episode["obs/agent/qpos"].shape == (steps + 1, 9)
    assert episode["env_states/actors/cube"].shape == (steps + 1, 13)
    assert episode["success"][-1]
    assert not episode["truncated"].any()
    for pair in ("obj__hand", "obj__table", "lfinger__table"):
        shapes = [episode[f"contact_forces/{pair}/{k}"].shape for k in ("force", "force_mean", "force_norm_max")]
        assert shapes == [(steps, 3), (steps, 3), (steps,)]
    gripper = sum(episode[f"contact_forces/obj__{part}/force_norm_max"] for part in ("lfinger", "rfinger", "hand"))
    travel = np.abs(np.diff(episode["env_states/actors/cube"][:, :3], axis=0)).max(1)
    first = int(np.argmax(travel > STILL))
    assert 0 < first < steps - 1
    assert np.all(gripper[:first] == 0)
    assert gripper[first] > 0.1
    record = json.loads(collected.file.with_suffix(".json").read_text())
    assert record["env_info"]["control_freq"] == 20
    assert record["episodes"][0] | {"episode_seed": 5, "success": True, "elapsed_steps": steps} == record["episodes"][0]


def demonstration(task: str, folder: Path) -> Episode:
    """A planned episode, as a user reads it."""
    config = ManiSkillConfig(task, folder, episodes=1, seed=5000, python=ENVIRONMENT / "bin" / "python")
    (episode,) = read(collect_maniskill(config).file)
    assert episode.info["success"]
    return episode


def touching(episode: Episode) -> dict[str, np.ndarray]:
    """Of each pair that ever touches, in which rows; the hand is one body, the table is left out."""
    found: dict[str, np.ndarray] = {}
    for contact in episode.contacts:
        names = ["hand" if body in contacts.GRIPPER else body for body in contact.bodies]
        if contact.peak.any() and "table" not in names:
            found["+".join(names)] = found.get("+".join(names), False) | (contact.peak > 0)
    return found


def place(episode: Episode, body: str) -> np.ndarray:
    return episode.observations[:, episode.columns(body=body, quantities=("x", "y", "z"))]


def first(rows: np.ndarray) -> int:
    return int(np.argmax(rows))


def runs(rows: np.ndarray, gap: int = 5) -> int:
    """How often rows begin to hold after not holding for more than `gap` of them."""
    held = np.flatnonzero(rows)
    return 1 + int(np.sum(np.diff(held) > gap + 1))


@with_simulator
def test_a_pushed_cube_pushes_another_which_the_hand_never_touches(tmp_path):
    episode = demonstration("PushPair", tmp_path)
    seen = touching(episode)
    assert set(seen) == {"cubeA+hand", "cubeA+cubeB"}
    moved = np.abs(np.diff(place(episode, "cubeB"), axis=0, prepend=place(episode, "cubeB")[:1])).max(1) > STILL
    assert first(seen["cubeA+hand"]) < first(seen["cubeA+cubeB"]) == first(moved)
    assert not seen["cubeA+hand"][-1]


@with_simulator
def test_a_knocked_ball_rolls_on_without_the_hand_and_comes_to_rest(tmp_path):
    episode = demonstration("KnockBall", tmp_path)
    seen = touching(episode)
    assert set(seen) == {"ball+hand"}
    assert runs(seen["ball+hand"]) == 1
    ball = place(episode, "ball")
    moved = np.linalg.norm(np.diff(ball, axis=0, prepend=ball[:1]), axis=1) > STILL
    left = len(moved) - first(seen["ball+hand"][::-1])  # the first row after the last touch
    assert first(seen["ball+hand"]) == first(moved)
    assert moved[left : left + 20].all()
    assert not moved[-1]
    assert np.linalg.norm(ball[-1] - ball[left]) > 0.1
    np.testing.assert_allclose(ball[:, 2], 0.025, atol=1e-3)


@with_simulator
def test_a_cube_is_grasped_twice_and_across_other_faces(tmp_path):
    episode = demonstration("RegraspCube", tmp_path)
    seen = touching(episode)
    assert set(seen) == {"cube+hand"}
    assert runs(seen["cube+hand"]) == 2
    height = place(episode, "cube")[:, 2]
    assert runs(height > 0.05) == 2
    turn = episode.observations[:, episode.columns(body="tcp", quantities=("qw", "qx", "qy", "qz"))]
    held = turn[first(height > 0.05)], turn[len(height) - 1 - first((height > 0.05)[::-1])]
    assert 2 * np.arccos(abs(held[0] @ held[1])) == pytest.approx(np.pi / 2, abs=0.1)
    assert not seen["cube+hand"][-1]


@with_simulator
def test_the_upper_cubes_of_a_tower_fall(tmp_path):
    episode = demonstration("ToppleTower", tmp_path)
    seen = touching(episode)
    assert {"cubeA+cubeB", "cubeB+cubeC", "cubeB+hand"} <= set(seen)
    assert "cubeA+hand" not in seen
    assert all(seen[pair][1 : first(seen["cubeB+hand"])].all() for pair in ("cubeA+cubeB", "cubeB+cubeC"))
    heights = {body: place(episode, body)[[0, -1], 2] for body in ("cubeA", "cubeB", "cubeC")}
    np.testing.assert_allclose(list(heights.values()), [[0.02, 0.02], [0.06, 0.02], [0.1, 0.02]], atol=1e-3)


@with_simulator
def test_a_sphere_falls_into_its_bin(tmp_path):
    seen = touching(demonstration("PlaceSphere", tmp_path))
    assert set(seen) == {"sphere+hand", "sphere+bin"}
    released = len(seen["sphere+hand"]) - first(seen["sphere+hand"][::-1])
    assert first(seen["sphere+hand"]) < released - 10 < first(seen["sphere+bin"])
    assert seen["sphere+bin"][-1]


@with_simulator
def test_a_pyramid_ends_on_its_two_lower_cubes(tmp_path):
    episode = demonstration("StackPyramid", tmp_path)
    seen = touching(episode)
    assert {"cubeC+hand", "cubeA+cubeC", "cubeB+cubeC"} <= set(seen)
    assert seen["cubeA+cubeC"][-1] & seen["cubeB+cubeC"][-1]
    assert not seen["cubeC+hand"][-1]
    assert place(episode, "cubeC")[-1, 2] == pytest.approx(0.06, abs=1e-3)
