"""A law of flight and the surfaces it bounces off: read, simulated, kept in a file and used as a model."""

import re
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.bouncing import Rebound, rebounded
from vhydro.flow import BouncingFlow
from vhydro.lagrangian import Lagrangian, follows
from vhydro.laws.as_model import circumstances, creeping, law_flow, masses, model_of_flow
from vhydro.laws.constants import Constant, constants, lines, table
from vhydro.laws.form import AnyForm
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Law, Number
from vhydro.laws.shooting import step, substeps
from vhydro.model import HybridModel, mode_kernel
from vhydro.network import Network
from vhydro.outputs import write_whole

FORMAT = "vhydro impacts 1"
SLOW = 0.01  # of a velocity's spread: what leaves a surface more slowly stays on it
HEIGHTS = ("z", "y", "h", "height")  # names of what has floors and ceilings
MEETS = 8.0  # nats by which a surface that would be met speaks for its impact, and against it elsewhere


@dataclass(frozen=True)
class Bounce:
    """One surface that things bounce off: `v ← −restitution v` at its place."""

    axis: int
    side: str  # below: of a height a floor; above: a ceiling
    restitution: Number
    place: Number
    impacts: int
    middle_half: tuple[float, float]  # of single impacts' restitutions
    excess: float | None  # of held-out impacts' speeds, nine in ten, over what noise leaves; None: not checked
    problem: str = ""  # why it is not identified

    @property
    def identified(self) -> bool:
        return not self.problem

    @property
    def sign(self) -> float:
        return -1.0 if self.side == "below" else 1.0

    def kind(self, name: str) -> str:
        """What it is in words, along a position of this name."""
        if re.split(r"[._ ]", name)[-1].lower() in HEIGHTS:
            return "floor" if self.side == "below" else "ceiling"
        return "lower wall" if self.side == "below" else "upper wall"


