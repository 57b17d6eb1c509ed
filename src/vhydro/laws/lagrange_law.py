"""Recovered Lagrange's equations: read, evaluated, simulated, kept in a file and used as a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vhydro.lagrangian import (
    Friction,
    Inertia,
    LagrangeEntry,
    Lagrangian,
    Potential,
    Remainder,
    Shape,
    Surface,
    Touch,
    solved,
)
from vhydro.laws.as_model import Circumstances, law_model
from vhydro.laws.held_out import Horizon
from vhydro.laws.law import Law, Number, finite, read_circumstances, read_horizons
from vhydro.laws.shooting import simulated
from vhydro.model import HybridModel
from vhydro.outputs import write_whole

FORMAT = "vhydro equations 1"
KINDS = {c.__name__: c for c in (Shape, Inertia, Potential, Friction, Remainder, Surface, Touch)}


@dataclass(frozen=True)
class LagrangeLaw:
    """`M(q) v̇ + Ṁ v − ½ ∂(vᵀ M v)/∂q = −∂V/∂q − friction + B a`, with the uncertainty of its parameters.

    A contact adds a spring and a damper while it is on. `problems` says of a mode why it is not identified.
    """

    coordinates: tuple[str, ...]  # positions first, then their velocities
    units: tuple[str, ...]
    inputs: tuple[str, ...]
    modes: tuple[str, ...]
    form: Lagrangian
    theta: np.ndarray
    support: np.ndarray
    covariance: np.ndarray
    estimator: str
    chi_square: float | None = None  # misfit over what sensor noise alone would leave: about 1 for a true law
    problems: tuple[tuple[int, str], ...] = ()  # (mode, reason)
    notes: tuple[str, ...] = ()
    circumstances: Circumstances | None = None
    held_out: tuple[Horizon, ...] = ()

    def __str__(self) -> str:
        from vhydro.laws.lagrange_writing import equations_text  # it reads laws

        return equations_text(self)

    @property
    def positions(self) -> int:
        return len(self.coordinates) // 2

    def status(self, mode: int) -> Literal["identified", "at rest", "unidentified"]:
        """Whether the equations of a mode may be relied on."""
        if any(m == mode for m, _ in self.problems):
            return "unidentified"
        return "at rest" if mode in self.form.resting else "identified"

    def contact(self, mode: int) -> int | None:
        """Which of the form's contacts a mode is; None of a mode without one."""
        return next((b for b, touch in enumerate(self.form.blocks) if touch.mode == mode), None)

    def terms(self, mode: int) -> dict[str, Number]:
        """Every term of a mode's equations by name, such as `M[x,angle] cos(angle)`, with its value and error."""
        if mode in self.form.resting:
            return {}
        own = (-1, self.contact(mode))
        return {
            self.entry_name(e): self.number(i)
            for i, e in enumerate(self.form.entries)
            if e.block in own and self.support[i] and (self.form.free[i] or e.kind != "port")
        }

    def number(self, index: int) -> Number:
        """One parameter and its standard error."""
        variance = float(self.covariance[index, index])
        return Number(float(self.theta[index]), float(np.sqrt(variance)) if variance > 0 else 0.0)

    def entry_name(self, e: LagrangeEntry) -> str:
        """What one parameter is, in words."""
        n = self.positions
        q, v, t = self.coordinates[:n], self.coordinates[n:], e.term
        if isinstance(t, Inertia):
            return f"M[{q[t.row]},{q[t.column]}] {t.shape.text(q)}".rstrip()
        if isinstance(t, Potential):
            return f"V {t.shape.text(q)}"
        if isinstance(t, Friction):
            return f"friction {t.text(v)}"
        if isinstance(t, Remainder):
            return f"remainder {t.text(q, v)}"
        if e.kind == "speed":
            return f"s of {v[e.axis]}"
        return f"{self.inputs[e.column]} along {q[e.axis]}" if e.kind == "port" else e.kind

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        """M at positions (…, positions): (…, positions, positions)."""
        columns = list(np.moveaxis(np.asarray(q, float), -1, 0))
        rows = self.form.mass_matrix(self.theta, columns)
        return np.stack([np.stack(np.broadcast_arrays(*row), -1) for row in rows], -2)

    def acceleration(self, mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """How fast velocities change: (samples, positions). At a standstill dry friction acts neither way."""
        if mode in self.form.resting:
            return np.zeros_like(q)
        places, rates, inputs = (list(np.moveaxis(np.asarray(x, float), -1, 0)) for x in (q, v, a))
        on: list[Any] = [float(b == self.contact(mode)) for b in range(len(self.form.blocks))]
        on += [0.5 * (1 + np.sign(way.along([*places, *rates]))) for way in self.form.switches[len(on) :]]
        force = self.form.force(self.theta, on, places, rates, inputs)
        return np.stack(np.broadcast_arrays(*solved(self.form.mass_matrix(self.theta, places), force)), -1)

    def simulate(
        self, start: np.ndarray, actions: np.ndarray, dt: float, mode: int | None = None, *, substeps: int | None = None
    ) -> np.ndarray:
        """The states (steps + 1, coordinates) from positions and velocities, inputs held; contacts come and go.

        Each sample takes as many `substeps` as the stiffest contact needs; after what no number can follow comes NaN.
        """
        if mode in self.form.resting:
            return np.tile(np.asarray(start, float), (len(actions) + 1, 1))
        held = np.concatenate([actions, actions[-1:]])
        off = np.zeros(len(self.form.blocks))
        return simulated(self.form, self.theta, np.asarray(start, float), held, off, dt, substeps)

    def as_model(self, channels: tuple[str, ...] | None = None) -> HybridModel:
        """The hybrid model of these equations, to filter with and to plan on; z is (positions, velocities)."""
        return law_model(self, channels)

    def latex(self) -> str:
        """The equations as a LaTeX `align*`."""
        from vhydro.laws.lagrange_writing import equations_latex

        return equations_latex(self)

    def table(self) -> str:
        """The constants as lines of text."""
        from vhydro.laws.lagrange_writing import equations_table

        return equations_table(self)

    def save(self, path: str | Path) -> None:
        """Writes the equations as JSON, whole or not at all."""
        from vhydro.laws.files import law_text  # it reads all laws

        write_whole(Path(path), law_text(self))


AnyLaw = Law | LagrangeLaw


def equations_document(law: LagrangeLaw) -> dict:
    """The equations as JSON can hold them."""
    arrays = {name: getattr(law, name).tolist() for name in ("theta", "support", "covariance")}
    seen = law.circumstances and law.circumstances._asdict()
    form = {name: _plain(getattr(law.form, name)) for name in Lagrangian.__dataclass_fields__}
    parts = {"form": form, "circumstances": seen, "held_out": [*map(finite, law.held_out)]}
    return {"format": FORMAT} | vars(law) | arrays | parts


def _plain(value: Any) -> Any:
    """Terms as records of what they are."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if type(value).__name__ in KINDS:
        return {"is": type(value).__name__} | {k: _plain(v) for k, v in vars(value).items()}
    return value


def _built(value: Any) -> Any:
    """Terms from records; only those listed here are ever made."""
    if isinstance(value, list):
        return tuple(map(_built, value))
    if isinstance(value, dict):
        fields = {k: _built(v) for k, v in value.items() if k != "is"}
        return KINDS[value["is"]](**fields)
    return value


def equations_of(document: dict) -> LagrangeLaw:
    """The equations that `equations_document` wrote down."""
    form = Lagrangian(**{k: _built(v) for k, v in document["form"].items()})  # older files have no remainder
    arrays = {name: np.array(document[name]) for name in ("theta", "support")}
    arrays["covariance"] = np.array(document["covariance"], float)
    if not len(form.entries) == len(arrays["theta"]) == len(arrays["support"]) == len(arrays["covariance"]):
        raise ValueError(f"{len(arrays['theta'])} parameters for {len(form.entries)} entries")
    names = {name: tuple(document[name]) for name in ("coordinates", "units", "inputs", "modes", "notes")}
    parts = {
        "form": form,
        "problems": tuple((int(m), str(why)) for m, why in document["problems"]),
        "circumstances": read_circumstances(document.get("circumstances")),
        "held_out": read_horizons(document.get("held_out", ())),
    }
    fields: dict[str, Any] = {k: v for k, v in document.items() if k != "format"} | arrays | names | parts
    return LagrangeLaw(**fields)
