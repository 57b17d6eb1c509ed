"""The parameters of a hybrid law: a base law, and what every other mode adds to it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np

from vhydro.lagrangian import Lagrangian, Reversal
from vhydro.laws.problem import Problem
from vhydro.library import Library, Monomial, Penetration, Term

DEPTH_POWERS = (1, 2, 3)  # of a contact's energy in its depth: constant force, spring, stiffening spring


@dataclass(frozen=True)
class Guard:
    """A contact is on where a position is past a place; the place is a parameter of the law."""

    axis: int
    side: Literal["above", "below"]

    @property
    def sign(self) -> float:
        return 1.0 if self.side == "above" else -1.0

    def along(self, z: Any) -> Any:
        """The position, or of velocities its rate."""
        return z[self.axis]


@dataclass(frozen=True)
class Block:
    """What a mode adds to the base law: energy terms, dissipation and port, while it is on."""

    mode: int
    guard: Guard | None  # None: it is on where the modes say so
    terms: Library  # of a contact: `Penetration` with `at` 0, to be read as a place to be estimated


class Entry(NamedTuple):
    """One parameter."""

    block: int  # −1 for the base law
    kind: Literal["energy", "dissipation", "port", "place"]
    term: Term | None = None
    axis: int = 0  # of the position
    column: int = 0  # of the input

    @property
    def is_kinetic(self) -> bool:
        """The square of one momentum: a law without it has no mass."""
        return self.kind == "energy" and is_kinetic(self.term)


@dataclass(frozen=True)
class Form:
    """A hybrid law up to its parameters; `entries` names each, in order."""

    positions: int
    inputs: int
    base: int  # the mode the base law is that of
    library: Library
    blocks: tuple[Block, ...]
    known_dissipation: tuple[float | None, ...]  # None where estimated: unlike NaN, it equals itself
    known_port: tuple[tuple[float | None, ...], ...]  # rows of all coordinates
    resting: tuple[int, ...] = ()  # modes in which nothing moves
    additive: bool = True  # a block is added to the base law; otherwise it stands in its place
    known_masses: tuple[float | None, ...] = ()  # None where estimated; empty: all are
    ways: tuple[Reversal | None, ...] = ()  # the direction that turns every block on, in simulation; empty: none does
    one_friction: bool = False  # no mode adds viscous friction to the base law's

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        out = self._part(-1, self.library)
        for b, block in enumerate(self.blocks):
            out += self._part(b, block.terms)
            out += [Entry(b, "place", axis=block.guard.axis)] if block.guard else []
        return tuple(out)

    def _part(self, block: int, terms: Library) -> list[Entry]:
        axes = range(self.positions)
        energy = [Entry(block, "energy", term) for term in terms]
        dissipation = [Entry(block, "dissipation", axis=i) for i in axes]
        port = [Entry(block, "port", axis=i, column=j) for i in axes for j in range(self.inputs)]
        return energy + dissipation + port

    @cached_property
    def places(self) -> dict[int, int]:
        """Where the place of every block with a guard stands among the entries."""
        return {e.block: i for i, e in enumerate(self.entries) if e.kind == "place"}

    @cached_property
    def known(self) -> np.ndarray:
        """The value of every entry that is known beforehand; NaN of the others."""
        out = np.full(len(self.entries), np.nan)
        for i, e in enumerate(self.entries):
            if e.kind == "dissipation" and (e.block < 0 or (self.one_friction and self.additive)):
                given = self.known_dissipation[e.axis] if e.block < 0 else 0.0
                out[i] = np.nan if given is None else given
            if e.is_kinetic and isinstance(e.term, Monomial) and self.known_masses:
                given = self.known_masses[e.term.powers.index(2) - self.positions]
                out[i] = np.nan if given is None else 0.5 / given
            if e.kind == "port":
                given = self.known_port[self.positions + e.axis][e.column]
                whole = e.block < 0 or not self.additive
                out[i] = np.nan if given is None else given if whole else 0.0
        return out

    @property
    def free(self) -> np.ndarray:
        """Which entries are estimated."""
        return np.isnan(self.known)

    @cached_property
    def optional(self) -> np.ndarray:
        """Which entries a law may do without."""
        entries = self.entries
        return self.free & np.array([(e.kind == "energy" and not e.is_kinetic) or e.kind == "port" for e in entries])


AnyForm = Form | Lagrangian


def is_kinetic(term: Term | None) -> TypeGuard[Monomial]:
    if not isinstance(term, Monomial):
        return False
    half = len(term.powers) // 2
    return sum(term.powers) == 2 and max(term.powers[half:]) == 2


def momentum_degree(term: Term) -> int:
    """The degree of a term in the momenta; a term of one's own counts as one of the positions."""
    return sum(term.powers[len(term.powers) // 2 :]) if isinstance(term, Monomial) else 0


def form_of(
    problem: Problem, base: int, guards: dict[int, Guard | None], resting: tuple[int, ...], *, additive: bool = True
) -> Form:
    """The form of a law whose other modes have the given guards."""
    still = tuple(t for t in problem.library if momentum_degree(t) == 0)

    def terms(guard: Guard | None) -> Library:
        depth = depth_terms(guard) if guard else ()
        return (depth or still) if additive else (*problem.library, *depth)

    others = [(mode, guard) for mode, guard in sorted(guards.items()) if mode not in (base, *resting)]
    blocks = tuple(Block(mode, guard, terms(guard)) for mode, guard in others)
    return Form(
        positions=problem.positions,
        inputs=len(problem.inputs),
        base=base,
        library=problem.library,
        blocks=blocks,
        known_dissipation=tuple(map(_or_none, problem.dissipation)),
        known_port=tuple(tuple(map(_or_none, row)) for row in problem.port),
        resting=resting,
        additive=additive,
        known_masses=() if problem.masses is None else tuple(map(_or_none, problem.masses)),
        one_friction=problem.one_friction,
    )


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def depth_terms(guard: Guard) -> Library:
    """The candidate terms of a contact in its own depth."""
    return tuple(Penetration(guard.axis, 0.0, guard.side, power) for power in DEPTH_POWERS)
