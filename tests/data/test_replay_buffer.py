"""Replay buffers of UMI and diffusion policy: names, rates that have to be given, codecs, and stores that lie."""

import json
import lzma
import shutil
import zipfile
import zlib
from contextlib import suppress

import numpy as np
import pytest
from builders_tables import ROWS, ramp
from builders_zarr import BUILDERS, TOTAL, write_store, zarr_stamped, zarr_umi, zarr_zip
from validity import assert_same

from vhydro.data import DataError, read
from vhydro.data.convert import convert
from vhydro.data.zarr_store import UNPACK, zstd_size
from vhydro.episodes import Channel

pytestmark = pytest.mark.skipif(not BUILDERS, reason="zarr, which writes the stores, is not installed")


def stored(path, arrays, compressor=None, **options):
    import zarr

    write_store(zarr.storage.LocalStore(path), arrays, compressor, **options)
    return path


def test_umi_has_a_hand_and_a_gripper(tmp_path):
    dataset = read(zarr_umi(tmp_path))
    first = sum(ROWS[:1])
    episode = dataset[1]
    named = {c.name: (c, episode.observations[:, i]) for i, c in enumerate(episode.channels)}
    assert named["tcp.x"][0] == Channel("tcp.x", "end_effector", "m")
    assert named["tcp.rz"][0].unit == "rad"
    assert named["gripper.width"][0] == Channel("gripper.width", "gripper", "m")
    np.testing.assert_array_equal(named["tcp.x"][1], ramp(TOTAL, 3, 1, np.float32)[first : first + ROWS[1], 0])
    assert [e.steps + 1 for e in dataset] == list(ROWS)
    assert "Left out: camera0_rgb (4 axes)." in dataset.notes


def test_a_rate_has_to_be_given(tmp_path):
    path = zarr_umi(tmp_path)
    assert read(path, rate=10)[0].dt == 0.1
    (tmp_path / "channels.json").unlink()
    with pytest.raises(DataError, match="no time and no rate in the store; expected a rate. Say it with --rate"):
        read(path)
    assert read(path, rate=20)[0].dt == 0.05
    assert read(zarr_stamped(tmp_path / "b"))[0].dt == pytest.approx(0.1)


def test_a_zip_file_is_the_same_as_its_folder_wherever_in_it_the_store_lies(tmp_path):
    path = zarr_umi(tmp_path / "a")
    (tmp_path / "b").mkdir()
    made = shutil.make_archive(str(tmp_path / "b" / "x"), "zip", path.parent, path.name)
    for mine, other in zip(read(path), read(made, rate=10), strict=True):
        np.testing.assert_array_equal(mine.observations, other.observations)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_buffer_becomes_an_npz_file(tmp_path, build):
    path = build(tmp_path)
    for mine, other in zip(read(convert(path, out=tmp_path / "x.npz")), read(path), strict=True):
        assert_same(mine, other)


def compressors():
    import numcodecs

    packed = [numcodecs.Blosc(c, 5, s) for c in ("lz4", "zstd", "zlib", "blosclz") for s in (0, 1, 2)]
    packed += [numcodecs.Zstd(3), numcodecs.LZ4(), numcodecs.Zlib(), numcodecs.GZip(), numcodecs.BZ2()]
    return [None, *packed, numcodecs.LZMA(preset=1)]


@pytest.mark.parametrize("number", range(19))
def test_every_codec_of_numbers_is_read(tmp_path, number):
    values = np.random.default_rng(0).normal(size=(TOTAL, 3)).cumsum(0)
    arrays = {"state": values, "action": ramp(TOTAL, 2, dtype=np.float32), "on": np.arange(TOTAL) % 2 == 0}
    dataset = read(stored(tmp_path / "x.zarr", arrays, compressors()[number], chunk=7), rate=10)
    found = np.concatenate([e.observations for e in dataset])
    np.testing.assert_array_equal(found, np.c_[arrays["on"], values])


def test_the_test_above_has_every_codec():
    assert len(compressors()) == 19
    assert {"", *(c.codec_id for c in compressors() if c)} == set(UNPACK)


def test_pieces_that_are_not_stored_are_said(tmp_path):
    path = stored(tmp_path / "x.zarr", {"state": ramp(TOTAL, 2, 1)})
    (path / "data" / "state" / "1.0").unlink()
    dataset = read(path, rate=10)
    assert "state: 1 pieces are not stored and stand for 0.0." in dataset.notes
    np.testing.assert_array_equal(dataset[0].observations[4:6], 0)
    header = path / "data" / "state" / ".zarray"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"fill_value": None}))
    with pytest.raises(DataError, match="key data/state/1.0: found nothing there"):
        read(path, rate=10)[0]


