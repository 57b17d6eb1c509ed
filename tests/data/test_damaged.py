"""Damaged files: whatever is wrong, reading works or says in one `DataError` where the fault is."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import builders_bags
import builders_hdf5
import builders_tables
import builders_zarr
import h5py
import numpy as np
import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from validity import assert_valid

from vhydro.data import DataError, read
from vhydro.data.guarded_file import GuardedFile

BUILDERS = {**builders_hdf5.BUILDERS, **builders_tables.BUILDERS, **builders_bags.BUILDERS, **builders_zarr.BUILDERS}
EXAMPLES = 480


@pytest.fixture(scope="module")
def sound() -> Iterator[dict[str, Path]]:
    """A valid file of each layout, each in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield {name: build(Path(folder) / name) for name, build in BUILDERS.items()}


def fault(path: Path) -> DataError | None:
    """None if every episode can be read and is valid, or else the error."""
    try:
        for episode in read(path):
            assert_valid(episode)
    except DataError as error:
        return error
    return None


def assert_tells(error: DataError, folder: Path) -> None:
    """Fails unless the error names a file of the folder, on one line that can be printed."""
    assert error.file in str(error)
    assert Path(error.file).is_relative_to(folder)
    assert str(error).isprintable()


@settings(max_examples=EXAMPLES, database=None)
@given(layout=st.sampled_from(sorted(BUILDERS)), seed=st.integers(0, 2**32 - 1))
def test_a_damaged_file_is_read_or_refused_by_name(sound, layout, seed):
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / layout
        original = sound[layout]
        home = original if original.is_dir() else original.parent
        shutil.copytree(home, folder)
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        damaged(files[int(rng.integers(len(files)))], rng)
        error = fault(folder if original.is_dir() else folder / original.name)
        if error is not None:
            assert_tells(error, folder)


VARIANTS = 300
FORMATS = {
    "ROS 2 bags": tuple(builders_bags.BUILDERS),
    "ALOHA": ("aloha", "aloha_described"),
    "Zarr": tuple(builders_zarr.BUILDERS),
    "Parquet and Arrow": tuple(n for n in builders_tables.BUILDERS if n.startswith(("parquet", "feather", "arrow"))),
}


@pytest.mark.parametrize("layouts", FORMATS.values(), ids=FORMATS)
def test_three_hundred_damaged_variants_of_a_format(sound, layouts, tmp_path):
    if not layouts:
        pytest.skip("what writes this format is not installed")
    refused = 0
    for seed in range(VARIANTS):
        rng = np.random.default_rng(seed)
        original = sound[layouts[seed % len(layouts)]]
        folder = shutil.copytree(original.parent, tmp_path / str(seed))
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.endswith((".zattrs", ".zgroup")))
        damaged(files[int(rng.integers(len(files)))], rng)
        error = fault(folder / original.name)
        if error is not None:
            assert_tells(error, folder)
            refused += 1
    assert refused > VARIANTS / 3  # the damage is real


def test_the_damage_is_real(sound, tmp_path):
    """Sound files are read, and most damaged ones are refused, or the test above would prove nothing."""
    refused = 0
    for i, (layout, path) in enumerate(builders_hdf5.BUILDERS.items()):
        assert fault(sound[layout]) is None
        for j in range(5):
            folder = tmp_path / f"{i}_{j}"
            copy = path(folder)
            damaged(copy, np.random.default_rng(100 * i + j))
            refused += fault(copy) is not None
    assert 20 <= refused < 50


MANISKILL_FAULTS = [
    ("traj_2/actions", None, "actions", "a key 'actions'"),
    ("traj_2/actions", np.zeros((4, 8), "S4"), "actions", "numbers"),
    ("traj_2/actions", np.full((4, 8), np.inf), "arm.joint_target_1", "finite"),
    ("traj_2/env_states/actors/cube", np.zeros((4, 13)), "env_states/actors/cube", "shape (5, 13)"),
    ("traj_2/env_states/actors/cube", np.zeros((5, 12)), "env_states/actors/cube", "shape (5, 13)"),
    ("traj_2/env_states/actors/cube", np.full((5, 13), np.inf), "cube.x", "finite"),
    ("traj_2/env_states/articulations/panda", np.zeros((5, 30)), "env_states/articulations/panda", "13 of the root"),
    ("traj_2/obs/extra/tcp_pose", np.zeros((5, 7), complex), "obs/extra/tcp_pose", "numbers"),
    ("traj_2/contact_forces/cube__table/force", None, "contact_forces/cube__table/force", "a group or a dataset"),
    ("traj_2/contact_forces/cube__table/force", np.full((4, 3), np.nan), "contact_forces/cube__table", "newtons"),
]
ROBOMIMIC_FAULTS = [
    ("data/demo_2/actions", None, "actions", "actions"),
    ("data/demo_2/actions", np.zeros((0, 7)), "actions", "at least one action"),
    ("data/demo_2/actions", np.zeros(4), "actions", "shape (any, any)"),
    ("data/demo_2/obs/cloth_vert", np.zeros((3, 2, 3)), "obs/cloth_vert", "shape (4, 2, 3)"),
    ("data/demo_2/obs/robot0_eef_pos", np.zeros((4, 4)), "obs/robot0_eef_pos", "shape (4, 3)"),
    ("data/demo_2/next_contact/fn_max", np.zeros((4, 3)), "next_contact/fn_max", "shape (4, 2)"),
    ("data/demo_2/next_contact/fn_max", np.full((4, 2), np.inf), "next_contact/fn_max", "newtons"),
    ("data/demo_2/contact_mode", np.zeros((9,)), "contact_mode", "shape (4)"),
]


