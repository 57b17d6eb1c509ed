"""Ways to damage a file, each decided by a random generator alone."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

Random = np.random.Generator


def truncated(path: Path, rng: Random) -> None:
    path.write_bytes(path.read_bytes()[: int(rng.integers(path.stat().st_size))])


def flipped(path: Path, rng: Random) -> None:
    """Up to 40 bytes replaced, anywhere or close together."""
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    start = int(rng.integers(content.size))
    reach = content.size if rng.random() < 0.5 else min(content.size, start + 200)
    places = rng.integers(start if reach != content.size else 0, reach, int(rng.integers(1, 41)))
    content[places] = rng.integers(0, 256, places.size)
    path.write_bytes(content.tobytes())


def blanked(path: Path, rng: Random) -> None:
    """A stretch of zeros, as a disk that lost a block leaves it."""
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    length = int(min(len(content) - start, rng.integers(1, 4096)))
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


def shifted(path: Path, rng: Random) -> None:
    """Bytes too many or too few in the middle."""
    content, place = path.read_bytes(), int(rng.integers(path.stat().st_size))
    extra = rng.bytes(int(rng.integers(1, 64)))
    path.write_bytes(
        content[:place] + (extra + content[place:] if rng.random() < 0.5 else content[place + len(extra) :])
    )


def emptied(path: Path, rng: Random) -> None:
    path.write_bytes(b"")


def foreign(path: Path, rng: Random) -> None:
    """Not that format at all, perhaps behind its signature."""
    head = path.read_bytes()[: int(rng.integers(0, 64))] if rng.random() < 0.5 else b""
    path.write_bytes(head + rng.bytes(int(rng.integers(1, 5000))))


BYTES: tuple[Callable[[Path, Random], None], ...] = (truncated, flipped, blanked, shifted, emptied, foreign)


def keys(file: h5py.File, *, datasets: bool) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if datasets == isinstance(item, h5py.Dataset) else None)
    return found


def one_dataset(file: h5py.File, rng: Random) -> tuple[str, np.ndarray]:
    name = str(rng.choice(keys(file, datasets=True)))
    return name, file[name][()]


def replaced(file: h5py.File, name: str, values, **options) -> None:
    del file[name]
    file.create_dataset(name, data=values, **options)


def missing_key(file: h5py.File, rng: Random) -> None:
    del file[str(rng.choice(keys(file, datasets=bool(rng.random() < 0.7))))]


def wrong_shape(file: h5py.File, rng: Random) -> None:
    name, values = one_dataset(file, rng)
    shapes = (values[..., None], values[None], values.ravel(), values[..., :1], values.T, values[0], values[:0])
    replaced(file, name, shapes[int(rng.integers(len(shapes)))])


def wrong_type(file: h5py.File, rng: Random) -> None:
    """Text, structures, complex numbers, references, or odd kinds of numbers where floats were."""
    name, values = one_dataset(file, rng)
    odd = (
        np.full(values.shape, b"text"), values.astype(complex), values.astype(h5py.opaque_dtype("M8[s]")),
        np.zeros(values.shape, [("a", "f4"), ("b", "i2")]), values.astype(">f8"), values.astype(np.float16),
        values.astype(np.longdouble), (values > 1).astype(np.int8), h5py.Empty("f4"),
        np.full(values.shape, "tëxt", h5py.string_dtype()), np.full(values.shape, file.ref, h5py.ref_dtype),
        np.zeros(values.shape, np.dtype(("f4", (2,)))),
    )  # fmt: skip
    replaced(file, name, odd[int(rng.integers(len(odd)))])


def mixed_lengths(file: h5py.File, rng: Random) -> None:
    name, values = one_dataset(file, rng)
    rows = int(rng.integers(0, len(values) + 3))
    replaced(file, name, np.resize(values, (rows, *values.shape[1:])))


def wild_values(file: h5py.File, rng: Random) -> None:
    """NaN, infinities and numbers at the edge."""
    name, values = one_dataset(file, rng)
    values = values.astype(np.float64)
    if values.size:
        wild = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e-320])
        values.ravel()[rng.integers(values.size, size=3)] = wild
    replaced(file, name, values)


def group_for_dataset(file: h5py.File, rng: Random) -> None:
    name, _ = one_dataset(file, rng)
    del file[name]
    file.create_group(f"{name}/inside")


def dataset_for_group(file: h5py.File, rng: Random) -> None:
    name = str(rng.choice(keys(file, datasets=False)))
    del file[name]
    file[name] = np.zeros((3, 2), np.float32)


def link_elsewhere(file: h5py.File, rng: Random) -> None:
    name = str(rng.choice(keys(file, datasets=bool(rng.random() < 0.5))))
    links = (h5py.SoftLink("/nowhere"), h5py.SoftLink(f"/{name}"), h5py.ExternalLink("other.h5", "/x"))
    del file[name]
    file[name] = links[int(rng.integers(len(links)))]


def absurd_size(file: h5py.File, rng: Random) -> None:
    """A declared size far past the file's own."""
    name, values = one_dataset(file, rng)
    del file[name]
    shape = (int(10.0 ** rng.uniform(7, 18)), *values.shape[1:])
    file.create_dataset(name, shape, values.dtype, chunks=True if values.size else None)


def data_elsewhere(file: h5py.File, rng: Random) -> None:
    """A dataset whose numbers lie in another file, or in several."""
    name, values = one_dataset(file, rng)
    del file[name]
    if rng.random() < 0.5:
        file.create_dataset(name, values.shape, values.dtype, external=[("other.raw", 0, h5py.h5f.UNLIMITED)])
        return
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource("other.h5", "x", values.shape)
    file.create_virtual_dataset(name, layout)


def odd_attributes(file: h5py.File, rng: Random) -> None:
    """Attributes the readers look at, with values nobody expects."""
    name = str(rng.choice([k for k in keys(file, datasets=False) if k.count("/") < 2]))
    odd = (
        -1.0,
        0,
        np.nan,
        "{",
        "[]",
        '{"control_freq": "fast"}',
        '{"env_kwargs": 3}',
        b"\xff\xfe",
        [1, 2],
        h5py.Empty("f"),
    )
    for attribute in ("dt", "env_args", "env_info", "contact_pairs", "model_file", "success"):
        if rng.random() < 0.5:
            file[name].attrs[attribute] = odd[int(rng.integers(len(odd)))]


def odd_names(file: h5py.File, rng: Random) -> None:
    """Names that mean nothing to us, or are no text."""
    name, values = one_dataset(file, rng)
    parent = name.rpartition("/")[0] or "/"
    odd = (b"\xff\xfe", b"\x1b[31m", "nŏt_ascii".encode(), b"a__b__c", b"_pose", b"robot1_joint_pos", b"objects")
    file[parent].create_dataset(odd[int(rng.integers(len(odd)))], data=values)


CONTENT: tuple[Callable[[h5py.File, Random], None], ...] = (
    missing_key, wrong_shape, wrong_type, mixed_lengths, wild_values, group_for_dataset, dataset_for_group,
    link_elsewhere, absurd_size, data_elsewhere, odd_attributes, odd_names,
)  # fmt: skip


def damaged(path: Path, rng: Random) -> str:
    """Damages a file in one way; what comes back is the name of that way."""
    if h5py.is_hdf5(path) and rng.random() < 0.6:
        change = CONTENT[int(rng.integers(len(CONTENT)))]
        with h5py.File(path, "r+") as file:
            change(file, rng)
    else:
        change = BYTES[int(rng.integers(len(BYTES)))]
        change(path, rng)
    return change.__name__
