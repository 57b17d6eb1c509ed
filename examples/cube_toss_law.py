"""Gravity and restitution of a real cube, from 400 tosses filmed by motion capture; its mass and size are given.

python examples/cube_toss_law.py cube_tosses.npz
"""

import sys

import vhydro as vh
from vhydro.laws import impact_constants, toss_law

if __name__ == "__main__":
    logs = vh.read(sys.argv[1])
    size, mass = (float(logs[0].info[name]) for name in ("half_width", "mass"))
    law = toss_law(logs, mass=mass, half_sizes=size)
    print(law)
    for name, constant in impact_constants(law).items():
        print(name, constant.value, constant.interval, constant.unit)
