"""Real files of other people, where they are at hand: names, units, rates, and the physics they must show."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from validity import assert_same, assert_valid

from vhydro.data import Dataset, read
from vhydro.data.convert import convert

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"


def shared(name: str) -> Dataset:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand: it is third-party data and not part of the project")
    dataset = read(path)
    for episode in dataset:
        assert_valid(episode)
    return dataset


def test_emps_force_moves_the_published_mass():
    episode = shared("real/emps.npz")[0]
    assert [(c.name, c.unit) for c in (*episode.channels, *episode.inputs)] == [
        ("axis.x", "m"), ("axis.reference", "m"), ("axis.force", "N"),
    ]  # fmt: skip
    assert episode.dt == 0.001
    smooth = partial(np.convolve, v=np.hanning(101) / np.hanning(101).sum(), mode="same")
    speed = np.gradient(episode.observations[:-1, 0], episode.dt)
    # every term and the force pass the same filter, or it would bias the fit
    law = (np.gradient(speed, episode.dt), speed, np.sign(smooth(speed)), np.ones(len(speed)))
    terms = np.stack([smooth(term) for term in law], axis=1)[200:-200]
    fitted = np.linalg.lstsq(terms, smooth(episode.actions[:, 0])[200:-200], rcond=None)[0]
    published = [episode.info[f"published_{name}"] for name in ("M", "Fv", "Fc", "offset")]
    assert fitted.tolist() == pytest.approx(published, rel=0.02)


def test_cube_tosses_fall():
    dataset = shared("real/cube_tosses.npz")
    assert len(dataset) == 400
    episode = dataset[0]
    assert [c.name for c in episode.channels][:7] == [f"cube.{q}" for q in ("x", "y", "z", "qw", "qx", "qy", "qz")]
    assert 1 / episode.dt == pytest.approx(148)
    np.testing.assert_allclose(np.linalg.norm(episode.observations[:, 3:7], axis=1), 1, atol=1e-3)
    falls = [np.diff(e.observations[:10, 9]).mean() / e.dt for e in dataset]
    assert np.median(falls) == pytest.approx(-9.81, rel=0.1)
    assert (episode.info["mass"], episode.actions.shape[1]) == (0.37, 0)


def test_pendulum_runs_have_their_own_rates():
    dataset = shared("real/dfki_simple_pendulum.npz")
    rates = {name: round(1 / e.dt) for name, e in zip(dataset.names, dataset, strict=True)}
    assert len(rates) == 9
    assert (rates["gravity_compensation"], rates["ilqr"], rates["energy_shaping"]) == (1000, 50, 200)
    episode = dataset.named(["energy_shaping"])[0]
    assert [(c.name, c.unit) for c in episode.inputs] == [("pendulum.torque", "N m")]
    slope = np.gradient(episode.observations[:, 0], episode.dt)
    assert np.corrcoef(slope, episode.observations[:, 1])[0, 1] > 0.95


def test_schmidt_lipson_by_trial():
    dataset = shared("real/schmidt_lipson.npz")
    assert dataset.names == (
        "linear_oscillator/0", "double_linear_oscillator/0", "pendulum/0", "double_pendulum/0", "double_pendulum/1",
    )  # fmt: skip
    assert [c.name for c in dataset[3].channels][:2] == ["upper.angle", "lower.angle"]
    assert 1 / dataset[4].dt == pytest.approx(100, rel=0.01)


def test_bees_have_change_points():
    dataset = shared("real/bees.npz")
    assert len(dataset) == 6
    assert dataset[0].labels["changepoint"].sum() == 19
    assert [c.name for c in dataset[0].channels] == ["bee.x", "bee.y", "bee.angle"]


def test_bridge_records():
    dataset = shared("formats/bridge_dataset-train.tfrecord-00000-of-00001")
    assert len(dataset) == 25
    episode = dataset[0]
    assert (episode.observations.shape, episode.actions.shape, episode.dt) == ((10, 7), (9, 7), 0.2)
    assert episode.info["task"] == "put cup from counter or drying rack into sink"
    moved = np.concatenate([np.diff(e.observations[:, :3], axis=0) for e in dataset])
    commanded = np.concatenate([e.actions[:, :3] for e in dataset])
    assert np.corrcoef(moved.ravel(), commanded.ravel())[0, 1] > 0.5


@pytest.mark.parametrize("name", ["emps.npz", "cube_tosses.npz", "dfki_simple_pendulum.npz", "bees.npz"])
def test_real_files_convert_without_loss(name, tmp_path):
    before = shared(f"real/{name}")
    after = read(convert(SHARED / "real" / name, "npz", tmp_path / "out.npz"))
    assert after.names == before.names
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)
