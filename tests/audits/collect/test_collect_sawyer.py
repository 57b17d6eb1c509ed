"""The Sawyer families: configuration, the worker's arithmetic, and real physics where robosuite is installed."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from vhydro.data import read
from vhydro_audits.collect.sawyer import FILES, FOLDER, VARIABLE, WORKER, SawyerConfig, collect_sawyer, summary

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get(VARIABLE) or ROOT / FOLDER / "bin" / "python")
simulated = pytest.mark.skipif(not PYTHON.is_file(), reason=f"no {FOLDER}: `make sawyer` creates it")


@pytest.fixture
def worker(monkeypatch):
    """Imports a file of the worker by name, and forgets it afterwards: another worker has files of the same name."""
    monkeypatch.syspath_prepend(str(WORKER))
    names = [path.stem for path in WORKER.glob("*.py")]
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules and name != "__main__"}
    yield importlib.import_module
    for name in names:
        if name != "__main__":
            sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"episodes": 0}, "--episodes 0; expected at least 1"), ({"seed": -1}, "--seed -1; expected at least 0")],
)
def test_bad_numbers_are_refused(change, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        SawyerConfig("tower", out=tmp_path, **change)


def test_a_file_that_exists_is_not_touched(tmp_path):
    config = SawyerConfig("tower", out=tmp_path)
    config.file.write_text("precious")
    with pytest.raises(ValueError, match=r"SawyerTower\.hdf5 exists; nothing was done\. Pass --overwrite"):
        collect_sawyer(config)
    assert config.file.read_text() == "precious"
    with pytest.raises(ValueError, match="which is a file; expected a folder"):
        collect_sawyer(SawyerConfig("tower", out=config.file))


def test_without_robosuite_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no-python"))
    with pytest.raises(ValueError, match=r"make sawyer.*--no-deps robosuite==1\.5\.2 robosuite_models==1\.0\.0"):
        collect_sawyer(SawyerConfig("tower", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_summary_counts_attempts_and_steps(tmp_path):
    config = SawyerConfig("search", out=tmp_path)
    config.file.write_bytes(bytes(2_500_000))
    words = summary(config, {"attempts": 4, "successes": 3, "lengths": [100, 110, 120]}, seconds=7.2)
    assert words.startswith("3 of 4 attempts succeeded (75%) and were kept; 110 steps on average, 100 to 120.")
    assert words.endswith("SawyerSearch.hdf5: 2.5 MB in 7 s.")


def test_solver_rows_become_normal_and_tangential_forces(worker):
    contacts = worker("contacts")
    rows = np.array([5.0, 3.0, 4.0, 0.1, 7.0, 2.0, 0.0, 1.0])
    # Four friction rows; none (frictionless); three; left out by the solver.
    normal, tangential = contacts.contact_forces(rows, np.array([0, 4, 5, -1]), np.array([4, 1, 3, 3]))
    np.testing.assert_array_equal(normal, [5, 7, 2, 0])
    np.testing.assert_array_equal(tangential, [5, 0, 1, 0])


def test_forces_add_up_by_pair_whatever_the_order(worker):
    contacts = worker("contacts")
    sides = np.array([contacts.OTHER, contacts.ARM, contacts.TABLE, contacts.OBJECT, contacts.OBJECT])
    geoms = np.array([[1, 3], [4, 1], [2, 1], [3, 2], [4, 3], [-1, 1], [2, -1], [0, 3], [1, 1]])
    total = contacts.pair_forces(geoms, 2.0 ** np.arange(9), np.ones(9), sides)
    by_name = dict(zip(contacts.PAIRS, total[:, 0], strict=True))
    assert by_name == {
        "grip_obj": 3, "grip_table": 4, "obj_table": 8, "obj_obj": 16, "grip_cloth": 32, "cloth_table": 64,
    }  # fmt: skip
    np.testing.assert_array_equal(total[:, 1], [2, 1, 1, 1, 1, 1])


def test_no_contact_is_no_force(worker):
    contacts = worker("contacts")
    nothing = np.zeros(0)
    normal, tangential = contacts.contact_forces(nothing, np.zeros(0, int), np.zeros(0, int))
    assert not contacts.pair_forces(np.zeros((0, 2), int), normal, tangential, np.array([1, 2])).any()


def test_a_step_is_summed_up_over_its_substeps(worker):
    contacts = worker("contacts")
    substeps = np.zeros((4, 6, 2))
    substeps[:, 0] = [[0, 0], [2, 1], [6, 3], [0, 0]]
    summed = contacts.step_summary(substeps)
    first = {name: values[0] for name, values in summed.items()}
    assert first == {"fn_mean": 2, "ft_mean": 1, "fn_max": 6, "ft_max": 3, "frac": 0.5}


@pytest.mark.parametrize("pair", ["grip_obj", "grip_table", "grip_cloth", "obj_table"])
def test_impact_is_four_steps_around_a_make_or_break_of_the_arm(worker, pair):
    contacts = worker("contacts")
    forces = np.zeros((16, 6))
    forces[5:12, contacts.PAIRS.index(pair)] = 1.0
    expected = [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 0, 0] if pair.startswith("grip") else [0] * 16
    np.testing.assert_array_equal(contacts.contact_modes(forces), expected)


def test_a_flat_cloth_covers_its_own_area_and_a_crumpled_one_less(worker):
    cloth = worker("cloth")
    n = cloth.COUNT
    corner = np.array([[i * n + j, (i + 1) * n + j, i * n + j + 1] for i in range(n - 1) for j in range(n - 1)])
    other = np.array([[i * n + j, i * n + j - 1, (i - 1) * n + j] for i in range(1, n) for j in range(1, n)])
    triangles = np.concatenate([corner, other])
    grid = np.stack(np.mgrid[:n, :n], axis=-1).reshape(-1, 2) * cloth.SPACING
    flat = np.concatenate([grid, np.zeros((n * n, 1))], axis=1)
    edge = 2 * cloth.RASTER / cloth.EDGE  # the raster counts points on the border
    assert 1 <= cloth.coverage(flat, triangles) < (1 + edge) ** 2
    points, _ = cloth.crumpled(np.random.default_rng(0))
    strips = np.linalg.norm(np.diff(points.reshape(n, n, 3), axis=0), axis=-1)
    np.testing.assert_allclose(strips, cloth.SPACING, atol=6e-4)  # no strip is stretched, up to the 0.5 mm of roughness
    assert cloth.coverage(points, triangles) < 0.85


def test_a_hand_in_its_place_asks_for_no_motion(worker):
    policies = worker("policies")
    hand = policies.Hand(tip=0.05)
    # Half a turn about the diagonal of x and y: x to y, y to x, z down.
    pose = {"robot0_eef_pos": np.array([0.1, 0.2, 1.0]), "robot0_eef_quat_site": np.array([1, 1, 0, 0]) / np.sqrt(2)}
    hand.see(pose, {})
    np.testing.assert_allclose(hand.tip(), [0.1, 0.2, 0.95], atol=1e-12)
    still = policies.Command(np.zeros(3), 0.0, policies.OPEN, policies.Phase.wait)
    np.testing.assert_allclose(hand.action(still), [0, 0, 0, 0, 0, 0, -1], atol=1e-12)
    turn = hand.action(still._replace(yaw=0.1, move=np.array([1.0, 0, -0.025])))
    np.testing.assert_allclose(turn, [1, 0, -0.5, 0, 0, 0.4, -1], atol=1e-12)


def test_a_noisy_hand_sways_smoothly_and_a_scripted_one_does_not_turn(worker):
    policies = worker("policies")

    def drawn(policy: str) -> np.ndarray:
        noise = policies.disturbances(np.random.default_rng(0), policy)
        return np.stack([next(noise) for _ in range(20_000)])

    sway, jitter = drawn("noisy"), drawn("scripted")
    lag = np.array([np.corrcoef(column[:-1], column[1:])[0, 1] for column in sway.T])
    # The standard error of a variance, from n samples of which each keeps m of the last: √(2 (1 + m²) / (1 − m²) / n).
    error = np.sqrt(2 * (1 + policies.MEMORY**2) / (1 - policies.MEMORY**2) / len(sway))
    np.testing.assert_allclose(sway.var(0) / policies.SWAY**2, 1, atol=5 * error)
    np.testing.assert_allclose(lag, policies.MEMORY, atol=5 * np.sqrt((1 - policies.MEMORY**2) / len(sway)))
    assert not jitter[:, 3:].any()


def test_an_unfinished_file_leaves_nothing(worker, tmp_path):
    recording = worker("recording")
    file = tmp_path / "SawyerTower.hdf5"
    with pytest.raises(RuntimeError), recording.episode_file(file, {"dt": 0.05}):
        raise RuntimeError("power cut")
    assert not list(tmp_path.iterdir())


def test_a_recording_has_one_row_for_each_action(worker, tmp_path):
    recording = worker("recording")
    log = recording.Recording()
    observations = [{"cube_pos": np.full(3, float(t))} for t in range(4)]
    for t in range(3):
        contact = {"fn_mean": np.zeros(6)}
        log.add(
            observations[t], np.zeros(5), np.zeros(7, np.float32), 2, reward=0.0, after=observations[t + 1],
            contact=contact,
        )  # fmt: skip
    with recording.episode_file(tmp_path / "file.hdf5", {"dt": 0.05}) as file:
        file.add(log, {"success": True})
    with h5py.File(tmp_path / "file.hdf5") as written:
        demo = written["data/demo_0"]
        np.testing.assert_array_equal(demo["obs/cube_pos"][:, 0], [0, 1, 2])
        np.testing.assert_array_equal(demo["next_obs/cube_pos"][:, 0], [1, 2, 3])
        np.testing.assert_array_equal(demo["dones"], [0, 0, 1])
        assert demo.attrs["num_samples"] == written["data"].attrs["total"] == 3


PHYSICS = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from contacts import PAIRS
from scenes import FAMILIES

scene, pair, still = FAMILIES["tower"](), PAIRS.index("obj_table"), np.array([0, 0, 0, 0, 0, 0, -1.0])
scene.begin(np.random.default_rng(0))
for _ in range(30):
    scene.advance(still)
model, data = scene.sim.model._model, scene.sim.data._data
bodies = [model.body(thing.root_body).id for thing in scene.objects]
weight = -model.opt.gravity[2] * model.body_subtreemass[bodies].sum()
found = {"weight": weight, "resting": scene.contact["fn_mean"][pair]}
for thing in scene.objects:
    data.qvel[model.joint(thing.joints[0]).dofadr[0]] = 0.5
scene.advance(still)
found["friction"] = scene.contact["ft_mean"][pair] / scene.contact["fn_mean"][pair]
print(json.dumps(found))
"""