@dataclass(frozen=True)
class ImpactLaw:
    """A law of flight and the surfaces it bounces off. Its modes are flight, then an impact with every surface.

    An impact is frictionless: its impulse acts along the surface's own position, and where inertia couples the other
    velocities follow it.
    """

    flight: AnyLaw
    bounces: tuple[Bounce, ...]
    of_points: bool = False  # surfaces are met by points of a body, not by a position of the law

    def __str__(self) -> str:
        return f"{self.flight}\n{bounces_text(self)}"

    @property
    def positions(self) -> int:
        return self.flight.positions

    @property
    def coordinates(self) -> tuple[str, ...]:
        return self.flight.coordinates

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.flight.inputs

    @property
    def modes(self) -> tuple[str, ...]:
        along = ["lowest point" if self.of_points else self.coordinates[b.axis] for b in self.bounces]
        return (self.flight.modes[0], *(f"{self.kind(b)} along {a}" for b, a in zip(self.bounces, along, strict=True)))

    def kind(self, bounce: Bounce) -> str:
        """What a surface is, in words."""
        return bounce.kind("height" if self.of_points else self.coordinates[bounce.axis])

    @cached_property
    def problems(self) -> tuple[tuple[int, str], ...]:
        """Every (mode, reason) for which it is not identified; impacts are read with the law of flight."""
        out = [(0, why) for m, why in self.flight.problems if m == 0]
        out += [(k, b.problem) for k, b in enumerate(self.bounces, 1) if b.problem]
        if out and out[0][0] == 0 and not self.of_points:
            why = f"it is read with the law of {self.modes[0]}, which is not identified"
            out += [(k, why) for k, b in enumerate(self.bounces, 1) if not b.problem]
        return tuple(out)

    def status(self, mode: int) -> Literal["identified", "at rest", "unidentified"]:
        """Whether the law of flight (mode 0), or an impact, may be relied on."""
        if any(m == mode for m, _ in self.problems):
            return "unidentified"
        return self.flight.status(0) if mode == 0 else "identified"

    @property
    def surfaces(self) -> dict[str, Constant]:
        """Restitution and place of every surface."""
        out, units = {}, self.flight.units
        for k, b in enumerate(self.bounces, 1):
            of = f"{self.kind(b)} along {self.coordinates[b.axis]}"
            out[f"restitution of {of}"] = Constant(float(b.restitution.value), float(b.restitution.error), "1", (k,))
            out[f"place of {of}"] = Constant(float(b.place.value), float(b.place.error), units[b.axis], (k,))
        return out

    def table(self) -> str:
        """The constants as lines of text: those of the law of flight, then those of every surface."""
        if isinstance(self.flight, Law):
            return lines(self, constants(self.flight) | self.surfaces)
        return table(self.flight) + lines(self, self.surfaces)

    def simulate(
        self, start: np.ndarray, actions: np.ndarray, dt: float, *, substeps: int = 4, slow: float | None = None
    ) -> np.ndarray:
        """Positions and velocities (steps + 1, coordinates) from a start, inputs held, through every bounce.

        What leaves a surface more slowly than `slow` (in units of velocity; 1 % of their spread if not given) stays on
        it until it is lifted.
        """
        self._refuse_points()
        light = 1 / masses(self.flight)
        z = np.concatenate([np.asarray(start, float)[: self.positions], start[self.positions :] / light])
        limits = tuple(self._slow) if slow is None else (float(slow),) * self.positions
        axes, signs = tuple(b.axis for b in self.bounces), tuple(b.sign for b in self.bounces)
        numbers = np.array([[b.place.value, b.restitution.value] for b in self.bounces]).reshape(-1, 2)
        with jax.enable_x64(True):
            path = _bounced_path(
                self.flight.form, axes, signs, substeps, self.flight.theta, numbers, limits, light, z,
                np.asarray(actions, float).reshape(-1, len(self.inputs)), dt,
            )  # fmt: skip
        return np.concatenate([z[None], path]) * np.concatenate([np.ones(self.positions), light])

    @property
    def _slow(self) -> np.ndarray:
        seen = self.flight.circumstances
        return np.zeros(self.positions) if seen is None else SLOW * np.array(seen.velocity_spread)

    def _refuse_points(self) -> None:
        if self.of_points:
            raise ValueError(
                "the surfaces of this law are met by points of a body, whose turning it does not describe; expected "
                "impacts along its own positions. Simulate `law.flight` between impacts, or find impacts without "
                "`points`."
            )

    def as_model(self, channels: tuple[str, ...] | None = None) -> HybridModel:
        """The hybrid model of this law: mode 0 flies, mode 1 + k bounces off surface k within its step.

        z is that of the law of flight. An impact is as likely as it is that the surface is met before the next sample.
        """
        self._refuse_points()
        many = replace(self.flight, modes=self.modes)
        seen, n = circumstances(many), self.positions
        flow = law_flow(many, substeps=substeps(creeping(many), many.theta, seen.dt))
        if np.asarray(flow.port)[:, :n].any():
            raise ValueError(
                "an input moves a position of this law by itself; expected forces alone where things bounce. Give "
                "positions in a frame at rest."
            )
        surfaces = [None, *self.bounces]
        arrays = [
            [0.0 if b is None else value(b) for b in surfaces]
            for value in (lambda b: b.place.value, lambda b: b.restitution.value, lambda b: self._slow[b.axis])
        ]
        bouncing = BouncingFlow(
            flow, *(jnp.asarray(x, jnp.float32) for x in (*arrays, 1 / masses(many))),
            axes=tuple(-1 if b is None else b.axis for b in surfaces),
            signs=tuple(1.0 if b is None else b.sign for b in surfaces),
        )  # fmt: skip
        kernel = mode_kernel(len(surfaces), stay=1 / len(surfaces), drive=self._meets(many)) if self.bounces else None
        return model_of_flow(many, bouncing, channels, kernel=kernel, shaken=self._spread_of_impacts(many))

    def _meets(self, law: AnyLaw) -> Network:
        """A small network: an impact is likely where a straight step would cross its surface."""
        seen, n, modes = circumstances(law), self.positions, len(self.modes)
        slope, shift = np.zeros((modes, 2 * n + len(self.inputs))), np.zeros(modes)
        for k, b in enumerate(self.bounces, 1):
            blur = max(seen.noise[b.axis], 1e-4 * seen.position_spread[b.axis])
            slope[k, b.axis] = b.sign / blur
            slope[k, n + b.axis] = b.sign * seen.dt / masses(law)[b.axis] / blur
            shift[k] = -b.sign * b.place.value / blur
        sure = np.diag([0.0, *([MEETS] * (modes - 1))])
        layers = [jnp.asarray(x, jnp.float32) for x in (slope, sure, shift, np.zeros(modes))]
        return Network((layers[0], layers[1]), (layers[2], layers[3]))

    def _spread_of_impacts(self, law: AnyLaw) -> np.ndarray:
        """What single impacts differ by, as noise of every mode's coordinates: (modes, coordinates)."""
        seen, n = circumstances(law), self.positions
        out = np.zeros((len(self.modes), 2 * n))
        for k, b in enumerate(self.bounces, 1):
            ratio = max((b.middle_half[1] - b.middle_half[0]) / 1.349, b.restitution.error)
            out[k, n + b.axis] = ratio * masses(law)[b.axis] * seen.velocity_spread[b.axis]
        return out

    def save(self, path: str | Path) -> None:
        """Writes the law as JSON, whole or not at all."""
        from vhydro.laws.files import law_text  # it reads all laws

        write_whole(Path(path), law_text(self))


