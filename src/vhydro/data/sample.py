"""The tasks that the collectors can record, and a few episodes of most that ship with the package: real physics."""

from pathlib import Path

from vhydro.data.dataset import Dataset
from vhydro.data.read import read
from vhydro.usage import UsageError, did_you_mean

FOLDER = Path(__file__).parent / "samples"
SHIPPED = {
    **{
        task: f"{task}-v1.h5"
        for task in ("PickCube", "PokeCube", "PullCube", "PushCube", "StackCube", "PullCubeTool", "PegInsertionSide")
    },
    "tower": "SawyerTower.hdf5",
    "laundry": "SawyerLaundry.hdf5",
    "search": "SawyerSearch.hdf5",
    "bridge": "VX300SBridgeOcclusion.hdf5",
}
UNSHIPPED = ("StackPyramid", "PlaceSphere", "KnockBall", "PushPair", "RegraspCube", "ToppleTower")
FILES = {**SHIPPED, **{task: f"{task}-v1.h5" for task in UNSHIPPED}}  # as `vhydro collect` names them


def sample(task: str) -> Dataset:
    """The shipped episodes of a ManiSkill task or a Sawyer family, contact forces included."""
    if task not in SHIPPED:
        remedy = did_you_mean(task, SHIPPED)
        remedy = f"Record it with `vhydro collect maniskill {task}`." if task in UNSHIPPED else remedy
        raise UsageError(f"there is no sample of {task!r}; expected one of {', '.join(SHIPPED)}. {remedy}")
    return read(FOLDER / SHIPPED[task])
