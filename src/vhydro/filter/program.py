"""Which program filters a log: one kernel for the whole of it, or XLA's scan over its rows; see `fused`.

A kernel has one program for each log and all of its particles in registers, so that a row costs its arithmetic and no
launches. It is taken on a GPU, for up to `MOST` particles of a power of two, where the step can be written as vectors
along the particles; beyond that one program for a log is too little, and the scan is faster (`benchmarks/gpu.py`).
"""

from dataclasses import dataclass
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vhydro.emission import Observation
from vhydro.filter.frames import Frame
from vhydro.filter.settings import FilterSettings, noise_layout
from vhydro.filter.step import filter_step, initial
from vhydro.fused.kernel import Kernel, UnsupportedError, operations, scan_in_one_kernel
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import Proposal

LEAST, MOST = 16, 4096  # particles of one program
LARGEST_STEP = 9000  # operations on vectors, beyond which a kernel takes longer to compile than it saves
ROWS = 256  # filtered by one launch: their random numbers are drawn beforehand


@jax.tree_util.register_static
@dataclass(frozen=True)
class Program:
    """What ran: one kernel for each log, or the scan, and why not the other."""

    name: str  # "kernel" or "scan"
    reason: str

    def __str__(self) -> str:
        return f"{'one kernel for each log' if self.name == 'kernel' else 'scan'}: {self.reason}"


def _scan(reason: str) -> Program:
    return Program("scan", reason)


def program_of(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> Program:
    """The program that filters with this model, already prepared for its engine, and why."""
    asked = settings.program
    if asked == "scan":
        return _scan("as asked")
    backend = jax.default_backend()
    if asked == "auto" and backend != "gpu":
        return _scan(f"kernels are written for GPUs, this runs on {backend}")
    found = _able(model, proposal, settings)
    if asked != "auto" and found.name != "kernel":
        raise ValueError(f"program={asked!r} cannot filter with these settings: {found.reason}. Use program='auto'.")
    if asked == "kernel" and backend != "gpu":
        raise ValueError(f"program='kernel' needs a GPU, this runs on {backend}. Use program='auto', or 'interpreted'.")
    return found


def _able(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> Program:
    n = settings.count
    if settings.engine == "merged":
        return _scan("merged Gaussians have no particles")
    if n & (n - 1) or n < LEAST:
        return _scan(f"{n} particles are no power of two from {LEAST} on")
    if n > MOST:
        return _scan(f"{n} particles are more than one program holds ({MOST})")
    if model.dtype != np.float32:
        return _scan(f"numbers of type {model.dtype}")
    arrays, static = eqx.partition((model, proposal), eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes = tuple((x.shape, np.dtype(x.dtype).name) for x in leaves)
    return _planned(structure, shapes, _Static(static), settings)


class _Static:
    """What of a model is no array, compared by its structure and its leaves."""

    def __init__(self, static):
        self.tree = static
        leaves, structure = jax.tree.flatten(static)
        self.key = structure, tuple(leaves)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other) -> bool:
        return isinstance(other, _Static) and self.key == other.key


@lru_cache(maxsize=128)
def _planned(structure, shapes, static: _Static, settings: FilterSettings) -> Program:
    """Whether the step can be written as a kernel, tried without computing anything."""
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    arrays = jax.tree.unflatten(structure, leaves)

    def once(arrays):
        model, proposal = eqx.combine(arrays, static.tree)
        row = _row_like(model)
        noise = step_noise(noise_layout(model, proposal, settings), jax.random.key(0), jnp.asarray(0), model.dtype)
        return initial(model, settings), row, noise

    try:
        carry, row, noise = jax.eval_shape(once, arrays)
        count = operations(_step(static.tree, settings), arrays, carry, row, noise, settings.count)
    except UnsupportedError as error:
        return _scan(f"a kernel cannot do {error}")
    if count > LARGEST_STEP:
        return _scan(f"a step of {count} operations is too large for a kernel (at most {LARGEST_STEP})")
    return Program("kernel", f"{settings.count} particles, {count} operations a step")


def _row_like(model: HybridModel) -> Frame:
    channels = len(model.channels)
    seen = Observation(jnp.zeros(channels, model.dtype), jnp.zeros(channels, bool))
    false = jnp.zeros((), bool)
    return Frame(jnp.zeros(model.inputs, model.dtype), seen, jnp.zeros((), model.dtype), false, false)


def _step(static, settings: FilterSettings):
    def step(arrays, carry, frame, noise):
        model, proposal = eqx.combine(arrays, static)
        after, record, moments = filter_step(model, proposal, settings, carry, frame, noise)
        return after, (record, moments, after if settings.history else None)

    return step


def warps_of(settings: FilterSettings) -> int:
    """How many warps share a log's particles: about four particles for every thread."""
    return int(min(max(settings.count // 128, 1), 16))


def kernel_run(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key):
    """Every row in turn, by a kernel: what each step says, the last particles, and no evidence left over."""
    rows, layout = frames.valid.shape[0], noise_layout(model, proposal, settings)
    size = min(rows, ROWS)
    arrays, static = eqx.partition((model, proposal), eqx.is_array)
    step, kernel = _step(static, settings), Kernel(warps_of(settings), settings.program == "interpreted")

    def part(carry, inputs):
        frame, number = inputs
        noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(number)
        return scan_in_one_kernel(step, arrays, carry, frame, noise, settings.count, kernel=kernel)

    blocks = -(-rows // size)
    inputs = jax.tree.map(
        lambda x: jnp.pad(x, [(0, blocks * size - rows)] + [(0, 0)] * (x.ndim - 1)).reshape(blocks, size, *x.shape[1:]),
        (frames, jnp.arange(rows)),
    )
    if blocks == 1:
        final, outputs = part(initial(model, settings), jax.tree.map(lambda x: x[0], inputs))
        outputs = jax.tree.map(lambda x: x[None], outputs)
    else:
        final, outputs = jax.lax.scan(part, initial(model, settings), inputs)
    return outputs, final, jnp.zeros((), model.dtype)
