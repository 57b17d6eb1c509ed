"""Which program filters a log: one kernel for the whole of it, or XLA's scan over its rows; see `fused`.

A kernel has one program of a GPU for each log and all of its particles in registers, so that a row costs its arithmetic
and no launches. There can be one for up to `MOST` particles, a power of two, where the step can be written as vectors
along the particles; all else is filtered by the scan, and what ran says why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from vhydro.emission import Observation
from vhydro.filter.branches import corrects
from vhydro.filter.frames import Frame, blocked
from vhydro.filter.settings import FilterSettings, noise_layout, prepared
from vhydro.filter.step import filter_step, initial
from vhydro.fused.kernel import Kernel, Trial, UnsupportedError, scan_in_one_kernel, tried
from vhydro.fused.shared import MOST as SHARED
from vhydro.model import HybridModel
from vhydro.particles import step_noise
from vhydro.proposal import Proposal

LEAST, MOST = 16, 4096  # particles; with more, one program for a log leaves most of a GPU idle
LARGEST_STEP = 6000  # operations of a row; of 3,400 to 4,500 it compiles for 7 to 11 s, where the scan does for 3 s
ROWS = 256  # filtered by one launch at most: their random numbers are drawn beforehand …
DRAWN = 2**18  # … for so many particles of all rows together

Result = TypeVar("Result")


@jax.tree_util.register_static
@dataclass(frozen=True)
class Program:
    """What ran, "kernel" or "scan", and why not the other."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{'one kernel for each log' if self.name == 'kernel' else 'scan'}: {self.reason}"


def _scan(reason: str) -> Program:
    return Program("scan", reason)


# --- which one --------------------------------------------------------------------------------------------------------