def test_unknown_codecs_and_filters_are_left_out(tmp_path):
    path = stored(tmp_path / "x.zarr", {"state": ramp(TOTAL, 2), "a": ramp(TOTAL, 2), "b": ramp(TOTAL, 2)})
    for name, change in (("a", {"compressor": {"id": "pickle"}}), ("b", {"filters": [{"id": "pickle"}]})):
        header = path / "data" / name / ".zarray"
        header.write_text(json.dumps(json.loads(header.read_text()) | change))
    dataset = read(path, rate=10)
    assert "Left out: a (codec pickle), b (a filter)." in dataset.notes
    assert [c.name for c in dataset[0].channels] == ["state_1", "state_2"]


def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path):
    path = stored(tmp_path / "x.zarr", {"state": ramp(TOTAL, 2)})
    piece = path / "data" / "state" / "1.0"
    piece.rename(tmp_path / "elsewhere")
    piece.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a link that leaves the folder"):
        read(path, rate=10)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [10**15, 2]}, "pieces; expected at most"),
        ({"shape": [10**9, 2], "chunks": [10**6, 2]}, "arrays of numbers with a row for each time"),
        ({"chunks": [1 << 40, 2]}, "pieces of 17,592,186,044,416"),
        ({"shape": [-1, 2]}, "shape"),
        ({"chunks": [0, 2]}, "pieces of"),
        ({"order": "X"}, "order 'X'"),
        ({"zarr_format": 3}, "format 3"),
        ({"shape": "no"}, "invalid literal"),
        ({"dtype": "<f4"}, "64 bytes"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, change, words):
    path = stored(tmp_path / "x.zarr", {"state": ramp(TOTAL, 2)})
    header = path / "data" / "state" / ".zarray"
    header.write_text(json.dumps(json.loads(header.read_text()) | change))
    with pytest.raises(DataError, match=words):
        read(path, rate=10)[0]


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma"])
def test_a_piece_unfolds_to_its_size_and_no_further(codec):
    pack = {c.codec_id: c for c in compressors() if c}[codec]
    large = pack.encode(bytes(1 << 24))
    for data in (large, pack.encode(bytes(999)), large[:30], b""):
        found = None
        with suppress(ValueError, RuntimeError, EOFError, OSError, zlib.error, lzma.LZMAError):
            found = UNPACK[codec](bytes(data), 1000)
        assert found is None or (len(found) in range(1002) and len(found) != 1000)  # which the reader then refuses
    assert UNPACK[codec](bytes(pack.encode(bytes(1000))), 1000) == bytes(1000)


@pytest.mark.parametrize("size", [20, 255, 256, 300, 70_000, 1 << 20])
def test_the_size_of_a_zstd_frame_is_read(size):
    import numcodecs

    rng = np.random.default_rng(0)
    assert zstd_size(bytes(numcodecs.Zstd().encode(rng.bytes(size)))) == size


@pytest.mark.parametrize("ends", [[5, 5, 15], [6, 10, 14], [9, 3], [-1, 15]])
def test_ends_that_do_not_fit_are_refused(tmp_path, ends):
    path = stored(tmp_path / "x.zarr", {"state": ramp(TOTAL, 2)})
    import zarr

    shutil.rmtree(path / "meta")
    group = zarr.open_group(zarr.storage.LocalStore(path), mode="a", zarr_format=2).create_group("meta")
    group.create_array("episode_ends", shape=(len(ends),), dtype="i8", compressors=None)[...] = ends
    with pytest.raises(DataError, match="lengths|arrays"):
        read(path, rate=10)


def test_format_3_is_told_apart(tmp_path):
    import zarr

    root = zarr.open_group(zarr.storage.LocalStore(tmp_path / "x.zarr"), mode="w", zarr_format=3)
    root.create_group("meta").create_array("episode_ends", shape=(1,), dtype="i8")
    with pytest.raises(DataError, match="a Zarr store of format 3"):
        read(tmp_path / "x.zarr")


def test_one_wrong_byte_of_the_zip_directory_never_gives_another_log(tmp_path):
    path = zarr_zip(tmp_path)
    content = path.read_bytes()
    sound = [e.observations.tobytes() for e in read(path)]
    with zipfile.ZipFile(path) as zipped:
        start = zipped.start_dir
    refused = 0
    for place in range(start, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        try:
            assert [e.observations.tobytes() for e in read(path)] == sound
        except DataError:
            refused += 1
    assert refused > 20
