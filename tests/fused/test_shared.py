"""What is written for a GPU's shared memory, done here one instruction after the other by every thread."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.fused import shared
from vhydro.fused.shared import Threads

PLACE = 1000  # where the buffer begins
SIZES = [(16, 1, 1), (16, 1, 3), (32, 1, 2), (64, 2, 3), (256, 2, 1), (256, 8, 2), (512, 1, 3)]  # lanes, warps, blocks


class Machine:
    """Threads that do the instructions they are given, and refuse to read what others may still be writing."""

    def __init__(self, lanes: int, warps: int):
        self.lanes, self.count = lanes, 32 * warps

    def __call__(self, asm, *, args, constraints, pack, result_shape_dtypes):
        kinds = constraints.split(",")
        assert len(kinds) == pack * (1 + len(args)), "an operand for every entry"
        assert all(k.startswith("=&") for k in kinds[:pack]), "results are written before all arguments are read"
        numbers = [[(t + self.count * e) % self.lanes for e in range(pack)] for t in range(self.count)]
        registers = [
            {f"${(1 + a) * pack + e}": np.asarray(x)[own[e]] for a, x in enumerate(args) for e in range(pack)}
            for own in numbers
        ]
        self._done([line.strip() for line in re.split(r"[;{}\n]", asm) if line.strip()], registers)
        (like,) = result_shape_dtypes
        out = np.zeros(like.shape, like.dtype)
        for own, held in zip(numbers, registers, strict=True):
            for e in range(pack):
                out[own[e]] = held[f"${e}"]
        return [jnp.asarray(out)]

    def _done(self, lines, registers):
        memory, fresh = {}, {}
        for line in lines:
            if line == "bar.sync 0":
                fresh = {}
            for held in registers if not line.startswith((".", "bar")) else ():
                self._one(line, held, memory, fresh)

    def _one(self, line, held, memory, fresh):
        if line.startswith("@below "):
            if not held["below"]:
                return
            line = line.removeprefix("@below ")
        name, operands = line.split(" ", 1)
        to, *given = (x.strip() for x in operands.split(","))
        values = [held.get(x, PLACE if x == "buffer" else x) for x in given]
        if name == "st.shared.f32":
            place = held["place"] + int(re.fullmatch(r"\[place\+(\d+)\]", to)[1])
            assert fresh.get(place, values[0]) == values[0], "two threads write one place"
            fresh[place] = memory[place] = values[0]
        elif name == "ld.shared.f32":
            assert held["place"] not in fresh, "read before all have written"
            held[to] = memory[held["place"]]
        elif name == "setp.le.f32":
            held[to] = values[0] <= values[1]
        else:
            numbers = [int(v) for v in values]
            held[to] = {
                "mov.u32": lambda a: a, "add.s32": lambda a, b: a + b, "min.s32": min,
                "mad.lo.s32": lambda a, b, c: a * b + c,
            }[name](*numbers)  # fmt: skip


@pytest.fixture(params=SIZES, ids=lambda s: "x".join(map(str, s)))
def threads(request, monkeypatch):
    lanes, warps, blocks = request.param
    monkeypatch.setattr(shared.triton, "elementwise_inline_asm", Machine(lanes, warps))
    return Threads.of(jnp.arange(lanes, dtype=jnp.int32), warps, 4 * lanes * blocks), blocks


def column(values, blocks: int):
    return [jnp.asarray(part, jnp.float32) for part in np.split(np.asarray(values), blocks)]


def test_a_column_is_read_at_every_particles_index(threads):
    threads, blocks = threads
    random, lanes = np.random.default_rng(0), threads.everyone.size
    values, index = random.normal(size=lanes * blocks), random.integers(0, lanes * blocks, lanes)
    got = shared.taken(threads, column(values, blocks), jnp.asarray(index, jnp.int32))
    np.testing.assert_array_equal(got, values[index].astype(np.float32))


def test_the_first_sum_above_a_point_is_found(threads):
    """Where half of the weights are nothing, and many are alike."""
    threads, blocks = threads
    random, lanes = np.random.default_rng(1), threads.everyone.size
    weight = random.integers(0, 5, lanes * blocks) * (random.random(lanes * blocks) < 0.5)
    sums = np.cumsum(weight).astype(np.float32)
    point = np.append(random.random(lanes - 1) * sums[-1], sums[-1]).astype(np.float32)  # one is above all
    got = np.asarray(shared.first_above(threads, column(sums, blocks), jnp.asarray(point)))
    np.testing.assert_array_equal(got, np.minimum((sums <= point[:, None]).sum(1), lanes * blocks - 1))
    assert (weight[got[:-1]] > 0).all()
