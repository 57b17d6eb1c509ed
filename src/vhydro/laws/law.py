"""A recovered law: read as equations, evaluated, simulated and kept in a file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from vhydro.flow import PortHamiltonianFlow
from vhydro.lagrangian import Reversal
from vhydro.laws.as_model import Circumstances, law_flow, law_model
from vhydro.laws.form import Block, Entry, Form, Guard, is_kinetic
from vhydro.laws.held_out import Horizon
from vhydro.laws.shooting import simulated
from vhydro.library import Cosine, Custom, Library, Monomial, Penetration, Sine, Term, slope
from vhydro.model import HybridModel
from vhydro.outputs import write_whole

NORMAL_95 = 1.959964


class Number(NamedTuple):
    """A value and its standard error: 0 where it was given, NaN where the estimator has none."""

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95 % interval."""
        return self.value - NORMAL_95 * self.error, self.value + NORMAL_95 * self.error


@dataclass(frozen=True)
class Law:
    """A hybrid port-Hamiltonian law with the uncertainty of its parameters.

    `ż = (J − R) ∇H + G a` in every mode, J canonical. `problems` says of a mode why its law is not identified;
    such a mode's numbers are what was found, and are not to be trusted.
    """

    coordinates: tuple[str, ...]  # positions first, then their momenta
    units: tuple[str, ...]
    inputs: tuple[str, ...]
    modes: tuple[str, ...]
    form: Form
    theta: np.ndarray
    support: np.ndarray
    covariance: np.ndarray
    estimator: str
    chi_square: float | None = None  # misfit over what sensor noise alone would leave: about 1 for a true law
    problems: tuple[tuple[int, str], ...] = ()  # (mode, reason)
    notes: tuple[str, ...] = ()
    circumstances: Circumstances | None = None  # how it was measured; None of laws from older files
    held_out: tuple[Horizon, ...] = ()  # how it predicts episodes that it was not fitted to

    def __str__(self) -> str:
        from vhydro.laws.writing import text  # it reads laws

        return text(self)

    @property
    def positions(self) -> int:
        return len(self.coordinates) // 2

    def status(self, mode: int) -> Literal["identified", "at rest", "unidentified"]:
        """Whether the law of a mode may be relied on."""
        if any(m == mode for m, _ in self.problems):
            return "unidentified"
        return "at rest" if mode in self.form.resting else "identified"

    def energy(self, mode: int) -> dict[Term, Number]:
        """The terms of a mode's Hamiltonian and their coefficients."""
        out: dict[Term, list[int]] = {}
        for i, e in self._of(mode, "energy"):
            if self.support[i]:
                out.setdefault(self._placed(e), []).append(i)
        return {term: self._sum(indices) for term, indices in out.items()}

    def dissipation(self, mode: int) -> tuple[Number, ...]:
        """The diagonal of R on the momenta."""
        return tuple(self._sum([i for i, e in self._of(mode, "dissipation") if e.axis == a]) for a in self._axes)

    def port(self, mode: int) -> tuple[tuple[Number, ...], ...]:
        """G: one row for each coordinate."""
        known = [tuple(Number(g or 0.0, 0.0) for g in self.form.known_port[i]) for i in self._axes]
        columns = range(len(self.inputs))
        entries = self._of(mode, "port")
        rows = [
            tuple(self._sum([i for i, e in entries if (e.axis, e.column) == (a, j)]) for j in columns)
            for a in self._axes
        ]
        if mode in self.form.resting:
            known = [tuple(Number(0.0, 0.0) for _ in row) for row in known]
        return (*known, *rows)

    def acceleration(self, mode: int, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """How fast velocities change: (samples, positions).

        `v` is `∂H/∂p`: the velocity less what an input imposes on the position. Where H is not quadratic in the
        momenta they are found from it by Newton's method, and `v̇ = H_pq q̇ + H_pp ṗ`.
        """
        if mode in self.form.resting:
            return np.zeros_like(q)
        energy = {term: number.value for term, number in self.energy(mode).items()}
        port = np.array([[n.value for n in row] for row in self.port(mode)])
        drag = np.array([n.value for n in self.dissipation(mode)])
        n = self.positions
        p = v / np.stack([self._twice_kinetic(energy, i) for i in self._axes])
        if all(_is_plain(t, n) for t in energy):
            force = -_gradient(energy, q, p)[:, :n] - drag * v + a @ port[n:].T
            return force * np.stack([self._twice_kinetic(energy, i) for i in self._axes])
        for _ in range(20):
            off = _gradient(energy, q, p)[:, n:] - v
            p = p - np.linalg.solve(_by_momenta(energy, q, p)[:, n:] + 1e-12 * np.eye(n), off[..., None])[..., 0]
        force = -_gradient(energy, q, p)[:, :n] - drag * v + a @ port[n:].T
        curvature = _by_momenta(energy, q, p)
        along = np.einsum("sij,sj->si", np.swapaxes(curvature[:, :n], 1, 2), v + a @ port[:n].T)
        return along + np.einsum("sij,sj->si", curvature[:, n:], force)

    def flow(self, *, substeps: int = 1, dtype=jnp.float32) -> PortHamiltonianFlow:
        """The vector field of every mode, z = (positions, momenta) in the law's units."""
        flow = law_flow(self, substeps=substeps, dtype=dtype)
        assert isinstance(flow, PortHamiltonianFlow)
        return flow

    def as_model(self, channels: tuple[str, ...] | None = None) -> HybridModel:
        """The hybrid model of this law, to filter with and to plan on; its mode m is the law's mode m.

        z is (positions, momenta) in the law's units. `channels` are those that show the positions; they have the
        positions' names if not given.
        """
        return law_model(self, channels)

    def simulate(
        self, start: np.ndarray, actions: np.ndarray, dt: float, mode: int | None = None, *, substeps: int | None = None
    ) -> np.ndarray:
        """The states (steps + 1, coordinates) from a start, inputs held between samples; contacts come and go.

        Each sample takes as many `substeps` as the stiffest contact needs; after what no number can follow comes NaN.

        Directions switch by themselves, and what friction holds stays where it stopped; with a `mode` that is told
        apart by a direction, or by nothing, that one is on from beginning to end.
        """
        if mode in self.form.resting:
            return np.tile(np.asarray(start, float), (len(actions) + 1, 1))
        held = np.concatenate([actions, actions[-1:]])
        form = self._switching if mode is None else self.form
        on = np.array([float(b.guard is None and b.mode == mode) for b in self.form.blocks])
        return simulated(form, self.theta, np.asarray(start, float), held, on, dt, substeps)

    @property
    def _switching(self) -> Form:
        """The form whose directions switch by themselves."""
        ways = {m: Reversal(self.positions, axis, None, sign) for m, axis, sign in self._directions}
        found = tuple(ways.get(b.mode) if b.guard is None else None for b in self.form.blocks)
        return replace(self.form, ways=found if any(found) else ())

    @property
    def _directions(self) -> tuple[tuple[int, int, float], ...]:
        return () if self.circumstances is None else self.circumstances.directions

    @property
    def _axes(self) -> range:
        return range(self.positions)

    def _of(self, mode: int, kind: str) -> list[tuple[int, Entry]]:
        """The entries of one kind that make up the law of a mode."""
        if mode in self.form.resting:
            return []
        own = {b for b, block in enumerate(self.form.blocks) if block.mode == mode}
        blocks = own | {-1} if self.form.additive or not own else own
        return [(i, e) for i, e in enumerate(self.form.entries) if e.kind == kind and e.block in blocks]

    def _sum(self, indices: list[int]) -> Number:
        use = [i for i in indices if self.support[i] or np.isfinite(self.form.known[i])]
        variance = float(self.covariance[np.ix_(use, use)].sum())
        return Number(
            float(self.theta[use].sum()), float(np.sqrt(variance if variance > 0 or np.isnan(variance) else 0.0))
        )

    def _placed(self, e: Entry) -> Term:
        assert e.term is not None
        return (
            replace(e.term, at=float(self.theta[self.form.places[e.block]]))
            if isinstance(e.term, Penetration)
            else e.term
        )

    def _twice_kinetic(self, energy: dict[Term, float], axis: int) -> float:
        square = Monomial(tuple(2 * (i == self.positions + axis) for i in range(2 * self.positions)))
        return 2 * energy[square]

    def save(self, path: str | Path) -> None:
        """Writes the law as JSON, whole or not at all."""
        from vhydro.laws.files import law_text  # it reads all laws

        write_whole(Path(path), law_text(self))


def _is_plain(term: Term, positions: int) -> bool:
    """Whether a term is one of the positions alone, or the square of one momentum."""
    return not isinstance(term, Monomial) or not any(term.powers[positions:]) or is_kinetic(term)


def _gradient(energy: dict[Term, float], q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """∇H at every sample: (samples, coordinates)."""
    z = np.concatenate([q.T, p.T])
    zero = np.zeros(len(q))
    return np.stack([sum((c * slope(t, i, z) for t, c in energy.items()), zero) for i in range(len(z))], -1)


def _by_momenta(energy: dict[Term, float], q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """∂∇H/∂p at every sample: (samples, coordinates, momenta), by central differences."""
    size = np.maximum(np.std(p, axis=0), 0.1 * np.abs(p).max(0))
    steps = 1e-5 * np.maximum(size, 1e-9) * np.eye(p.shape[1])
    sides = [(_gradient(energy, q, p + s) - _gradient(energy, q, p - s)) / (2 * s.sum()) for s in steps]
    return np.stack(sides, -1)


TERMS = {"monomial": Monomial, "sine": Sine, "cosine": Cosine, "penetration": Penetration}


def _term(term: Term) -> dict:
    if isinstance(term, Custom):
        raise ValueError(
            f"the term {term.label!r} is a function of one's own, which a file cannot hold; expected monomials, sines, "
            "cosines and penetrations. Keep the law's text, or write the term with those."
        )
    return {"kind": type(term).__name__.lower(), **vars(term)}


def _read_term(document: dict) -> Term:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items() if k != "kind"}
    return TERMS[document["kind"]](**fields)


def _library(documents: list[dict]) -> Library:
    return tuple(map(_read_term, documents))


def finite(horizon: Horizon) -> Horizon:
    """The same with numbers that JSON can hold: what cannot be followed at all errs by very much."""
    by = tuple(None if x is None else float(np.nan_to_num(x, posinf=1e9)) for x in horizon.by_mode)
    excess, error = (float(np.nan_to_num(x, nan=1e9, posinf=1e9)) for x in (horizon.excess, horizon.error))
    return horizon._replace(excess=excess, error=error, by_mode=by)


def law_document(law: Law) -> dict:
    """The law as JSON can hold it."""
    form = vars(law.form) | {
        "library": [_term(t) for t in law.form.library],
        "blocks": [
            {"mode": b.mode, "guard": b.guard and vars(b.guard), "terms": [_term(t) for t in b.terms]}
            for b in law.form.blocks
        ],
    }
    names = Form.__dataclass_fields__.keys() - {"ways"}
    arrays = {name: getattr(law, name).tolist() for name in ("theta", "support", "covariance")}
    arrays["covariance"] = [[None if np.isnan(x) else x for x in row] for row in arrays["covariance"]]
    seen = law.circumstances and law.circumstances._asdict()
    parts = {"form": {k: v for k, v in form.items() if k in names}, "circumstances": seen}
    parts["held_out"] = [*map(finite, law.held_out)]
    return {"format": "vhydro law 1"} | vars(law) | arrays | parts


def law_of(document: dict) -> Law:
    """The law that `law_document` wrote down."""
    if document.pop("format", None) != "vhydro law 1":
        raise ValueError("its format is not 'vhydro law 1'")
    form = document["form"]
    blocks = tuple(
        Block(b["mode"], Guard(**b["guard"]) if b["guard"] else None, _library(b["terms"])) for b in form["blocks"]
    )
    built = Form(
        **form
        | {
            "library": _library(form["library"]),
            "blocks": blocks,
            "known_dissipation": tuple(form["known_dissipation"]),
            "known_port": tuple(map(tuple, form["known_port"])),
            "resting": tuple(form["resting"]),
            "known_masses": tuple(form.get("known_masses", ())),
        }
    )
    arrays = {name: np.array(document[name]) for name in ("theta", "support")}
    arrays["covariance"] = np.array(document["covariance"], float)
    if not len(built.entries) == len(arrays["theta"]) == len(arrays["support"]) == len(arrays["covariance"]):
        raise ValueError(f"{len(arrays['theta'])} parameters for {len(built.entries)} entries")
    names = {name: tuple(document[name]) for name in ("coordinates", "units", "inputs", "modes", "notes")}
    problems = tuple((int(m), str(text)) for m, text in document["problems"])
    parts = {"form": built, "problems": problems, "circumstances": read_circumstances(document.get("circumstances"))}
    parts["held_out"] = read_horizons(document.get("held_out", ()))
    fields: dict[str, Any] = document | arrays | names | parts
    return Law(**fields)


def read_horizons(document: Sequence) -> tuple[Horizon, ...]:
    """How a law predicted held-out episodes, from a file."""
    return tuple(Horizon(float(s), int(n), float(x), float(e), tuple(by)) for s, n, x, e, by in document)


def read_circumstances(document: dict | None) -> Circumstances | None:
    if document is None:
        return None
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
    fields["directions"] = tuple(map(tuple, document["directions"]))
    return Circumstances(**fields)