def program_of(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> Program:
    """The program that filters with these, as far as it can be told before anything is compiled, and why."""
    asked, backend = settings.program, jax.default_backend()
    if asked == "scan":
        return _scan("as asked")
    if asked != "interpreted" and backend != "gpu":
        return _scan(f"kernels are written for GPUs, this runs on {backend}")
    if asked != "interpreted" and "cuda" not in _maker():
        return _scan(f"kernels are written for NVIDIA's GPUs, this is one of {_maker()}")
    n = settings.count
    if settings.engine == "merged":
        return _scan("merged Gaussians have no particles")
    if n < LEAST or n & (n - 1):
        return _scan(f"a kernel has a power of two of particles, at least {LEAST}; these are {n}")
    if n > MOST:
        return _scan(f"a kernel holds at most {MOST} particles; these are {n}")
    if model.dtype != np.float32:
        return _scan(f"a kernel computes in float32, this model in {model.dtype}")
    if corrects(model, settings):
        return _scan("linearised branches are corrected between rows; corrected=False leaves them as they are")
    found = _written(_Step.of(model, proposal, replace(settings, program="kernel")))
    if isinstance(found, Program):
        return found
    return Program("kernel", f"{n} particles, {found.operations} operations a row")


def _maker() -> str:
    """What JAX's GPUs run on, such as "cuda 13000"."""
    return jax.devices()[0].client.platform_version


@dataclass(frozen=True)
class _Step:
    """A filter's step without the numbers of its model: one kernel serves all that have it in common."""

    structure: Any  # of the model's arrays
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    static: "_Static"
    settings: FilterSettings

    @classmethod
    def of(cls, model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> "_Step":
        arrays, static = eqx.partition((model, proposal), eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        shapes = tuple((x.shape, np.dtype(x.dtype).name) for x in leaves)
        return cls(structure, shapes, _Static(static), settings)


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
def _written(step: _Step) -> Trial | Program:
    """What the step needs as a kernel, or why it cannot be one: it is written down, and nothing is computed."""
    settings = step.settings
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in step.shapes]
    arrays = jax.tree.unflatten(step.structure, leaves)

    def as_run(arrays):
        model, proposal = eqx.combine(arrays, step.static.tree)
        return prepared(model, settings, jnp.ones((), model.dtype)), proposal

    def once(arrays, static):
        model, proposal = eqx.combine(arrays, static)
        noise = step_noise(noise_layout(model, proposal, settings), jax.random.key(0), jnp.asarray(0), model.dtype)
        return initial(model, settings), _empty_row(model), noise

    try:
        whole = eqx.filter_eval_shape(as_run, arrays)
        arrays, static = eqx.partition(whole, lambda x: isinstance(x, jax.ShapeDtypeStruct))
        carry, row, noise = jax.eval_shape(partial(once, static=static), arrays)
        trial = tried(_function(static, settings, _everything(settings)), arrays, carry, row, noise, settings.count)
    except UnsupportedError as error:
        return _scan(f"this step has {error}, which a kernel cannot do")
    except Exception as error:  # whatever a user's model is made of: the scan can do it, or says what is wrong
        return _scan(f"this step cannot be written as a kernel: {_in_short(error)}")
    if trial.operations > LARGEST_STEP:
        return _scan(f"a row of {trial.operations} operations is too large for a kernel: {LARGEST_STEP} at most")
    if trial.memory > SHARED:
        return _scan(f"a row takes {trial.memory / 1024:.0f} KiB of shared memory; a kernel has {SHARED // 1024}")
    return trial


def _empty_row(model: HybridModel) -> Frame:
    channels, false = len(model.channels), jnp.zeros((), bool)
    seen = Observation(jnp.zeros(channels, model.dtype), jnp.zeros(channels, bool))
    return Frame(jnp.zeros(model.inputs, model.dtype), seen, jnp.zeros((), model.dtype), false, false)


def _in_short(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0][:200] if lines else ''}"


# --- running it -------------------------------------------------------------------------------------------------------

_FAILED: dict[_Step, Program] = {}  # kernels that this machine could not compile or run, so that it is tried once


def filtered_by(
    call: Callable[..., Result], model: HybridModel, proposal: Proposal | None, settings: FilterSettings, *logs
) -> tuple[Result, Program]:
    """What `call(model, proposal, settings, *logs)` returns, by a kernel if that can be and else by the scan.

    A kernel that does not compile, or fails on this machine, is never the caller's concern: the scan takes over.
    """
    program = program_of(model, proposal, settings)
    if program.name == "kernel" and any(isinstance(x, Tracer) for x in jax.tree.leaves((model, proposal, logs))):
        program = _scan("within a caller's own program a kernel that fails could not be replaced")
    if program.name == "kernel":
        step = _Step.of(model, proposal, replace(settings, program="kernel"))
        program = _FAILED.get(step, program)
        if program.name == "kernel":
            asked = replace(settings, program="interpreted" if settings.program == "interpreted" else "kernel")
            try:
                return jax.block_until_ready(call(model, proposal, asked, *logs)), program
            except Exception as error:  # of compilers and drivers, of any kind; what is the caller's fault fails again
                program = _scan(f"the kernel failed on this machine, {_in_short(error)}")
                if "RESOURCE_EXHAUSTED" not in str(error):  # fewer logs may have room
                    _FAILED[step] = program
    return call(model, proposal, replace(settings, program="scan"), *logs), program


def in_kernel(model: HybridModel, proposal: Proposal | None, settings: FilterSettings) -> bool:
    """Whether a pure function filters by a kernel: where `filtered_by`, or its caller, asks for one and it can be."""
    asked = settings.program in ("kernel", "interpreted")
    return asked and program_of(model, proposal, settings).name == "kernel"


def _function(static, settings: FilterSettings, told: Callable):
    """The filter's step as a function of arrays, and what is told of every row: the kernel does nothing else."""

    def step(arrays, carry, frame, noise):
        model, proposal = eqx.combine(arrays, static)
        after, record, moments = filter_step(model, proposal, settings, carry, frame, noise)
        return after, told(after, record, moments)

    return step


def _everything(settings: FilterSettings):
    return lambda after, record, moments: (record, moments, after if settings.history else None)


def warps_of(settings: FilterSettings) -> int:
    """How many warps share a log's particles: four particles for every thread, or one where each is many branches."""
    each = 1 if settings.engine == "gaussian" else 4
    return min(max(settings.count // (32 * each), 1), 16)


def kernel_run(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key):
    """Every row in turn, by kernels: what each step says, the last particles, and no evidence left over."""
    outputs, final = _rows(model, proposal, settings, frames, key, _everything(settings))
    return outputs, final, jnp.zeros((), model.dtype)


def kernel_evidence(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key):
    """The log normaliser of every row, (blocks, rows), by kernels that compute nothing else."""
    return _rows(model, proposal, settings, frames, key, lambda _, record, __: record.log_normaliser)[0]


def _rows(model: HybridModel, proposal, settings: FilterSettings, frames: Frame, key, told: Callable):
    rows, layout = frames.valid.shape[0], noise_layout(model, proposal, settings)
    size = min(rows, ROWS, max(DRAWN // settings.count, 8))
    arrays, static = eqx.partition((model, proposal), eqx.is_array)
    step, kernel = _function(static, settings, told), Kernel(warps_of(settings), settings.program == "interpreted")

    def part(carry, inputs):
        frame, number = inputs
        noise = jax.vmap(lambda t: step_noise(layout, key, t, model.dtype))(number)
        return scan_in_one_kernel(step, arrays, carry, frame, noise, settings.count, kernel=kernel)

    final, outputs = jax.lax.scan(part, initial(model, settings), blocked((frames, jnp.arange(rows)), rows, size))
    return outputs, final
