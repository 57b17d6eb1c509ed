"""Packs collected files into the samples that ship with the package: the first episodes of each, compressed.

vhydro collect maniskill PushCube --episodes 3 --seed 0 --out collected   # and the other tasks and families
python benchmarks/pack_samples.py collected src/vhydro/data/samples
"""

import argparse
import json
import shutil
from pathlib import Path

import h5py

LIMIT_MB = 5.0


def copied(source: h5py.Group, target: h5py.Group) -> None:
    """Everything of a group, arrays compressed without loss."""
    target.attrs.update(source.attrs)
    for key, item in source.items():
        if isinstance(item, h5py.Group):
            copied(item, target.create_group(key))
        else:
            # One chunk each: the index of many chunks would cost more than compression saves.
            packed = {"compression": "gzip", "compression_opts": 9, "shuffle": True, "chunks": item.shape}
            small = item.size * item.dtype.itemsize < 2048
            target.create_dataset(key, data=item[()], **({} if small else packed)).attrs.update(item.attrs)


def numbered(names) -> list[str]:
    return sorted(names, key=lambda n: int(n.rpartition("_")[2]))


def pack(source: Path, target: Path, episodes: int) -> None:
    """The first episodes of one file, and of the description beside it."""
    with h5py.File(source) as old, h5py.File(target, "w", libver="latest") as new:
        inner = old.get("data", old)
        outer = new.create_group("data") if "data" in old else new
        outer.attrs.update(inner.attrs)
        for name in numbered(inner)[:episodes]:
            copied(inner[name], outer.create_group(name))
    beside = source.with_suffix(".json")
    if beside.exists():
        record = json.loads(beside.read_text())
        record["episodes"] = record["episodes"][:episodes]
        target.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collected", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--episodes", type=int, default=3)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    for file in sorted(p for p in options.collected.rglob("*") if p.suffix in (".h5", ".hdf5")):
        pack(file, options.out / file.name, options.episodes)
    total = sum(p.stat().st_size for p in options.out.iterdir()) / 1e6
    print(f"{total:.2f} MB in {options.out}")
    if total > LIMIT_MB:
        raise SystemExit(f"samples take {total:.2f} MB; allowed {LIMIT_MB} MB. Take fewer episodes.")


if __name__ == "__main__":
    main()
