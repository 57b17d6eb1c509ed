"""npz logs: our own, described, guessed; and archives that lie about their size."""

import io
import json
import zipfile

import numpy as np
import pytest
from builders_tables import ROWS, full_dataset, npz_described, npz_lengths, npz_ours, npz_tables, ramp
from validity import assert_same

from vhydro.data import DataError, npz_archive, read
from vhydro.data.npz_logs import shipped
from vhydro.data.npz_native import write_npz


def test_our_own_gives_back_everything(tmp_path):
    made, found = full_dataset(), read(npz_ours(tmp_path))
    assert found.names == made.names
    for one, other in zip(made, found, strict=True):
        assert_same(one, other)
        assert one.actions.dtype == other.actions.dtype
        assert one.labels["mode"].dtype == other.labels["mode"].dtype
        np.testing.assert_array_equal(one.contacts[0].tangential, other.contacts[0].tangential)
        assert other.contacts[1].tangential is None


def test_our_own_is_plain_numpy_and_readable_text(tmp_path):
    path = npz_ours(tmp_path)
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["observations"].shape == (sum(ROWS), 3)
        assert arrays["lengths"].tolist() == list(ROWS)
    with zipfile.ZipFile(path) as zipped:
        assert json.loads(zipped.read("vhydro.json"))["channels"][0] == {
            "name": "cube.x",
            "group": "object",
            "unit": "m",
        }


def test_the_same_episodes_give_the_same_bytes(tmp_path):
    first = write_npz(full_dataset(), tmp_path / "a.npz").read_bytes()
    assert write_npz(full_dataset(), tmp_path / "b.npz").read_bytes() == first


def test_stored_arrays_stay_on_disk(tmp_path):
    archive = npz_archive.Archive.opened(npz_ours(tmp_path))
    assert isinstance(archive.array("observations"), np.memmap)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("lengths", np.array([6, 4])),
        ("lengths", np.array([6, 4, -5])),
        ("lengths", np.array([6, 4, 9])),
        ("observations", np.zeros((15, 2), np.float32)),
        ("observations", np.zeros((15, 3), np.int64)),
        ("actions", np.zeros((15, 2))),
        ("dt", np.zeros(2)),
        ("dt", np.full((3, 2), 0.1)),
        ("lengths", np.array([[6, 4, 5]])),
        ("labels/mode", np.zeros((15, 2), np.int64)),
        ("contacts/0/peak", np.zeros((15, 3))),
        ("observations", np.zeros((15, 3, 1), np.float32)),
        ("labels/mode", np.zeros(3)),
        ("contacts/0/peak", None),
    ],
)
def test_our_own_with_a_fault_names_the_key(tmp_path, key, values):
    path = npz_ours(tmp_path)
    with zipfile.ZipFile(path) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist() if name != f"{key}.npy"}
    if values is not None:
        content = io.BytesIO()
        np.save(content, values)
        members[f"{key}.npy"] = content.getvalue()
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    with pytest.raises(DataError) as caught:
        list(read(path))
    assert caught.value.key in (key, "observations" if key == "lengths" else key)


def test_lengths_divide_what_is_guessed(tmp_path):
    dataset = read(npz_lengths(tmp_path))
    assert [e.steps + 1 for e in dataset] == list(ROWS)
    episode = dataset[1]
    assert [(c.name, c.unit) for c in episode.channels] == [
        ("position_1", "m"), ("position_2", "m"), ("position_3", "m"), ("speed", "rad/s"),
    ]  # fmt: skip
    np.testing.assert_array_equal(episode.observations[:, :3], ramp(sum(ROWS), 3)[6:10])
    np.testing.assert_array_equal(episode.actions, ramp(sum(ROWS), 2)[6:9])
    assert episode.dt == 0.1
    assert episode.info == {"mass": 2.5}
    assert any("guessed" in note for note in dataset.notes)


def test_tables_with_column_names_are_guessed(tmp_path):
    dataset = read(npz_tables(tmp_path))
    assert dataset.names == ("run_0", "run_1", "run_2")
    episode = dataset[2]
    assert [(c.name, c.unit) for c in (*episode.channels, *episode.inputs)] == [("angle", "rad"), ("torque", "N m")]
    np.testing.assert_array_equal(episode.actions, ramp(5, 2, 2)[:-1, 1:])
    assert episode.dt == pytest.approx(0.01)


