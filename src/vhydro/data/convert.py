"""`convert`: any log this package reads, as one npz file or as a LeRobot dataset."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tyro.conf import OmitArgPrefixes, Positional

from vhydro.data.errors import DataError
from vhydro.data.lerobot_write import write_lerobot
from vhydro.data.npz_native import write_npz
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.read import read

Target = Literal["npz", "lerobot"]


@dataclass(frozen=True)
class ConvertConfig:
    """Write a log of any known format as npz or LeRobot."""

    path: Positional[Path]
    """File or folder; the format is recognised from its content."""
    to: Target = "npz"
    """npz: one self-described file. lerobot: a LeRobot v2.1 dataset (needs pyarrow)."""
    out: Path | None = None
    """Where to write; beside the log if not given."""
    overwrite: bool = False
    """Replace what is there."""
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run_convert(config: ConvertConfig) -> None:
    """Converts and says where the result is."""
    written = convert(config.path, config.to, config.out, overwrite=config.overwrite, options=config.reading)
    print(f"{written}: {len(read(written))} episodes. `vhydro data inspect {written}` shows them.")


def convert(
    path: Path | str,
    to: Target = "npz",
    out: Path | str | None = None,
    *,
    overwrite: bool = False,
    options: ReadOptions = DEFAULT,
) -> Path:
    """The path of what was written: every episode of `path`, whole, or nothing at all."""
    path = Path(path)
    if to not in get_args(Target):
        raise ValueError(f"cannot convert to {to!r}; expected one of {', '.join(get_args(Target))}.")
    if out is None and not path.exists() and "*" in path.name:
        raise ValueError(f"{path} is a pattern; expected a name for the result. Give --out.")
    target = Path(out) if out is not None else default_target(path, to)
    dataset = read(path, **vars(options))
    if path.resolve().is_relative_to(target.resolve()):
        raise DataError(
            target,
            found="the log itself, or a folder that holds it",
            expected="another name",
            remedy="Give another `out`.",
        )
    write = write_npz if to == "npz" else write_lerobot
    try:
        return write(dataset, target, overwrite=overwrite)
    except OSError as error:
        raise DataError(target, found=f"{error}", expected="a place to write to") from None


def default_target(path: Path, to: Target) -> Path:
    """A name beside the log: `LOG.npz`, or `LOG_lerobot`."""
    stem = path.name if path.is_dir() else path.stem
    return path.resolve().parent / (f"{stem}.npz" if to == "npz" else f"{stem}_lerobot")
