"""A few episodes of every task that the collectors can record, shipped with the package: real physics, no download."""

from pathlib import Path

from vhydro.data.dataset import Dataset
from vhydro.data.read import read
from vhydro.usage import UsageError, did_you_mean

FOLDER = Path(__file__).parent / "samples"
FILES = {
    **{
        task: f"{task}-v1.h5"
        for task in ("PickCube", "PokeCube", "PullCube", "PushCube", "StackCube", "PullCubeTool", "PegInsertionSide")
    },
    "tower": "SawyerTower.hdf5",
    "laundry": "SawyerLaundry.hdf5",
    "search": "SawyerSearch.hdf5",
    "bridge": "VX300SBridgeOcclusion.hdf5",
}


def sample(task: str) -> Dataset:
    """The shipped episodes of a ManiSkill task or a Sawyer family, contact forces included."""
    if task not in FILES:
        raise UsageError(
            f"there is no sample of {task!r}; expected one of {', '.join(FILES)}. {did_you_mean(task, FILES)}"
        )
    return read(FOLDER / FILES[task])
