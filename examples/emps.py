"""The law of a real linear drive: which way it moves is read off its motion, and halves of the record choose the form.

python examples/emps.py emps.npz
"""

import sys
from dataclasses import replace

import vhydro as vh
from vhydro.laws import LawsConfig, ShootingConfig, by_direction, chosen_by_halves, recorded, table

BUMPS = [LawsConfig("weak", shooting=ShootingConfig(bump=bump)) for bump in (25, 50, 100, 200, 400)]


def problems(path: str):
    """The record, its modes the two directions of motion, and three forms of law to look for in it."""
    recording, everything = by_direction(*recorded(vh.read(path)))
    each = replace(everything, library=everything.library[:2])  # inertia and constant forces
    textbook = replace(each, one_friction=True)
    return recording, {"textbook": textbook, "friction for each direction": each, "all terms": everything}


if __name__ == "__main__":
    recording, forms = problems(sys.argv[1])
    for name, problem in forms.items():
        law, tried = chosen_by_halves(recording, [problem], BUMPS)
        left = min(way.score for way in tried)
        print(f"\n{name}: {left:.2f} N left over on held-out halves", law, table(law), sep="\n")