@partial(jax.jit, static_argnames=("form", "axes", "signs", "substeps"))
def _bounced_path(form: AnyForm, axes, signs, substeps: int, theta, numbers, slow, light, start, actions, dt):
    """The states after every sample, each substep through at most one bounce off every surface."""
    n, h = form.positions, dt / substeps

    def one(z: tuple, action) -> tuple:
        now = step(form, theta, (0.0,) * len(form.blocks), z, action, h)
        for k, (axis, sign) in enumerate(zip(axes, signs, strict=True)):
            unit = [float(i == axis) for i in range(n)]
            pushed = follows(form, theta, now[:n], axis) if isinstance(form, Lagrangian) else unit
            surface = Rebound(axis, sign, numbers[k, 0], numbers[k, 1], slow[axis])
            now = tuple(rebounded(surface, light[axis], pushed, z, now, h))
        return now

    def sample(z: tuple, action):
        for _ in range(substeps):
            z = one(z, tuple(action))
        return z, jnp.stack(z)

    return jax.lax.scan(sample, tuple(start), actions)[1]


def bounces_text(law: ImpactLaw) -> str:
    """What happens at every surface, in words."""
    names, lines = law.flight.coordinates, []
    for k, b in enumerate(law.bounces, 1):
        low, high = b.restitution.interval
        reasons = "; ".join(why for m, why in law.problems if m == k)
        mark = f" (unidentified: {reasons})" if reasons else ""
        what = f"{law.kind(b)} at {names[b.axis]} = {b.place.value:.5g}{mark}"
        lines += [
            what,
            f"  velocity ← −{b.restitution.value:.4g} velocity   [{low:.4g}, {high:.4g}], {b.impacts} impacts, "
            f"middle half {b.middle_half[0]:.3g} … {b.middle_half[1]:.3g}",
        ]
        if b.excess is not None:
            lines.append(f"  held-out impacts, nine in ten: {b.excess:.3g} times what noise leaves")
    return "\n".join(lines or ["no impact was found"]) + "\n"


def bounce_of(document: dict[str, Any]) -> Bounce:
    """The surface that a file holds."""
    numbers = {name: Number(*map(float, document[name])) for name in ("restitution", "place")}
    low, high = map(float, document["middle_half"])
    fields: dict[str, Any] = document | numbers | {"middle_half": (low, high)}
    return Bounce(**fields)
