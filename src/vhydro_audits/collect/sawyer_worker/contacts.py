"""Contact truth: the forces between the arm, the table, the objects and the cloth, from the solver's own numbers."""

from collections.abc import Sequence

import numpy as np

PAIRS = ("grip_obj", "grip_table", "obj_table", "obj_obj", "grip_cloth", "cloth_table")
GRIPPER_PAIRS = (0, 1, 4)  # those in which the arm takes part
FIRM = 0.05  # newtons from which the arm counts as touching
TOUCH = 1e-3  # newtons from which a substep counts as in contact

# What a geom belongs to. The cloth is a flex, which has no geoms.
CLOTH, OTHER, ARM, TABLE, OBJECT = range(-1, 4)
SIDES = {
    (ARM, OBJECT): 0, (ARM, TABLE): 1, (TABLE, OBJECT): 2, (OBJECT, OBJECT): 3, (CLOTH, ARM): 4, (CLOTH, TABLE): 5,
}  # fmt: skip
ARM_BODIES = ("robot0", "gripper0", "fixed_base0")


def geom_sides(model, objects: Sequence[str]) -> np.ndarray:
    """What each geom of a MuJoCo model belongs to; `objects` are the root bodies of the objects."""
    return np.array([_side(_ancestors(model, body), objects) for body in model.geom_bodyid])


def _ancestors(model, body: int) -> list[str]:
    names = []
    while body > 0:
        names.append(model.body(body).name)
        body = model.body_parentid[body]
    return names


def _side(bodies: list[str], objects: Sequence[str]) -> int:
    if any(name in objects for name in bodies):
        return OBJECT
    if any(name.startswith(ARM_BODIES) for name in bodies):
        return ARM
    return TABLE if bodies and bodies[-1] == "table" else OTHER


def substep_forces(data, sides: np.ndarray) -> np.ndarray:
    """Normal and tangential newtons of every pair in the substep just taken, (pairs, 2)."""
    contact = data.contact
    normal, tangential = contact_forces(data.efc_force, contact.efc_address, contact.dim)
    return pair_forces(contact.geom.reshape(-1, 2), normal, tangential, sides)


def contact_forces(solver_forces: np.ndarray, address: np.ndarray, dim: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal and tangential force of every contact.

    With an elliptic cone the solver's rows are the force in the contact frame: the normal first, then two tangents
    (none for a frictionless contact). A contact that was left out has a negative address and no force.
    """
    normal, tangential = np.zeros(len(address)), np.zeros(len(address))
    active = address >= 0
    rubbing = active & (dim >= 3)
    normal[active] = solver_forces[address[active]]
    first = address[rubbing] + 1
    tangential[rubbing] = np.hypot(solver_forces[first], solver_forces[first + 1])
    return normal, tangential


def pair_forces(geoms: np.ndarray, normal: np.ndarray, tangential: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """The forces of all contacts added up by pair, (pairs, 2)."""
    # A flex is geom −1.
    ends = np.sort(np.where(geoms >= 0, sides[np.maximum(geoms, 0)], CLOTH), axis=1)
    total = np.zeros((len(PAIRS), 2))
    for (low, high), pair in SIDES.items():
        chosen = (ends[:, 0] == low) & (ends[:, 1] == high)
        total[pair] = normal[chosen].sum(), tangential[chosen].sum()
    return total


def step_summary(substeps: np.ndarray) -> dict[str, np.ndarray]:
    """Means, peaks and share of time in contact of one control step, from its substeps (substeps, pairs, 2)."""
    normal, tangential = substeps[..., 0], substeps[..., 1]
    return {
        "fn_mean": normal.mean(0),
        "ft_mean": tangential.mean(0),
        "fn_max": normal.max(0),
        "ft_max": tangential.max(0),
        "frac": (normal > TOUCH).mean(0),
    }


def contact_modes(normal_means: np.ndarray) -> np.ndarray:
    """Per step 0 free, 1 impact, 2 sustained, from the mean normal forces (steps, pairs).

    An impact is the four steps around a make or break of the arm's contact.
    """
    touching = normal_means[:, GRIPPER_PAIRS].sum(1) > FIRM
    modes = np.where(touching, 2, 0)
    for change in np.flatnonzero(np.diff(touching)):
        modes[max(0, change - 1) : change + 3] = 1
    return modes
