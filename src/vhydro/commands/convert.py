"""`vhydro data convert LOGS`: logs of any known format as npz or LeRobot, under the usual names if theirs are told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from vhydro.commands.mapping import Naming
from vhydro.data import read
from vhydro.data.convert import Target, convert
from vhydro.data.lerobot_write import LeRobotVersion
from vhydro.data.options import ReadOptions


@dataclass(frozen=True)
class ConvertConfig:
    """Write a log of any known format as npz or LeRobot."""

    logs: Annotated[Positional[Path], arg(metavar="LOGS")]
    """File or folder; the format is recognised from its content."""
    to: Target = "npz"
    """npz: one self-described file. lerobot: a LeRobot dataset (needs pyarrow)."""
    out: Path | None = None
    """Where to write; beside the log if not given."""
    overwrite: bool = False
    """Replace what is there."""
    lerobot_version: LeRobotVersion = "v3.0"
    """v2.1: for LeRobot before 0.4, which current LeRobot refuses."""
    naming: OmitArgPrefixes[Naming] = field(default_factory=Naming)
    reading: OmitArgPrefixes[ReadOptions] = field(default_factory=ReadOptions)


def run_convert(config: ConvertConfig) -> None:
    """Converts and says where the result is."""
    written = convert(
        config.logs, config.to, config.out, overwrite=config.overwrite, lerobot_version=config.lerobot_version,
        change=config.naming.usual, options=config.reading,
    )  # fmt: skip
    print(f"{written}: {len(read(written))} episodes. `vhydro data inspect {written}` shows them.")
