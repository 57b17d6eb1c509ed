"""A law of flight and the surfaces it bounces off: read, simulated, kept in a file and used as a model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vhydro.bouncing import Rebound, rebounded
from vhydro.flow import BouncingFlow
from vhydro.lagrangian import Lagrangian, Surface, follows, impulse_along
from vhydro.laws.as_model import circumstances, creeping, law_flow, masses, model_of_flow
from vhydro.laws.constants import Constant, constants, lines, table
from vhydro.laws.form import AnyForm
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
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
    """One surface that things bounce off: `v ← −restitution v` at its place; relative v where two bodies meet."""

    axis: int
    side: str  # below: of a height a floor; above: a ceiling
    restitution: Number
    place: Number
    impacts: int
    middle_half: tuple[float, float]  # of single impacts' restitutions
    excess: float | None  # of held-out impacts' speeds, nine in ten, over what noise leaves; None: not checked
    problem: str = ""  # why it is not identified
    other: int | None = None  # the position that is taken off, where two moving bodies meet

    @property
    def identified(self) -> bool:
        return not self.problem

    @property
    def surface(self) -> Surface:
        """Along what it lies, and on which side."""
        return Surface(self.axis, "below" if self.side == "below" else "above", self.other)

    @property
    def sign(self) -> float:
        return self.surface.sign

    def size(self, scales: Sequence[float] | np.ndarray) -> float:
        """How much there is along it of what every position has by itself, such as noise."""
        return float(np.sqrt(sum(scales[i] ** 2 for i, _ in self.surface.weights)))

    def kind(self, name: str) -> str:
        """What it is in words, along a position of this name."""
        if self.other is not None:
            return "impact"
        if re.split(r"[._ ]", name)[-1].lower() in HEIGHTS:
            return "floor" if self.side == "below" else "ceiling"
        return "lower wall" if self.side == "below" else "upper wall"


@dataclass(frozen=True)
class ImpactLaw:
    """A law of flight and the surfaces it bounces off. Its modes are flight, then an impact with every surface.

    An impact is frictionless: its impulse acts along the surface's own position, or on two bodies that meet, on one
    against the other. Where inertia couples the other velocities follow it.
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
        return (self.flight.modes[0], *(self._name(b, "lowest point") for b in self.bounces))

    def kind(self, bounce: Bounce) -> str:
        """What a surface is, in words."""
        return bounce.kind("height" if self.of_points else self.coordinates[bounce.axis])

    def _name(self, bounce: Bounce, point: str = "") -> str:
        """What a surface is and along what, as no other of the law is called; `point` is what meets those of points."""
        along = point if point and self.of_points else self.coordinates[bounce.axis]
        if bounce.other is None:
            return f"{self.kind(bounce)} along {along}"
        both = [b.side for b in self.bounces if (b.axis, b.other) == (bounce.axis, bounce.other)]
        which = f" from {bounce.side}" if len(both) > 1 else ""
        return f"{self.kind(bounce)} of {along} and {self.coordinates[bounce.other]}{which}"

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
            of = self._name(b)
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
        numbers = [
            (b.place.value, b.restitution.value, b.size(self._slow) if slow is None else float(slow))
            for b in self.bounces
        ]
        with jax.enable_x64(True):
            path = _bounced_path(
                self.flight.form, tuple(b.surface for b in self.bounces), substeps, self.flight.theta,
                np.array(numbers).reshape(-1, 3), light, z,
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
            for value in (lambda b: b.place.value, lambda b: b.restitution.value, lambda b: b.size(self._slow))
        ]
        bouncing = BouncingFlow(
            flow, *(jnp.asarray(x, jnp.float32) for x in (*arrays, 1 / masses(many))),
            axes=tuple(-1 if b is None else b.axis for b in surfaces),
            signs=tuple(1.0 if b is None else b.sign for b in surfaces),
            others=tuple(-1 if b is None or b.other is None else b.other for b in surfaces),
        )  # fmt: skip
        kernel = mode_kernel(len(surfaces), stay=1 / len(surfaces), drive=self._meets(many)) if self.bounces else None
        return model_of_flow(many, bouncing, channels, kernel=kernel, shaken=self._spread_of_impacts(many))

    def _meets(self, law: AnyLaw) -> Network:
        """A small network: an impact is likely where a straight step would cross its surface."""
        seen, n, modes = circumstances(law), self.positions, len(self.modes)
        slope, shift = np.zeros((modes, 2 * n + len(self.inputs))), np.zeros(modes)
        for k, b in enumerate(self.bounces, 1):
            blur = max(b.size(seen.noise), 1e-4 * b.size(seen.position_spread))
            for axis, way in b.surface.weights:
                slope[k, axis] = way * b.sign / blur
                slope[k, n + axis] = way * b.sign * seen.dt / masses(law)[axis] / blur
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
            shares = masses(law) * np.abs(share(law, b.surface, np.array(seen.position_mean)))
            for axis, _ in b.surface.weights:
                out[k, n + axis] = ratio * b.size(seen.velocity_spread) * shares[axis]
        return out

    def save(self, path: str | Path) -> None:
        """Writes the law as JSON, whole or not at all."""
        from vhydro.laws.files import law_text  # it reads all laws

        write_whole(Path(path), law_text(self))


def share(law: AnyLaw, surface: Surface, q: np.ndarray) -> np.ndarray:
    """How all velocities change at positions `q` where an impulse along a surface changes the one along it by 1."""
    impulse = np.array(impulse_along(surface, law.positions))
    coupled = isinstance(law, LagrangeLaw)
    follow = np.linalg.solve(law.mass_matrix(q), impulse) if coupled else impulse / masses(law)
    return follow / surface.along(follow)


@partial(jax.jit, static_argnames=("form", "surfaces", "substeps"))
def _bounced_path(form: AnyForm, surfaces, substeps: int, theta, numbers, light, start, actions, dt):
    """The states after every sample, each substep through at most one bounce off every surface."""
    n, h = form.positions, dt / substeps

    def one(z: tuple, action) -> tuple:
        now = step(form, theta, (0.0,) * len(form.blocks), z, action, h)
        for surface, number in zip(surfaces, numbers, strict=True):
            if isinstance(form, Lagrangian):
                pushed = follows(form, theta, now[:n], surface)
            else:
                pushed = impulse_along(surface, n)
            after = tuple(rebounded(Rebound(surface, *number), tuple(light), pushed, z, now, h))
            # The next surface asks how flight accelerates, which is not what this one's impulse did.
            z, now = tuple(x + b - a for x, a, b in zip(z, now, after, strict=True)), after
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
        along = names[b.axis] if b.other is None else f"{names[b.axis]} − {names[b.other]}"
        which = "" if b.other is None else f" of {names[b.axis]} and {names[b.other]}"
        speed = "velocity" if b.other is None else "relative velocity"
        what = f"{law.kind(b)}{which} at {along} = {b.place.value:.5g}{mark}"
        lines += [
            what,
            f"  {speed} ← −{b.restitution.value:.4g} {speed}   [{low:.4g}, {high:.4g}], {b.impacts} impacts, "
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
