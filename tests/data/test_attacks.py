"""Files made to exhaust time or memory, read in a process whose memory is limited; and single wrong bytes."""

import importlib.util
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import builders_bags
import builders_hdf5
import builders_tables
import builders_zarr
import h5py
import numpy as np
import pytest
from builders_tables import ROWS

from vhydro.data import DataError, read
from vhydro.data.dataset import Dataset
from vhydro.data.inspection import inspect
from vhydro.data.npz_archive import Archive
from vhydro.episodes import Episode

# Reads each file and tells its outcome, its seconds and by how much it raised the largest memory use so far.
WORKER = """
import json, resource, sys, time
from vhydro.data import DataError, read
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB
size = int(next(line for line in open('/proc/self/status') if line.startswith('VmSize')).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30),) * 2)
for path in sys.argv[1:]:
    began, before = time.process_time(), used()
    try:
        outcome = f'read {len(list(read(path)))}'
    except DataError as error:
        outcome = str(error)
    print(json.dumps([outcome, time.process_time() - began, used() - before]), flush=True)
"""
MEBIBYTES, SECONDS = 1200, 5  # of the processor: far below what an unguarded reader takes, far above what is needed


class Outcome(NamedTuple):
    words: str
    seconds: float
    mebibytes: float


def repeated(path: Path, state, action, times: int) -> None:
    """A trajectory of one state and one action, each meant many times."""
    step = {"state": state}
    made = np.empty(1, object)
    made[0] = {"observations": [step] * times, "next_observations": [step] * times, "actions": [action] * times}
    np.save(path, made, allow_pickle=True)


def claimed(path: Path, count: int) -> None:
    """The header of many trajectories, and nothing behind it."""
    text = f"{{'descr': '|O', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(count))


def chunked(path: Path) -> None:
    """A few numbers kept in one piece of 2 GiB, which shrinks to 2 MiB."""
    builders_hdf5.maniskill_flat(path.parent).rename(path)
    with h5py.File(path, "r+") as file:
        del file["traj_0/actions"]
        created = file.create_dataset(
            "traj_0/actions", (5, 8), "f4", maxshape=(None, 8), chunks=(1 << 26, 8), compression="gzip"
        )
        created.id.write_direct_chunk((0, 0), b"\x78\x9c" + bytes(1 << 21))