def test_a_description_is_followed(tmp_path):
    dataset = read(npz_described(tmp_path))
    assert dataset.names == ("0", "1", "2")
    episode = dataset[1]
    assert [(c.name, c.group) for c in episode.channels] == [
        ("cart.x", "object"),
        ("cart.vx", "object"),
        ("pole.angle", "joints"),
    ]
    np.testing.assert_array_equal(episode.observations[:, 2], 0.5 * np.arange(6, 10))
    np.testing.assert_array_equal(episode.actions[:, 0], 3.0 * np.arange(6, 9))
    assert episode.labels["touching"].dtype == bool
    assert episode.dt == pytest.approx(0.02)
    assert episode.info == {"task": "balance", "gain": 3.0}


def test_no_rate_is_said(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(5.0))
    dataset = read(tmp_path / "x.npz")
    assert dataset[0].dt == 1
    assert any("no rate" in note for note in dataset.notes)


def test_one_action_less_than_observations_is_kept_whole(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(5.0), y=np.arange(5.0), u=np.arange(4.0), dt=0.1)
    assert read(tmp_path / "x.npz")[0].actions.tolist() == [[0], [1], [2], [3]]


def test_what_is_infinite_names_its_channel(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([0, np.inf, 1]), dt=0.1)
    with pytest.raises(DataError, match="episode x, key x: found inf at row 1"):
        read(tmp_path / "x.npz")[0]


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}, print], dtype=object))
    with pytest.raises(DataError, match="key x: found pickled Python objects"):
        read(tmp_path / "x.npz")


def header(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("shape", ["(1000000000000000,)", "(4, 4611686018427387904)", "(-1,)", "('a',)", "(1e3,)"])
def test_absurd_shapes_are_refused_before_allocation(tmp_path, shape):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("x.npy", header(shape) + bytes(64))
    with pytest.raises(DataError, match="key x"):
        read(path)


def test_a_zip_bomb_is_refused_before_it_unfolds(tmp_path, allow):
    allow(1 << 20)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 20))
    assert (tmp_path / "x.npz").stat().st_size < 1 << 17
    with pytest.raises(DataError, match="compressed arrays"):
        read(tmp_path / "x.npz")


def test_one_name_twice_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("x.npy", header("(2,)") + bytes(16))
        zipped.writestr("y.npy", header("(2,)") + bytes(16))
    path.write_bytes(path.read_bytes().replace(b"y.npy", b"x.npy"))
    with pytest.raises(DataError, match="the name twice"):
        read(path)


def test_a_flipped_number_is_noticed(tmp_path):
    path = npz_ours(tmp_path)
    content = bytearray(path.read_bytes())
    place = content.find(ramp(1, 3, 0, np.float32).tobytes())
    content[place + 6] ^= 8
    path.write_bytes(content)
    with pytest.raises(DataError, match="key observations: found BadZipFile: Bad CRC"):
        read(path)


def test_shipped_descriptions_are_valid_and_differ():
    ranks = [tuple(sorted(d.ranks.items())) for d in shipped()]
    assert len(ranks) == len(set(ranks)) == 5
    assert all(ranks)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_header_without_end_is_not_read(tmp_path, compression, monkeypatch):
    path, size = tmp_path / "x.npz", 1 << 25
    with zipfile.ZipFile(path, "w", compression) as zipped:
        zipped.writestr("x.npy", b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + b" " * size)
    consumed = []
    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting(zipfile.ZipExtFile.read, consumed))
    with pytest.raises(DataError, match=f"key x: found ValueError: a header of {size + 12} bytes"):
        read(path)
    assert sum(consumed) < 1 << 17


def counting(read_bytes, consumed: list[int]):
    """The same function, which notes how much it gave."""

    def counted(stream, count=-1):
        data = read_bytes(stream, count)
        consumed.append(len(data))
        return data

    return counted


def test_sizes_are_summed_before_any_header_is_read(tmp_path, allow):
    allow(1 << 20)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("broken.npy", b"no header")
        zipped.writestr("x.npy", header("(262144,)") + bytes(1 << 21))
    with pytest.raises(DataError, match="compressed arrays"):
        read(tmp_path / "x.npz")
