"""What is assumed before a law is sought: coordinates, candidate terms, and what of R and G is known."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vhydro.library import Cosine, Library, Monomial, Sine


@dataclass(frozen=True)
class Problem:
    """A mechanical law `q̇ = ∂H/∂p + G_q a`, `ṗ = −∂H/∂q − R ∂H/∂p + G_p a`, with H a sparse sum of `library`.

    J is canonical. R is diagonal on the momenta. A NaN in `dissipation` or `port` is estimated, mode by mode; a
    number is known, in the base mode (see `laws.weak`). Something known must carry the unit of force: an entry
    of `port` that is not zero in a momentum's row, or of `dissipation`; without it masses have no scale.
    """

    coordinates: tuple[str, ...]  # positions first, then their momenta
    units: tuple[str, ...]
    inputs: tuple[str, ...]
    modes: tuple[str, ...]
    library: Library  # candidate terms of every mode; contacts add terms of their own gap
    dissipation: np.ndarray  # (positions,): NaN where estimated
    port: np.ndarray  # (coordinates, inputs): NaN where estimated
    masses: np.ndarray | None = None  # (positions,): masses or inertias known beforehand, NaN where estimated
    one_friction: bool = False  # whether viscous friction is one for all modes; otherwise each mode has its own

    @property
    def positions(self) -> int:
        return len(self.coordinates) // 2


def candidates(kinds: tuple[Literal["length", "angle"], ...]) -> Library:
    """The default library of one or more positions: an angle gets sine and cosine, a length its powers."""
    n = len(kinds)

    def power(**exponents: int) -> Monomial:
        powers = [0] * (2 * n)
        for name, value in exponents.items():
            powers[int(name[1:]) + (n if name[0] == "p" else 0)] = value
        return Monomial(tuple(powers))

    single: list = []
    for i, kind in enumerate(kinds):
        single += [power(**{f"p{i}": 2}), power(**{f"q{i}": 1}), power(**{f"q{i}": 2})]
        single += [Sine(i), Cosine(i)] if kind == "angle" else []
        if n == 1:
            single += [power(q0=3), power(q0=4), power(q0=1, p0=2), power(p0=4)]
    # No product of two momenta: inertia that couples is what `estimator="lagrange"` finds.
    return (*single, *(power(**{f"q{i}": 1, f"q{j}": 1}) for i in range(n) for j in range(i)))