def packed(path: Path) -> None:
    """Compressed zeros, a thousand times the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped, zipped.open("x.npy", "w") as member:
        rows = 1 << 26
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (rows,)})
        for _ in range(64):
            member.write(bytes(rows * 8 // 64))


def columns_csv(path: Path, count: int = 10_000) -> None:
    row = ",".join(["0.5"] * count)
    path.write_text("\n".join([",".join(f"c{i}" for i in range(count)), row, row, row]))


def columns_npz(path: Path, count: int = 10_000) -> None:
    np.savez(path, **{f"c{i}": np.arange(3.0) for i in range(count)})  # pyright: ignore[reportArgumentType]


def columns_parquet(path: Path, count: int = 10_000) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"c{i}": [0.5, 0.5, 0.5] for i in range(count)}), path)


def sparse_bag(path: Path, count: int = 10, size: int = 1 << 30) -> None:
    """A bag of 10 GiB, nearly all of it images that are holes in the file."""
    from mcap.writer import IndexType, Writer

    with path.open("wb") as file:
        writer = Writer(file, use_chunking=False, index_types=IndexType.NONE)
        writer.start("ros2", "test")
        number = writer.register_schema("std_msgs/msg/Float64", "ros2msg", b"float64 data")
        image = writer.register_schema("sensor_msgs/msg/Image", "ros2msg", b"uint8[] data")
        angle, camera = (writer.register_channel(f"/{n}", "cdr", s) for n, s in (("angle", number), ("camera", image)))
        for i in range(count):
            writer.add_message(angle, i * 100_000_000, b"\0\1\0\0" + np.float64(i).tobytes(), 0)
            file.write(struct.pack("<BQHIQQ", 5, 22 + size, camera, 0, i * 100_000_000, 0))
            file.seek(size, 1)
        writer.finish()


ATTACKS = {
    "ints.npy": (lambda path: repeated(path, np.zeros(20_000, np.int8), np.zeros(7), 100_000), "2,000,000,000 numbers"),
    "lists.npy": (lambda path: repeated(path, [1] * 20_000, np.zeros(7), 100_000), "2,000,000,000 numbers"),
    "actions.npy": (lambda path: repeated(path, np.zeros(7), np.zeros(20_000), 100_000), "2,000,000,000 numbers"),
    "claim.npy": (lambda path: claimed(path, 10_000_000), "10000000 trajectories in"),
    "chunk.h5": (chunked, "pieces of 2,147,483,648 bytes"),
    "packed.npz": (packed, "compressed arrays of 0.5 GiB"),
    "columns.csv": (columns_csv, "read 1"),
    "columns.npz": (columns_npz, "read 1"),
}
ATTACKS |= {"images.mcap": (sparse_bag, "read 1")} if importlib.util.find_spec("mcap") else {}
ATTACKS |= {"columns.parquet": (columns_parquet, "read 1")} if importlib.util.find_spec("pyarrow") else {}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("attacks")
    paths = [folder / name for name in ATTACKS]
    for path in paths:
        ATTACKS[path.name][0](path)
    command = [sys.executable, "-c", WORKER, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(ATTACKS, told, strict=True))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the limit is set by what Linux tells")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_cannot_exhaust_time_or_memory(name, outcomes):
    words, seconds, mebibytes = outcomes[name]
    assert ATTACKS[name][1] in words
    assert seconds < SECONDS
    assert mebibytes < MEBIBYTES


def outcome(path: Path):
    """The whole log as plain values, or None where it is refused."""
    try:
        dataset = read(path)
        return [(name, repr(e), e.channels, e.observations.tobytes(), e.actions.tobytes(), dict(e.info))
                for name, e in zip(dataset.names, dataset, strict=True)]  # fmt: skip
    except DataError:
        return None


@pytest.mark.parametrize("build", [builders_tables.npz_lengths, builders_tables.npz_ours])
def test_one_wrong_byte_of_a_zip_archive_never_gives_another_log(tmp_path, build):
    """The directory and the headers, which have no checksum, byte by byte."""
    path = build(tmp_path)
    content, sound = path.read_bytes(), outcome(path)
    with zipfile.ZipFile(path) as zipped:
        heads = [range(m.header_offset, m.header_offset + 30 + len(m.filename)) for m in zipped.infolist()]
        places = [*range(zipped.start_dir, len(content)), *(i for head in heads for i in head)]
    refused = 0
    for place in places[::3]:
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        found = outcome(path)
        refused += found is None
        assert found in (None, sound), f"byte {place}"
    assert refused > len(places) / 9  # the damage is real


def test_an_entry_left_out_of_the_directory_is_noticed(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros(3), y=np.ones(3))
    with zipfile.ZipFile(path) as zipped:
        start = zipped.start_dir
        size = 46 + len("x.npy")
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    record = bytearray(content[end:])
    record[8:12] = (1).to_bytes(2, "little") * 2
    record[12:16] = (end - start - size).to_bytes(4, "little")
    path.write_bytes(content[:start] + content[start + size : end] + record)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.namelist() == ["y.npy"]  # which Python takes for the whole
    with pytest.raises(DataError, match="zip directory: found entries that do not account for"):
        read(path)


def test_shapes_are_known_once(tmp_path):
    columns_npz(tmp_path / "x.npz", 5)
    archive = Archive.opened(tmp_path / "x.npz")
    assert archive.shapes is archive.shapes


def test_a_damaged_pickle_is_read_once_for_all_its_episodes(tmp_path, monkeypatch):
    path = builders_tables.bridge_numpy(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    calls = []
    from vhydro.data import bridge

    whole = bridge.unpickled_inertly
    monkeypatch.setattr(bridge, "unpickled_inertly", lambda *given: calls.append(given) or whole(*given))
    found = inspect(path)
    assert found.unreadable == len(ROWS)
    assert len(calls) == 1


JSON = {
    "maniskill_full": "PickCube-v1.json", "aloha_described": "channels.json", "rlds_bridge": "features.json",
    "npz_described": "described.channels.json", "csv_described": "channels.json", "lerobot_v2": "info.json",
    "lerobot_v3": "info.json", "lerobot_ours": "vhydro.json", "bag_arm": "arm.channels.json",
    "zarr_umi": "channels.json", "arrow_described": "log.channels.json",
}  # fmt: skip
BUILDERS = {
    **builders_hdf5.BUILDERS, **builders_tables.BUILDERS, **builders_bags.BUILDERS, **builders_zarr.BUILDERS
}  # fmt: skip


@pytest.mark.parametrize("layout", [name for name in JSON if name in BUILDERS])
def test_a_truncated_json_is_parsed_once_for_all_episodes(tmp_path, monkeypatch, layout):
    path = BUILDERS[layout](tmp_path / layout)
    (file,) = [*tmp_path.rglob(JSON[layout])] or [path.with_name(JSON[layout])]
    whole = file.read_text() if file.exists() else '{"dt": 0.1, "info": {"a": 1}}'
    file.write_text(whole[: len(whole) // 2])
    failed, loads = [], json.loads

    def counted(text, **options):
        try:
            return loads(text, **options)
        except ValueError:
            failed.append(text)
            raise

    monkeypatch.setattr(json, "loads", counted)
    with pytest.raises(DataError):
        inspect(path)
    assert len(failed) == 1


def test_memory_that_is_not_there_is_an_error_of_the_file(tmp_path):
    def greedy(index: int) -> Episode:
        raise MemoryError

    dataset = Dataset("made", tmp_path / "x", ("a",), greedy)
    with pytest.raises(DataError, match="x, episode a: found more than memory holds"):
        dataset[0]
    with pytest.raises(DataError, match="more than memory holds"):
        list(dataset)


def test_an_episode_of_a_table_has_to_fit(tmp_path, allow):
    np.savez(tmp_path / "x.npz", x=np.zeros((1000, 3)), dt=0.1)
    allow(24_000)
    assert len(read(tmp_path / "x.npz")[0].observations) == 1000
    allow(23_999)
    with pytest.raises(DataError, match="episode x: found 1,000 rows of 3 numbers"):
        read(tmp_path / "x.npz")[0]
