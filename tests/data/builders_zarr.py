"""Small replay buffers, written by the zarr library, with contents a test can predict."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from builders_tables import ROWS, ramp

TOTAL = sum(ROWS)


def write_store(store, arrays: dict, compressor, *, chunk: int = 4) -> None:
    import zarr

    root = zarr.open_group(store, mode="w", zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    for name, values in arrays.items():
        pieces = (chunk, *values.shape[1:])
        made = data.create_array(name, shape=values.shape, chunks=pieces, dtype=values.dtype, compressors=compressor)
        made[...] = values
    ends = meta.create_array("episode_ends", shape=(len(ROWS),), dtype="i8", compressors=None)
    ends[...] = np.cumsum(ROWS)


def umi_arrays() -> dict:
    return {
        "robot0_eef_pos": ramp(TOTAL, 3, 1, np.float32),
        "robot0_eef_rot_axis_angle": ramp(TOTAL, 3, 2, np.float32),
        "robot0_gripper_width": ramp(TOTAL, 1, 3, np.float32),
        "robot0_demo_start_pose": ramp(TOTAL, 6, 4),
        "camera0_rgb": np.zeros((TOTAL, 4, 4, 3), np.uint8),
    }


def odd_codec(header: str) -> str:
    """The header of images as UMI writes it, packed by a codec that only it has."""
    return json.dumps(json.loads(header) | {"compressor": {"id": "imagecodecs_jpegxl"}})


def zarr_umi(folder: Path) -> Path:
    """A folder with images of an unknown codec, and its rate beside it."""
    import numcodecs
    import zarr

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "umi.zarr"
    packed = numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE)
    write_store(zarr.storage.LocalStore(path), umi_arrays(), packed)
    header = path / "data" / "camera0_rgb" / ".zarray"
    header.write_text(odd_codec(header.read_text()))
    (folder / "channels.json").write_text('{"dt": 0.1}')
    return path


def zarr_zip(folder: Path) -> Path:
    """Diffusion policy's arrays in a zip file, with a description of all of them."""
    import numcodecs
    import zarr

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "push.zarr.zip"
    store = zarr.storage.ZipStore(path, mode="w")
    arrays = {"action": ramp(TOTAL, 2, 1), "state": ramp(TOTAL, 5, 2, np.float32), "n_contacts": np.arange(TOTAL)}
    write_store(store, arrays, numcodecs.Zstd())
    store.close()
    said = {
        "dt": 0.1,
        "observations": [{"key": "state[0:2]", "names": ["tcp.x", "tcp.y"]}, {"key": "state[4]", "names": ["block.a"]}],
        "actions": [{"key": "action", "names": ["tcp.target_x", "tcp.target_y"]}],
        "labels": {"contacts": "n_contacts"},
    }
    (folder / "push.zarr.channels.json").write_text(json.dumps(said))
    return path


def zarr_stamped(folder: Path) -> Path:
    """A folder whose arrays tell the time; plain names, every simple codec."""
    import numcodecs
    import zarr

    path = folder / "real.zarr"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"robot_joint": ramp(TOTAL, 2), "action": ramp(TOTAL, 2, 5), "timestamp": np.arange(TOTAL) / 10}
    write_store(zarr.storage.LocalStore(path), arrays, numcodecs.Zlib())
    return path


BUILDERS: dict[str, Callable[[Path], Path]] = (
    {"zarr_umi": zarr_umi, "zarr_zip": zarr_zip, "zarr_stamped": zarr_stamped}
    if importlib.util.find_spec("zarr")
    else {}
)
