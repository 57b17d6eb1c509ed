"""Small valid files of every format that is not HDF5, in every layout, with contents a test can predict."""

import importlib.util
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vhydro.data.crc32c import masked_crc32c
from vhydro.data.dataset import Dataset
from vhydro.data.lerobot_write import write_lerobot
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Channel, Contact, Episode

ROWS = (6, 4, 5)  # observations of the three episodes


def ramp(rows: int, width: int, start: float = 0.0, dtype: type = np.float64) -> np.ndarray:
    """Numbers that tell their row and column: start + row + column / 100."""
    return (start + np.arange(rows)[:, None] + np.arange(width) / 100).astype(dtype)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def feature(value) -> bytes:
    """A `Feature` from floats, integers or byte strings."""
    if isinstance(value, list):
        return field(1, b"".join(field(1, item) for item in value))
    if value.dtype.kind == "f":
        return field(2, field(1, value.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(v)) for v in value.ravel())))


def example(features: dict) -> bytes:
    entries = (field(1, field(1, k.encode()) + field(2, feature(v))) for k, v in features.items())
    return field(1, b"".join(entries))


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def bridge_example(rows: int, start: float) -> bytes:
    steps = {
        "observation/state": ramp(rows, 7, start),
        "observation/image_0": [b"\xff\xd8 no image"] * rows,
        "action": ramp(rows, 7, -start),
        "is_first": np.arange(rows) == 0,
        "language_instruction": [b"put the cup away"] * rows,
        "language_embedding": ramp(rows, 4),
    }
    told = {"has_image_0": np.array([1]), "has_language": np.array([1]), "episode_id": np.array([-7])}
    return example({f"steps/{k}": v for k, v in steps.items()} | {f"episode_metadata/{k}": v for k, v in told.items()})


def tensor(*shape: int) -> dict:
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": "float32", "encoding": "none"}}


def tree(**features) -> dict:
    return {"featuresDict": {"features": features}}


BRIDGE_FEATURES = tree(
    steps={
        "sequence": {
            "feature": tree(
                observation=tree(state=tensor(7), image_0={"image": {"shape": {"dimensions": ["8", "8", "3"]}}}),
                action=tensor(7),
                is_first=tensor(),
                language_instruction={"text": {}},
                language_embedding=tensor(4),
            )
        }
    },
    episode_metadata=tree(has_image_0=tensor(), has_language=tensor(), episode_id=tensor()),
)


