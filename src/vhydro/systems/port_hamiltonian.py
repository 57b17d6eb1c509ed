"""The exact law of a known-equation system: `ż = (J_s − R_s) ∇H_s(z) + G_s a` in every mode s."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.library import Term, slope
from vhydro.systems.textbook import Textbook

State = tuple  # one scalar per coordinate: columns, not rows, are what a batched step is fast on
Mode = Int[Array, ""]
Energy = dict[Term, float]  # a Hamiltonian: each term with its coefficient


@dataclass(frozen=True)
class Law:
    """What is true of a system, mode by mode; a term left out of `energies[s]` has coefficient 0 there."""

    modes: tuple[str, ...]
    coordinates: tuple[str, ...]  # positions first, then their momenta
    units: tuple[str, ...]  # of the coordinates
    inputs: tuple[str, ...]
    energies: tuple[Energy, ...]  # the Hamiltonian of every mode
    interconnection: np.ndarray  # J: (modes, coordinates, coordinates), skew
    dissipation: np.ndarray  # R: (modes, coordinates, coordinates), positive semidefinite
    port: np.ndarray  # G: (modes, coordinates, inputs)
    noise: np.ndarray  # (modes, coordinates): standard deviation gathered in one second

    @property
    def positions(self) -> int:
        """How many coordinates are positions: the ones a sensor sees."""
        return len(self.coordinates) // 2

    @property
    def library(self) -> tuple[Term, ...]:
        """Every term that is active in some mode."""
        return tuple(dict.fromkeys(term for energy in self.energies for term in energy))

    def energy(self, modes: np.ndarray, states: np.ndarray) -> np.ndarray:
        """The Hamiltonian of the mode each state is in: states (…, coordinates) and modes (…) give (…)."""
        with jax.enable_x64(True):
            flat = jnp.asarray(states, jnp.float64).reshape(-1, len(self.coordinates))
            terms = {t: np.asarray(jax.vmap(t.value)(flat)) for t in self.library}
        energies = [sum((c * terms[t] for t, c in e.items()), start=np.zeros(len(flat))) for e in self.energies]
        return np.choose(np.ravel(modes), energies).reshape(np.shape(modes))

    def velocity(self, mode: int, z: State, action: State) -> State:
        """ż in one mode, continued smoothly past the mode's edge so that no step feels the kink there."""
        size = range(len(self.coordinates))
        gradient = [sum((c * slope(t, j, z) for t, c in self.energies[mode].items()), start=0.0 * z[j]) for j in size]
        structure, port = self.interconnection[mode] - self.dissipation[mode], self.port[mode]
        return tuple(
            sum((float(w) * g for w, g in zip(structure[i], gradient, strict=True) if w), start=0.0 * z[i])
            + sum(float(w) * a for w, a in zip(port[i], action, strict=True) if w)
            for i in size
        )


@runtime_checkable
class System(Protocol):
    """What the simulator asks of a system. `guard` is positive inside a mode and 0 where the mode ends."""

    def law(self) -> Law | Textbook: ...
    def settle(self, z: State, action: State) -> Mode: ...  # the mode at z, when a sample begins
    def guard(self, z: State, action: State, mode: Mode) -> Float[Array, ""]: ...
    def switch(self, z: State, action: State, mode: Mode) -> tuple[State, Mode]: ...  # just after the guard's 0
    def starts(self, *, key: PRNGKeyArray) -> State: ...  # one random initial state
    def excitation(self, steps: int, dt, *, key: PRNGKeyArray) -> Float[Array, "steps inputs"]: ...


def law(system: System) -> Any:
    """The exact law of a system."""
    return system.law()


def canonical(modes: int, positions: int) -> np.ndarray:
    """The canonical J of (positions, momenta), the same in every mode."""
    eye, zero = np.eye(positions), np.zeros((positions, positions))
    return np.tile(np.block([[zero, eye], [-eye, zero]]), (modes, 1, 1))


def fastest(law: Law | Textbook) -> float:
    """The highest rate, in rad/s or 1/s, at which any mode swings or decays near rest."""
    size, action, near = len(law.coordinates), (0.0,) * len(law.inputs), 1e-3

    def velocity(mode: int, z: np.ndarray) -> np.ndarray:
        return np.array(law.velocity(mode, tuple(z), action), float)

    rest = np.array(law.around) if isinstance(law, Textbook) and law.around else np.zeros(size)
    jacobians = [
        [(velocity(s, rest + near * axis) - velocity(s, rest)) / near for axis in np.eye(size)]
        for s in range(len(law.modes))
    ]
    return float(np.abs(np.linalg.eigvals(np.array(jacobians))).max())


def refuse_constants(system: object, positive: Sequence[str], not_negative: Sequence[str]) -> None:
    """Raises if a constant of the system is not finite, or not of the sign physics gives it."""
    for name in (*positive, *not_negative):
        value = getattr(system, name)
        fits = np.isfinite(value) and (value > 0 if name in positive else value >= 0)
        if not fits:
            kind = "positive" if name in positive else "positive or zero"
            raise ValueError(
                f"{name} of {type(system).__name__} is {value}; expected a finite number that is {kind}. "
                f"Pass another `{name}`."
            )
