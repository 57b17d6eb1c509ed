"""What particles read of each other through the shared memory of a GPU's program, as instructions written out in PTX.

To the compiler each of these is one function of its arguments, entry by entry. Were they reads and writes of memory, it
would look at every one of them together with all other operations: minutes for a large step. And shared memory answers
ten times as fast as what lies outside.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton

MOST = 32 * 1024  # bytes; a program has 48 KiB, of which its sums take some


class Threads(NamedTuple):
    """The particles of a program, how many each thread has, and the memory through which they read each other."""

    everyone: Any  # (lanes,) numbers of the particles
    each: int
    buffer: Any  # (lanes,) where that begins

    @classmethod
    def of(cls, everyone, warps: int, size: int) -> "Threads":
        """The particles with these numbers, shared by so many warps, and so many bytes.

        Every thread must have `each` of them: nothing may have the compiler spread particles in any other way.
        """
        each = max(everyone.shape[0] // (32 * warps), 1)
        lines = [f".shared .align 4 .b8 buffer[{max(size, 4)}];", *(f"mov.u32 ${e}, buffer;" for e in range(each))]
        return cls(everyone, each, _function(each, lines, [], [everyone], jnp.int32))


def _function(each: int, lines: list[str], floats: list[Any], wholes: list[Any], dtype) -> Any:
    """Instructions as a function of vectors: `$i` is entry `i % each` of the result or argument `i // each`."""
    kinds = ["=&f" if dtype == jnp.float32 else "=&r", *("f" for _ in floats), *("r" for _ in wholes)]
    (out,) = triton.elementwise_inline_asm(
        "\n".join(["{", *lines, "}"]),
        args=[*floats, *wholes],
        constraints=",".join(kind for kind in kinds for _ in range(each)),
        pack=each,
        result_shape_dtypes=[jax.ShapeDtypeStruct(wholes[0].shape, dtype)],
    )
    return out


def _written(threads: Threads, blocks: int, floats: int) -> list[str]:
    """Instructions that write a column, whose blocks are the first of so many floats; `base` and `place` are registers.

    They wait before, for whoever still reads what was there, and after.
    """
    each, lanes = threads.each, threads.everyone.shape[0]
    lines = [".reg .b32 base, place;", f"mov.u32 base, ${(1 + floats) * each};", "bar.sync 0;"]
    for e in range(each):
        lines.append(f"mad.lo.s32 place, ${(2 + floats) * each + e}, 4, base;")
        lines += [f"st.shared.f32 [place+{4 * b * lanes}], ${(1 + b) * each + e};" for b in range(blocks)]
    return [*lines, "bar.sync 0;"]


def taken(threads: Threads, column: list[Any], index) -> Any:
    """What a column of floats, in blocks one after the other, has at every particle's index."""
    blocks, each = len(column), threads.each
    lines = _written(threads, blocks, blocks)
    for e in range(each):
        lines += [f"mad.lo.s32 place, ${(3 + blocks) * each + e}, 4, base;", f"ld.shared.f32 ${e}, [place];"]
    return _function(each, lines, column, [threads.buffer, threads.everyone, index], jnp.float32)


def first_above(threads: Threads, sums: list[Any], point) -> Any:
    """The first entry above each particle's point, of sums that never fall, blocks one after the other; or the last."""
    blocks, each = len(sums), threads.each
    last = blocks * threads.everyone.shape[0] - 1
    lines = [".reg .f32 value;", ".reg .pred below;", *_written(threads, blocks, blocks + 1)]
    lines += [f"mov.u32 ${e}, 0;" for e in range(each)]
    for step in (1 << r for r in reversed(range(int(np.ceil(np.log2(last + 1)))))):
        for e in range(each):
            lines += [
                f"add.s32 place, ${e}, {step - 1};", f"min.s32 place, place, {last};",
                "mad.lo.s32 place, place, 4, base;", "ld.shared.f32 value, [place];",
                f"setp.le.f32 below, value, ${(1 + blocks) * each + e};", f"@below add.s32 ${e}, ${e}, {step};",
            ]  # fmt: skip
    lines += [f"min.s32 ${e}, ${e}, {last};" for e in range(each)]
    return _function(each, lines, [*sums, point], [threads.buffer, threads.everyone], jnp.int32)