def made(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def rlds_bridge(folder: Path) -> Path:
    path = made(folder, "bridge-train.tfrecord-00000-of-00001")
    path.write_bytes(b"".join(framed(bridge_example(n, 100.0 * i)) for i, n in enumerate(ROWS)))
    (folder / "features.json").write_text(json.dumps(BRIDGE_FEATURES))
    return path


def rlds_folder(folder: Path) -> Path:
    for i, n in enumerate(ROWS):
        made(folder, f"bridge-train.tfrecord-0000{i}-of-00003").write_bytes(framed(bridge_example(n, 100.0 * i)))
    (folder / "features.json").write_text(json.dumps(BRIDGE_FEATURES))
    (folder / "dataset_info.json").write_text('{"name": "bridge_dataset"}')
    return folder


def rlds_other(folder: Path) -> Path:
    """Another robot, with nested keys, integers, and no features.json."""
    path = made(folder, "other.tfrecord")
    records = []
    for n in ROWS:
        keys = {
            "steps/observation/joint_pos": ramp(n, 3),
            "steps/observation/eef/force": ramp(n, 2, 10),
            "steps/observation/count": np.arange(n) - 2,
            "steps/action/arm": ramp(n, 2),
            "steps/reward": np.zeros(n, np.float32),
        }
        records.append(framed(example(keys)))
    path.write_bytes(b"".join(records))
    return path


def bridge_trajectory(rows: int, start: float) -> dict:
    """A trajectory as BridgeData's own script makes it: T observations, the T that follow, T actions."""
    states, steps = ramp(rows, 7, start), rows - 1
    images = [np.full((4, 4, 3), i, np.uint8) for i in range(rows)]
    seen = [{"images0": images[i], "state": states[i], "time_stamp": 0.2 * i} for i in range(rows)]
    return {
        "observations": seen[:-1],
        "next_observations": seen[1:],
        "actions": [ramp(steps, 7, -start)[i] for i in range(steps)],
        "terminals": [0] * steps,
        "language": ["put the cup away"],
    }


def bridge_numpy(folder: Path) -> Path:
    path = made(folder, "out.npy")
    np.save(path, np.array([bridge_trajectory(n, 100.0 * i) for i, n in enumerate(ROWS)], dtype=object))
    return path


def full_episode(i: int, rows: int) -> Episode:
    """An episode with something in every field, and a hidden value."""
    observations = ramp(rows, 3, 10.0 * i, np.float32)
    observations[1, 2] = np.nan
    force = np.r_[0.0, np.arange(1.0, rows)]
    return Episode(
        observations=observations,
        actions=ramp(rows - 1, 2, -1.0),
        dt=0.05,
        channels=(Channel("cube.x", "object", "m"), Channel("cube.vx", "object", "m/s"), Channel("goal.x", "scene")),
        inputs=(Channel("tcp.dx", "action", "m"), Channel("gripper.command", "action", "")),
        labels={"mode": np.arange(rows) % 2, "phase/name": np.array(["free", "touch"])[np.arange(rows) % 2]},
        contacts=(Contact(("hand", "cube"), 2 * force, force, force / 2), Contact(("cube", "table"), force, force)),
        info={"task": "push", "seed": float(i), "success": True},
        source=f"made:{i}",
    )  # fmt: skip


def full_dataset() -> Dataset:
    episodes = [full_episode(i, n) for i, n in enumerate(ROWS)]
    return Dataset("made", Path("made"), ("a", "b", "c/d"), episodes.__getitem__)


def npz_ours(folder: Path) -> Path:
    return write_npz(full_dataset(), made(folder, "ours.npz"))


def npz_lengths(folder: Path) -> Path:
    """Arrays of equal length and `lengths`, without a description."""
    path = made(folder, "guessed.npz")
    rows = sum(ROWS)
    np.savez_compressed(
        path, lengths=np.array(ROWS), dt=0.1, mass=2.5, action=ramp(rows, 2), position_m=ramp(rows, 3),
        speed_rad_s=np.arange(rows, dtype=np.float32),
    )  # fmt: skip
    return path


def npz_tables(folder: Path) -> Path:
    """A table for each run with shared column names."""
    path = made(folder, "runs.npz")
    columns = np.array(["time_s", "angle_rad", "torque_Nm"])
    runs = {f"run_{i}": np.c_[np.arange(n) * 0.01, ramp(n, 2, i)] for i, n in enumerate(ROWS)}
    np.savez(path, columns=columns, **runs)
    return path


DESCRIBED = {
    "time": "clock",
    "time_unit": "ms",
    "episodes": {"trial": "table[0]"},
    "observations": [
        {"key": "table[1:3]", "names": ["cart.x", "cart.vx"], "units": ["m", "m/s"]},
        {"key": "angle", "names": ["pole.angle"], "units": "rad", "group": "joints", "scale": 0.5},
    ],
    "actions": [{"key": "voltage", "names": ["cart.force"], "units": "N", "scale": "gain"}],
    "labels": {"touching": "touch"},
    "info": {"task": "balance", "gain": {"key": "gain"}},
}


def npz_described(folder: Path) -> Path:
    path = made(folder, "described.npz")
    rows = sum(ROWS)
    trial = np.repeat(np.arange(3.0), ROWS)
    clock = np.concatenate([np.arange(n) * 20.0 for n in ROWS])
    np.savez(
        path, table=np.c_[trial, ramp(rows, 2)], angle=ramp(rows, 1), voltage=np.arange(rows), clock=clock, gain=3.0,
        touch=np.arange(rows) % 2 == 0,
    )  # fmt: skip
    path.with_name("described.channels.json").write_text(json.dumps(DESCRIBED))
    return path


def csv_guessed(folder: Path) -> Path:
    path = made(folder, "log.csv")
    lines = ["trial,time_s,cart_m,cart_m_s,action"]
    for i, n in enumerate(ROWS):
        lines += [f"{i},{0.1 * t:.1f},{t}.5,{'' if t == 1 else -t},1e-{t + 1}" for t in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def csv_described(folder: Path) -> Path:
    """Semicolons, Windows line ends, a byte order mark, quotes, and a description for the whole folder."""
    path = made(folder, "log.csv")
    lines = ['"x, really";u;hit'] + [f"{t}.25;{t};{t % 2}" for t in range(ROWS[0])]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    said = {
        "dt": 0.01,
        "observations": [{"key": "x, really", "names": ["cart.x"], "units": "m"}],
        "actions": [{"key": "u", "names": ["cart.force"], "units": "N"}],
        "labels": {"hit": "hit"},
    }
    (folder / "channels.json").write_text(json.dumps(said))
    return path


def lerobot_ours(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return write_lerobot(full_dataset(), folder)


def lerobot_columns(i: int, rows: int, first: int) -> dict:
    import pyarrow as pa

    lists = {"observation.state": ramp(rows, 2, 10.0 * i, np.float32), "action": ramp(rows, 2, -i, np.float32)}
    return {k: pa.array(v.tolist(), pa.list_(pa.float32())) for k, v in lists.items()} | {
        "observation.environment_state": pa.array(np.arange(rows, dtype=np.float64)),
        "next.reward": pa.array(np.zeros(rows, np.float32)),
        "episode_index": pa.array(np.full(rows, i)),
        "frame_index": pa.array(np.arange(rows)),
        "index": pa.array(first + np.arange(rows)),
    }


def lerobot_info(version: str, data_path: str, names) -> dict:
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": names},
        "observation.environment_state": {"dtype": "float64", "shape": [1], "names": None},
        "observation.images.top": {"dtype": "video", "shape": [8, 8, 3], "names": ["height", "width", "channel"]},
        "action": {"dtype": "float32", "shape": [2], "names": names},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    }
    return {"codebase_version": version, "fps": 10, "chunks_size": 2, "data_path": data_path, "features": features}


def lerobot_v2(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    template = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info = lerobot_info("v2.1", template, {"motors": ["shoulder", "gripper"]})
    made(folder / "meta", "info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": i, "tasks": ["push"], "length": n}) for i, n in enumerate(ROWS)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines))
    for i, n in enumerate(ROWS):
        path = made(folder / "data" / f"chunk-00{i // 2}", f"episode_00000{i}.parquet")
        pq.write_table(pa.table(lerobot_columns(i, n, sum(ROWS[:i]))), path)
    return folder