@pytest.mark.parametrize(
    ("layout", "place", "values", "key", "expected"),
    [("maniskill_full", *f) for f in MANISKILL_FAULTS] + [("sawyer", *f) for f in ROBOMIMIC_FAULTS],
)
def test_the_error_names_episode_key_and_expectation(tmp_path, layout, place, values, key, expected):
    path = BUILDERS[layout](tmp_path)
    with h5py.File(path, "r+") as file:
        del file[place]
        if values is not None:
            file[place] = values
    dataset = read(path)
    dataset[0], dataset[2]  # the fault is the second episode's alone
    with pytest.raises(DataError) as caught:
        dataset[1]
    assert caught.value.file == str(path)
    assert caught.value.episode == dataset.names[1]
    assert caught.value.key == key
    assert expected in str(caught.value)


@pytest.mark.parametrize("link", [h5py.SoftLink("/traj_0/actions"), h5py.ExternalLink("other.h5", "/actions")])
def test_links_out_of_an_episode_are_not_followed(tmp_path, link):
    path = builders_hdf5.maniskill_full(tmp_path)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["actions"] = np.zeros((5, 8))
    with h5py.File(path, "r+") as file:
        del file["traj_0/actions"]
        file["traj_0/actions"] = link
    with pytest.raises(DataError, match="link to somewhere else"):
        read(path)[0]


def test_numbers_kept_in_another_file_are_not_read(tmp_path):
    path = builders_hdf5.maniskill_flat(tmp_path)
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"not yours" * 1000)
    with h5py.File(path, "r+") as file:
        del file["traj_0/env_states"]
        file.create_dataset("traj_0/env_states", (6, 44), "f4", external=[(str(secret), 0, 6 * 44 * 4)])
    with pytest.raises(DataError, match="data kept in another file"):
        read(path)[0]


def test_datasets_that_are_too_large_together_are_refused(tmp_path, allow):
    path = builders_hdf5.maniskill_released(tmp_path)
    allow(3000)  # bytes: enough for each episode, too little for two
    assert len(list(read(path))) == 3
    allow(1000)  # enough for each dataset
    with pytest.raises(DataError, match="episode traj_0, key env_states/.* with those before it; .*at most 1,000"):
        read(path)[0]


def test_absurd_sizes_are_refused_before_they_are_allocated(tmp_path):
    path = builders_hdf5.maniskill_flat(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["traj_0/actions"]
        file.create_dataset("traj_0/actions", (10**15, 8), "f4", chunks=(4, 8))
    with pytest.raises(DataError, match=r"32,000,000,000,000,000 bytes"):
        read(path)[0]


def test_a_heap_that_never_ends_is_refused(tmp_path):
    """libhdf5 would read it for ever: a block of zeros inside the heap that holds the attributes' texts."""
    path = builders_hdf5.robosuite_states(tmp_path)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    with GuardedFile(path) as sound:
        sound.seek(heap)
        assert sound.readinto(bytearray(64)) == 64
    content[heap + 16 : heap + 64] = bytes(48)
    path.write_bytes(content)
    with GuardedFile(path) as guarded:
        guarded.seek(heap - 8)
        with pytest.raises(OSError, match=f"heap at byte {heap}"):
            guarded.readinto(bytearray(64))
    with pytest.raises(DataError, match="damaged"):
        read(path)


def test_attributes_of_varying_length_are_not_read(tmp_path):
    """Damaged ones crash libhdf5; nothing that a reader looks for is stored so."""
    path = builders_hdf5.sawyer(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["data"].attrs["env_args"]
        ragged = np.empty(1, object)
        ragged[0] = np.zeros(3, np.uint8)
        file["data"].attrs.create("env_args", ragged, dtype=h5py.vlen_dtype(np.uint8))
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.key == "data/@env_args"


def test_a_damaged_file_is_not_skipped_in_a_folder(tmp_path):
    builders_hdf5.maniskill_full(tmp_path / "a")
    broken = builders_hdf5.maniskill_full(tmp_path / "b")
    broken.write_bytes(broken.read_bytes()[:2000])
    with pytest.raises(DataError, match="does not open"):
        read(tmp_path)
