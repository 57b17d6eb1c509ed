"""Candidate energy terms: the words a Hamiltonian is written in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Coordinates = Float[Array, "latent *particles"] | tuple[Float[Array, "*particles"], ...]  # one array, or one of each


@dataclass(frozen=True)
class Monomial:
    """`Π z_i^powers[i]`."""

    powers: tuple[int, ...]

    def value(self, z: Coordinates) -> Float[Array, "*particles"]:
        factors = [z[i] ** n for i, n in enumerate(self.powers) if n]
        out = jnp.ones_like(z[0])
        for f in factors:
            out = out * f
        return out

    def text(self, names: Sequence[str]) -> str:
        return " ".join(names[i] + (f"^{n}" if n > 1 else "") for i, n in enumerate(self.powers) if n) or "1"


@dataclass(frozen=True)
class Sine:
    """`sin z_axis`, for an angle."""

    axis: int

    def value(self, z: Coordinates) -> Float[Array, "*particles"]:
        return jnp.sin(z[self.axis])

    def text(self, names: Sequence[str]) -> str:
        return f"sin({names[self.axis]})"


@dataclass(frozen=True)
class Cosine:
    """`cos z_axis`, for an angle."""

    axis: int

    def value(self, z: Coordinates) -> Float[Array, "*particles"]:
        return jnp.cos(z[self.axis])

    def text(self, names: Sequence[str]) -> str:
        return f"cos({names[self.axis]})"


@dataclass(frozen=True)
class Penetration:
    """`[±(z_axis − at)]₊^power / power`: the energy of a unit spring that only pushes, on one side of `at`.

    Power 2 is a linear spring; 1 is a constant force, 3 a spring that stiffens.
    """

    axis: int
    at: float
    side: Literal["above", "below"] = "above"
    power: int = 2

    def value(self, z: Coordinates) -> Float[Array, "*particles"]:
        gap = z[self.axis] - self.at
        return jnp.maximum(gap if self.side == "above" else -gap, 0.0) ** self.power / self.power

    def text(self, names: Sequence[str]) -> str:
        name = names[self.axis]
        place = f"{abs(self.at):.4g}"
        if self.side == "above":
            depth = f"[{name} {'−' if self.at >= 0 else '+'} {place}]₊"
        else:
            depth = f"[{'−' if self.at < 0 else ''}{place} − {name}]₊"
        return {1: depth, 2: f"½{depth}²", 3: f"⅓{depth}³"}.get(self.power, f"{depth}^{self.power}/{self.power}")


@dataclass(frozen=True)
class Custom:
    """A term of one's own: a function of the coordinates, given as a sequence, that JAX can differentiate."""

    function: Callable[[Sequence], Any]
    label: str

    def value(self, z: Coordinates) -> Float[Array, "*particles"]:
        return self.function(tuple(z))

    def text(self, names: Sequence[str]) -> str:  # noqa: ARG002
        return self.label


Term = Monomial | Sine | Cosine | Penetration | Custom
Library = tuple[Term, ...]


def slope(term: Term, axis: int, z: Any, place: Any = 0.0) -> Any:
    """∂term/∂z_axis at a sequence of coordinates, NumPy's or JAX's; 0.0 where the term never depends on it.

    A `Penetration` counts as touching, as the mode it belongs to is the one in contact; `place` moves its surface.
    """
    match term:
        case Monomial(powers):
            lowered = [n - (i == axis) for i, n in enumerate(powers)]
            return powers[axis] * prod(z[i] ** n for i, n in enumerate(lowered) if n) if powers[axis] else 0.0
        case Sine(at_axis):
            return _of(z[axis]).cos(z[axis]) if at_axis == axis else 0.0
        case Cosine(at_axis):
            return -_of(z[axis]).sin(z[axis]) if at_axis == axis else 0.0
        case Penetration(at_axis, at, side, power):
            sign = 1.0 if side == "above" else -1.0
            return sign * (sign * (z[axis] - at - place)) ** (power - 1) if at_axis == axis else 0.0
        case Custom(function):
            if _of(z[axis]) is np:
                with jax.enable_x64(True):
                    return np.asarray(_directional(function, z, axis))
            return _directional(function, z, axis)


def _directional(function: Callable[[Sequence], Any], z: Any, axis: int) -> Any:
    at = [jnp.asarray(x) for x in z]
    tangents = [jnp.ones_like(x) if i == axis else jnp.zeros_like(x) for i, x in enumerate(at)]
    return jax.jvp(lambda *x: jnp.asarray(function(x)), at, tangents)[1]


def _of(x) -> Any:
    """The library an array is of: JAX's own would lose NumPy's double precision."""
    return np if isinstance(x, np.ndarray | float) else jnp


def values(library: Library, z: Float[Array, "latent *particles"]) -> Float[Array, "terms *particles"]:
    """Every term of the library at z."""
    return jnp.stack([t.value(z) for t in library])


def polynomial(latent: int, degree: int) -> Library:
    """All monomials of degree 1 to `degree`; the constant has no gradient and is left out."""
    if latent < 1 or degree < 1:
        raise ValueError(f"latent is {latent}, degree is {degree}; both must be at least 1.")
    picks = [c for n in range(1, degree + 1) for c in combinations_with_replacement(range(latent), n)]
    return tuple(Monomial(tuple(c.count(i) for i in range(latent))) for c in picks)