def lerobot_v3(folder: Path) -> Path:
    """Two episodes in the first file, one in the second."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    template = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info = lerobot_info("v3.0", template, ["shoulder.pos", "gripper.pos"])
    made(folder / "meta", "info.json").write_text(json.dumps(info))
    listed = {
        "episode_index": [0, 1, 2],
        "length": list(ROWS),
        "tasks": [["push"]] * 3,
        "data/chunk_index": [0, 0, 0],
        "data/file_index": [0, 0, 1],
    }
    pq.write_table(pa.table(listed), made(folder / "meta" / "episodes" / "chunk-000", "file-000.parquet"))
    tables = [pa.table(lerobot_columns(i, n, sum(ROWS[:i]))) for i, n in enumerate(ROWS)]
    pq.write_table(pa.concat_tables(tables[:2]), made(folder / "data" / "chunk-000", "file-000.parquet"))
    pq.write_table(tables[2], folder / "data" / "chunk-000" / "file-001.parquet")
    return folder


def arrow_table():
    """Numbers, lists of numbers, a text, a time in its own type, and hidden values."""
    import pyarrow as pa

    rows = sum(ROWS)
    clock = np.concatenate([np.arange(n) * 20_000_000 for n in ROWS]) + 1_700_000_000_000_000_000
    return pa.table({
        "trial": np.repeat(np.arange(3), ROWS),
        "time": pa.array(clock, pa.timestamp("ns")),
        "q_rad": pa.array(ramp(rows, 2).tolist(), pa.list_(pa.float32())),
        "place_m": pa.FixedSizeListArray.from_arrays(pa.array(ramp(rows, 3, 10).ravel()), 3),
        "width_m": pa.array([None if i == 1 else i / 10 for i in range(rows)]),
        "action": np.arange(rows),
        "remark": ["fine"] * rows,
        "kind": pa.array(["a"] * rows).dictionary_encode(),
    })  # fmt: skip


def parquet_guessed(folder: Path) -> Path:
    import pyarrow.parquet as pq

    path = made(folder, "log.parquet")
    pq.write_table(arrow_table(), path, row_group_size=4, write_page_checksum=True)
    return path


def feather_guessed(folder: Path) -> Path:
    from pyarrow import feather

    path = made(folder, "log.feather")
    feather.write_feather(arrow_table(), path, compression="zstd")
    return path


def arrow_described(folder: Path) -> Path:
    """Arrow's file format in several batches, with a description."""
    import pyarrow as pa

    path = made(folder, "log.arrow")
    table = arrow_table()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    said = {
        "time": "time",
        "episodes": {"trial": "trial"},
        "observations": [{"key": "place_m[0:2]", "names": ["cart.x", "cart.y"], "units": "m"}],
        "actions": [{"key": "action", "names": ["cart.force"], "units": "N", "scale": 2}],
    }
    (folder / "log.channels.json").write_text(json.dumps(said))
    return path


BY_ARROW: dict[str, Callable[[Path], Path]] = {
    "lerobot_v2": lerobot_v2,
    "lerobot_v3": lerobot_v3,
    "lerobot_ours": lerobot_ours,
    "parquet_guessed": parquet_guessed,
    "feather_guessed": feather_guessed,
    "arrow_described": arrow_described,
}
BUILDERS: dict[str, Callable[[Path], Path]] = {
    "rlds_bridge": rlds_bridge, "rlds_folder": rlds_folder, "rlds_other": rlds_other, "bridge_numpy": bridge_numpy,
    "npz_ours": npz_ours, "npz_lengths": npz_lengths, "npz_tables": npz_tables, "npz_described": npz_described,
    "csv_guessed": csv_guessed, "csv_described": csv_described,
} | (BY_ARROW if importlib.util.find_spec("pyarrow") else {})  # fmt: skip