@simulated
def test_resting_cubes_weigh_what_they_weigh_and_sliding_ones_rub_by_their_friction():
    run = subprocess.run([PYTHON, "-c", PHYSICS, WORKER], capture_output=True, check=True, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["resting"] == pytest.approx(found["weight"], rel=1e-6)
    assert found["friction"] == pytest.approx(0.8, rel=1e-6)  # the larger of 0.8 (cubes) and 0.6 (table)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory) -> Path:
    return collect_sawyer(SawyerConfig("bridge", out=tmp_path_factory.mktemp("once"), episodes=1, python=PYTHON))


@simulated
def test_a_collected_episode_is_a_success_with_contacts(bridge):
    assert bridge.name == FILES["bridge"]
    with h5py.File(bridge) as file:
        data, demo = file["data"], file["data/demo_0"]
        steps = int(demo.attrs["num_samples"])
        assert demo.attrs["success"]
        assert demo["actions"].shape == (steps, 7)
        assert demo["next_contact/fn_mean"].shape == (steps, len(data.attrs["contact_pairs"]))
        assert set(np.unique(demo["contact_mode"])) == {0, 1, 2}
        assert demo["rewards"][-1] == 1
        assert data.attrs["dt"] == 0.05
        assert json.loads(data.attrs["env_args"])["family"] == "bridge"
        assert demo["obs"].keys() == demo["next_obs"].keys()
        for name, values in demo["obs"].items():
            np.testing.assert_array_equal(values[1:], demo["next_obs"][name][:-1])


@simulated
def test_observations_and_states_are_of_one_moment(bridge):
    with h5py.File(bridge) as file:
        demo = file["data/demo_0"]
        states, target = demo["states"][()], demo["obs/target_pos"][()]
    gaps = [np.abs(states[:, i : i + 3] - target).max() for i in range(states.shape[1] - 2)]
    assert min(gaps) < 1e-6  # the object's joint is among the states, to single precision


@simulated
def test_the_reader_keeps_every_action_of_a_collected_file(bridge):
    dataset = read(bridge)
    with h5py.File(bridge) as file:
        actions = file["data/demo_0/actions"][()]
    np.testing.assert_array_equal(dataset[0].actions, actions)
    assert len(dataset[0].observations) == len(actions) + 1


@simulated
def test_the_same_seed_gives_the_same_arrays(bridge, tmp_path):
    again = collect_sawyer(SawyerConfig("bridge", out=tmp_path, episodes=1, python=PYTHON))
    assert arrays(again).keys() == arrays(bridge).keys()
    for name, values in arrays(bridge).items():
        np.testing.assert_array_equal(arrays(again)[name], values, err_msg=name)


def arrays(path: Path) -> dict[str, np.ndarray]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return found
