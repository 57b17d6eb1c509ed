"""Combinations of what modes couple that the logs do not show: feasible all the same, so no model rules them out.

A mode couples bodies to the hand and says what the machine meets: fingers on something, an arm under load. Planned logs
show few of the combinations of the two, and a clumsier hand shows others: it pushes what was only ever grasped, and
presses on the table beside what was only ever pushed. Each missing combination becomes a mode that moves bodies as one
known mode does and the machine as another. It begins rarely, and goes on as long as the first does.
"""

import numpy as np
from jaxtyping import Bool

from vhydro.learning.contact_em import ContactLaw

RARELY = 0.001  # how often a combination that no log shows begins, beside the mode it moves bodies as
BACK = 0.05  # its chance to become that mode in one step
MOST = 12  # modes in all


def combined(
    law: ContactLaw,
    couples: Bool[np.ndarray, "modes things"],
    share: np.ndarray,
    machine: Bool[np.ndarray, "things"],
    machine_channels: Bool[np.ndarray, "channels"],
    fingers: Bool[np.ndarray, "things"],
) -> tuple[ContactLaw, Bool[np.ndarray, "more things"]]:
    """The law with a mode for every combination of what its modes couple, and what each couples.

    `share` is that of every mode's rows, `machine` says which things and channels are the robot's own.
    """
    known = [tuple(c) for c in couples]
    likely = np.argsort(-share, kind="stable")
    bodies, machines = ({tuple(couples[m][part]): int(m) for m in likely[::-1]} for part in (~machine, machine))
    for body in sorted(bodies, key=sum):
        for own in sorted(machines, key=sum):
            pattern = np.empty(len(machine), bool)
            pattern[~machine], pattern[machine] = body, own
            alone = pattern[fingers].any() and not any(body)  # fingers stop by themselves too
            if tuple(pattern) not in known and not alone and len(known) < MOST:
                law = _with_mode(law, bodies[body], machines[own], machine_channels)
                couples, known = np.vstack([couples, pattern]), [*known, tuple(pattern)]
    return law, couples


def _with_mode(law: ContactLaw, body: int, machine: int, machine_channels: np.ndarray) -> ContactLaw:
    """The law with one more mode: the bodies' gains of one, the machine's of another, the kernel of the first."""
    begins = law.logits[:, body] + np.log(RARELY)
    goes_on = np.append(law.logits[body], law.logits[body, body])
    goes_on[body] += np.log(BACK)
    log_start = np.append(law.log_start, law.log_start[body] + np.log(RARELY))
    return law._replace(
        gain=np.vstack([law.gain, np.where(machine_channels, law.gain[machine], law.gain[body])]),
        logits=np.vstack([np.column_stack([law.logits, begins]), goes_on]),
        drive=np.column_stack([law.drive, law.drive[:, body]]) if law.drive.size else law.drive,
        log_start=log_start - np.log(np.exp(log_start).sum()),
    )
