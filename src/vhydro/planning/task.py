"""What a plan is for: a cost, what counts as failure, and which actions are allowed, in the log's names and units."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vhydro.small import matvec


class UnknownNameError(KeyError, ValueError):
    """A task reads a name that the model does not know."""

    def __str__(self) -> str:
        return str(self.args[0])


class Readout(eqx.Module):
    """Which named values, in the log's units, a state has: `matrix @ z + offset`, one row for each name."""

    matrix: Float[Array, "names latent"]
    offset: Float[Array, "names"]
    names: tuple[str, ...] = eqx.field(static=True)
    axes: tuple[int | None, ...] = eqx.field(static=True)  # the only coordinate that a name shows; None: a mixture

    def __call__(self, z: Float[Array, "latent ..."]) -> "Named":
        return Named(self, z)


def readout(names: tuple[str, ...], matrix, offset=None, dtype=jnp.float32) -> Readout:
    """A `Readout` that knows which of its rows show one coordinate alone."""
    matrix = np.asarray(matrix, np.float64)
    single = [np.flatnonzero(row) for row in matrix]
    axes = tuple(int(found[0]) if len(found) == 1 else None for found in single)
    offset = np.zeros(len(names)) if offset is None else np.asarray(offset, np.float64)
    return Readout(jnp.asarray(matrix, dtype), jnp.asarray(offset, dtype), tuple(names), axes)


class Named(Mapping[str, Any]):
    """Values by name, each found when it is asked for; arrays over whatever axes of particles there are."""

    def __init__(self, shown: Readout, z: Float[Array, "latent ..."]):
        self._shown, self._z = shown, z

    def __getitem__(self, name: str) -> Float[Array, "..."]:
        shown = self._shown
        if name not in shown.names:
            raise UnknownNameError(f"the task reads {name!r}; expected one of {', '.join(shown.names)}.")
        i = shown.names.index(name)
        axis = shown.axes[i]
        value = matvec(shown.matrix[i], self._z) if axis is None else shown.matrix[i, axis] * self._z[axis]
        return value + shown.offset[i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown.names)

    def __len__(self) -> int:
        return len(self._shown.names)


class Task(eqx.Module):
    """A cost in [0, bound], what counts as failure, and the bounds of every action.

    `cost(z, mode, a)` and `failure(z, mode, a)` are JAX functions of the state after a step and of the action that led
    there: `z["cube.x"]` and `a["force"]` are arrays in the log's units, `mode` is an array of numbers. A path fails if
    any of its steps does, if its end is `missed(z, mode)`, or if it leaves the `region` {name: (low, high)}. Its cost
    is the mean over its steps, and with `final(z, mode)` the mean of that and of the end's, weighted 1 to
    `final_weight`. `actions` are (low, high) for all inputs, arrays of one each, or {input: (low, high)}.

    Numbers that change from task to task belong into an `eqx.Module` or a `jax.tree_util.Partial` of arrays, and not
    into a new function, for which everything is compiled again.
    """

    cost: Callable
    failure: Callable | None = None
    bound: float = 1.0
    actions: Any = eqx.field(default=(-1.0, 1.0), static=True)
    missed: Callable | None = None
    final: Callable | None = None
    final_weight: float = 1.0
    region: Any = eqx.field(default=None, static=True)

    def __init__(
        self,
        cost: Callable,
        failure: Callable | None = None,
        bound: float = 1.0,
        actions: Any = (-1.0, 1.0),
        *,
        missed: Callable | None = None,
        final: Callable | None = None,
        final_weight: float = 1.0,
        region: Mapping[str, tuple] | None = None,
    ):
        if not (np.isfinite(bound) and bound > 0):
            raise ValueError(f"the bound of a task's cost is {bound}; expected a positive number that no cost exceeds.")
        if not final_weight > 0:
            raise ValueError(f"final_weight is {final_weight}; expected a positive number.")
        self.cost, self.failure, self.bound, self.missed = cost, failure, float(bound), missed
        self.final, self.final_weight = final, float(final_weight)
        self.actions = _frozen(actions)
        self.region = None if region is None else _frozen(region)
        for name, (low, high) in self.region or ():
            if not low < high:
                raise ValueError(f"the region of {name!r} is ({low}, {high}); expected the lower end first.")

    def limits(self, inputs: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest action, one number for each input."""
        given, width = self.actions, len(inputs)
        if given and isinstance(given[0], tuple) and isinstance(given[0][0], str):
            named = dict(given)
            if set(named) != set(inputs):
                raise ValueError(f"the task bounds {', '.join(named)}; expected the inputs {', '.join(inputs)}.")
            given = tuple(zip(*(named[n] for n in inputs), strict=True))
        try:
            low, high = (np.broadcast_to(np.asarray(x, np.float64), (width,)) for x in given)
        except ValueError:
            raise ValueError(f"the task's actions are {given}; expected (low, high), {width} numbers each.") from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError(f"the task's actions are from {low} to {high}; expected finite bounds, the lower first.")
        return low, high

    def step(self, z: Mapping, mode: Int[Array, "..."], a: Mapping) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
        """The cost of a step and whether it fails, one of each for every particle."""
        cost, failed = _filled(self.cost(z, mode, a), mode), jnp.zeros(mode.shape, bool)
        if self.failure is not None:
            failed = failed | _filled(self.failure(z, mode, a), mode)
        for name, (low, high) in self.region or ():
            value = z[name]
            failed = failed | ~((value >= low) & (value <= high))
        return cost, failed

    def end(self, z: Mapping, mode: Int[Array, "..."]) -> tuple[Float[Array, "..."] | None, Bool[Array, "..."]]:
        """The cost of where a path ends, if it has one, and whether it is a failure."""
        failed = jnp.zeros(mode.shape, bool) if self.missed is None else _filled(self.missed(z, mode), mode)
        return (None if self.final is None else _filled(self.final(z, mode), mode)), failed


def _frozen(value: Any) -> Any:
    """Bounds that can be compared and hashed."""
    if isinstance(value, Mapping):
        return tuple((str(k), _frozen(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return tuple(_frozen(v) for v in value)
    return tuple(float(x) for x in np.ravel(value)) if np.ndim(value) else float(value)


def _filled(value: Any, mode: Int[Array, "..."]) -> Array:
    """What a task's function gave, for every particle."""
    value = jnp.asarray(value)
    try:
        return jnp.broadcast_to(value, mode.shape)
    except ValueError:
        raise ValueError(
            f"a function of the task gave the shape {value.shape} for particles of the shape {mode.shape}; expected "
            "one value each. Read coordinates by name, such as z['q'], and do not sum over particles."
        ) from None
