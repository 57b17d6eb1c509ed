"""A recovered law as a stochastic path model in (positions, velocities), whose path law has a density.

Positions follow velocities (`q' = q + h v'`), noise acts on velocities in every substep, modes follow from the state:
past a surface, moving one way, or stuck. Two laws of the same kinematics and the same given noise then have path laws
with a density of each other, whatever their masses, which in (positions, momenta) they have not.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vhydro.laws.as_model import masses
from vhydro.laws.form import Form, is_kinetic, momentum_degree
from vhydro.library import slope
from vhydro.planning.dynamics import Gap, Noise, Population, population
from vhydro.planning.task import Readout, readout
from vhydro.small import beside, over

if TYPE_CHECKING:
    from vhydro.laws.law import Law

SUBSTEP = 0.002  # s: about a tenth of a radian of the stiffest contact


class Regime(NamedTuple):
    """The mode of every particle, which blocks of the law are on, and, where things may stick, which way they move."""

    mode: Any
    on: list
    way: Any | None  # −1, 0 (stuck) or 1


class LawDynamics(eqx.Module):
    """A law moved in substeps of `dt / substeps`; z is (positions, velocities), the velocities `∂H/∂p`."""

    theta: Float[Array, "entries ..."]  # of the law; with a particle axis, one law for each
    deviation: Float[Array, "positions"]  # of every velocity: process noise gathered in one second
    action_factor: Float[Array, "inputs"]  # law's units for one of the log's
    static: Float[Array, ""]  # N: what holds a stuck thing; infinite where nothing sticks
    readout: Readout
    actions: Readout
    form: Form = eqx.field(static=True)
    active: tuple[bool, ...] = eqx.field(static=True)  # entries of theta that are in the law
    ways: tuple[tuple[int, int, float], ...] = eqx.field(static=True)  # (mode, axis, sign) of directions
    modes: tuple[str, ...] = eqx.field(static=True)
    seconds: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.actions.names

    @property
    def dtype(self):
        return self.theta.dtype

    @property
    def positions(self) -> int:
        return self.form.positions

    def of(self, law: "Law") -> "LawDynamics":
        """Another law, moved in the same way: with this noise, these steps and units."""
        static = float(self.static)
        other = law_dynamics(
            law, self.seconds, noise=np.asarray(self.deviation), substeps=self.substeps, dtype=self.dtype,
            static_friction=static if np.isfinite(static) else None,
        )  # fmt: skip
        mine = (self.readout, self.action_factor)
        return eqx.tree_at(lambda d: (d.readout, d.action_factor), other, mine)

    def masses(self) -> list:
        """The mass along every position."""
        found = {e.term.powers.index(2) - self.positions: i for i, e in enumerate(self.form.entries)
                 if e.block < 0 and is_kinetic(e.term)}  # fmt: skip
        return [0.5 / self.theta[found[i]] for i in range(self.positions)]

    def population(self, belief: Any) -> Population:
        """The points of a belief of the law's own model, its momenta turned into velocities."""
        found = population(belief, 2 * self.positions, len(self.modes))
        inverse = jnp.concatenate([jnp.ones(self.positions), 1 / jnp.stack(self.masses())]).astype(found.z.dtype)
        factor = None if found.factor is None else found.factor * inverse[:, None, None]
        return found._replace(z=(found.z * inverse[:, None]).astype(self.dtype), factor=factor)

    def noise(self, key: PRNGKeyArray, steps: int, particles: int) -> Noise:
        """Normal numbers for every substep of every step."""
        return jax.random.normal(key, (steps, self.substeps, self.positions, particles), self.dtype)

    def settle(self, mode, z, action):  # noqa: ARG002
        """The mode that a start is in, whatever was believed of it: here it follows from the state."""
        return self._regime(z, self._listed(action, z)).mode, z

    def step(self, mode, z, action, noise: Noise):  # noqa: ARG002
        """The state after all substeps of a step, and the mode it is then in."""
        a = self._listed(action, z)

        def substep(z, normal):
            return self._moved(z, a, normal, self._regime(z, a)), None

        z, _ = jax.lax.scan(substep, z, noise)
        return self._regime(z, a).mode, z

    def compared(self, truth: "LawDynamics", batched: bool, mode, z, action, noise: Noise, gap: Gap):  # noqa: ARG002
        """A step, and what it adds to the gap between this law and another.

        In a law that sticks, another mode is another map of the noise: such paths count as wholly different.
        """
        a, h, n = self._listed(action, z), self.seconds / self.substeps, self.positions
        spread = over(self.deviation, z.ndim - 1) * h**0.5
        sticks = self.form.resting or truth.form.resting

        def substep(carry, normal):
            z, gap = carry
            own, other = self._regime(z, a), truth._regime(z, a)
            off = h * (self._acceleration(z, a, own) - truth._acceleration(z, a, other)) / spread
            off = off if own.way is None else jnp.where(own.way == 0, 0.0, off)
            apart = gap.apart | (own.mode != other.mode)
            singular = gap.singular | (own.mode != other.mode) if sticks else gap.singular
            gap = Gap(
                gap.log_ratio - (off * normal + 0.5 * off**2).sum(0),
                gap.divergence + jnp.where(apart, 0.0, 0.5 * (off**2).sum(0)),
                apart, singular, gap.forbidden, gap.mode,
            )  # fmt: skip
            return (self._moved(z, a, normal, own), gap), None

        assert z.shape[0] == 2 * n
        (z, gap), _ = jax.lax.scan(substep, (z, gap), noise)
        return self._regime(z, a).mode, z, gap._replace(mode=truth._regime(z, a).mode)

    def refuse_unlike(self, truth: Any) -> None:
        """Raises unless both laws share kinematics, noise and steps: otherwise neither has a density of the other."""
        if not isinstance(truth, LawDynamics):
            raise ValueError(f"the shift is against a {type(truth).__name__}; expected what `law_dynamics` gives.")
        kinematics = [x.form.known_port[: x.positions] for x in (self, truth)]
        if self.positions != truth.positions or kinematics[0] != kinematics[1] or self.inputs != truth.inputs:
            raise ValueError("the laws have other coordinates, inputs or kinematics; expected the same, or their path "
                             "laws have no density of each other and ε is 1.")  # fmt: skip
        if not np.allclose(self.deviation, truth.deviation):
            raise ValueError(
                f"the laws have process noise {np.asarray(self.deviation)} and {np.asarray(truth.deviation)}; expected "
                "the same, which is given and not estimated: with another ε tends to 1 as substeps shrink."
            )
        if (self.seconds, self.substeps, len(self.modes)) != (truth.seconds, truth.substeps, len(truth.modes)):
            raise ValueError("the laws have other steps, substeps or modes; expected the same.")

    def _listed(self, action, z) -> list:
        """The action of every particle, input by input, in the law's units."""
        return list(beside(action * over(self.action_factor, action.ndim - 1), z.ndim - 1))

    def _moved(self, z, a: list, normal, regime: Regime):
        n, h = self.positions, self.seconds / self.substeps
        v = z[n:] + h * self._acceleration(z, a, regime) + over(self.deviation, z.ndim - 1) * h**0.5 * normal
        if regime.way is not None:
            v = jnp.where(v * regime.way > 0, v, 0.0)  # what stops or turns round within a substep rests at its end
        carried = [sum((g * a[j] for j, g in enumerate(self.form.known_port[i]) if g), 0.0) for i in range(n)]
        q = [z[i] + h * (v[i] + carried[i]) for i in range(n)]
        return jnp.concatenate([jnp.stack(q), v])

    def _regime(self, z, a: list) -> Regime:
        mode, on = jnp.full(z.shape[1:], self.form.base, jnp.int32), []
        way = self._way(z, a) if self.ways else None
        for b, block in enumerate(self.form.blocks):
            if block.guard is not None:
                place = self.theta[self.form.places[b]]
                here = block.guard.sign * (z[block.guard.axis] - place) > 0
            else:
                here = way == next(sign for m, _, sign in self.ways if m == block.mode)
            mode = jnp.where(here, block.mode, mode)
            on.append(here.astype(z.dtype))
        if self.form.resting:
            mode = jnp.where(way == 0, self.form.resting[0], mode)
        return Regime(mode, on, way)

    def _way(self, z, a: list):
        """Where it moves to; from rest, where it is pulled if that is more than static friction holds."""
        still = jnp.zeros_like(z[1])
        at_rest = jnp.stack([z[0], still])
        sides = [self._force(at_rest, a, self._slipping(sign, z)) for sign in (1.0, -1.0)]
        pull = 0.5 * (sides[0][0] + sides[1][0])  # friction is opposite on the two sides
        starts = jnp.where(jnp.abs(pull) > self.static, jnp.sign(pull), 0.0)
        return jnp.where(z[1] == 0, starts, jnp.sign(z[1]))

    def _slipping(self, sign: float, z) -> list:
        signs = [next(s for m, _, s in self.ways if m == block.mode) for block in self.form.blocks]
        return [jnp.full(z.shape[1:], float(s == sign), z.dtype) for s in signs]

    def _acceleration(self, z, a: list, regime: Regime):
        force = self._force(z, a, regime.on)
        return jnp.stack([f / m for f, m in zip(force, self.masses(), strict=True)])

    def _force(self, z, a: list, on: list) -> list:
        """Minus the slope of the energy without its kinetic part, less friction, plus what inputs push with."""
        form, n = self.form, self.positions
        force = [jnp.zeros_like(z[0])] * n
        for i, e in enumerate(form.entries):
            if not self.active[i] or e.is_kinetic or e.kind == "place":
                continue
            share = self.theta[i] * (1.0 if e.block < 0 else on[e.block])
            if e.term is not None:
                place = self.theta[form.places[e.block]] if e.block in form.places else 0.0
                for j in range(n):
                    pull = slope(e.term, j, z, place)
                    force[j] = force[j] if isinstance(pull, float) and pull == 0.0 else force[j] - share * pull
            else:
                push = -z[n + e.axis] if e.kind == "dissipation" else a[e.column]
                force[e.axis] = force[e.axis] + share * push
        return force


def law_dynamics(
    law: "Law",
    dt: float,
    *,
    noise: Sequence[float] | np.ndarray | float,
    static_friction: float | None = None,
    substeps: int | None = None,
    position_units: Sequence[float] | float = 1.0,
    input_units: Sequence[float] | float = 1.0,
    dtype=jnp.float32,
) -> LawDynamics:
    """The path model of a law in steps of `dt` seconds, with names `q` and `q velocity` for every position q.

    `noise` is the process noise on every velocity, gathered in one second; it is given, not estimated.
    `static_friction` is the force (N) that holds what has come to rest, where the law has such a mode. Units say how
    many of the law's one of the log's is, in which a task reads its names.
    """
    n = law.positions
    deviation = np.broadcast_to(np.asarray(noise, np.float64), (n,))
    if not (np.isfinite(deviation).all() and (deviation > 0).all()):
        raise ValueError(f"noise is {noise}; expected a positive deviation of every velocity. Without noise two laws "
                         "that differ at all have path laws that are singular, and ε is 1.")  # fmt: skip
    if not (np.isfinite(dt) and dt > 0):
        raise ValueError(f"dt is {dt}; expected the positive number of seconds that a step lasts.")
    masses(law)  # positive, or an error that says so
    active = tuple(bool(s or (np.isfinite(k) and k)) for s, k in zip(law.support, law.form.known, strict=True))
    _refuse_unplain(law, active)
    ways = law.circumstances.directions if law.circumstances else ()
    free = [b.mode for b in law.form.blocks if b.guard is None]
    told = n == 1 and len(free) == len(law.form.blocks) and {m for m, _, _ in ways} >= {*free, law.form.base}
    if free and not told:
        raise ValueError(
            f"nothing says when mode {law.modes[free[0]]!r} is on; expected a surface, or for one position without "
            "surfaces the direction in which it slides, in the law's circumstances."
        )
    if law.form.resting and static_friction is None:
        raise ValueError(
            f"the law comes to rest in mode {law.modes[law.form.resting[0]]!r} and does not say what holds it there; "
            "expected static_friction in N, which a law of motion does not show. Measure it."
        )
    positions = law.coordinates[:n]
    names = (*positions, *(f"{q} velocity" for q in positions))
    return LawDynamics(
        theta=jnp.asarray(law.theta, dtype),
        deviation=jnp.asarray(deviation, dtype),
        static=jnp.asarray(np.inf if static_friction is None else static_friction, dtype),
        action_factor=jnp.asarray(np.broadcast_to(input_units, (len(law.inputs),)), dtype),
        readout=readout(names, np.diag(np.tile(1 / np.broadcast_to(position_units, (n,)), 2)), dtype=dtype),
        actions=readout(law.inputs, np.eye(len(law.inputs)), dtype=dtype),
        form=law.form,
        active=active,
        ways=tuple(ways) if free or law.form.resting else (),
        modes=law.modes,
        seconds=float(dt),
        substeps=max(1, round(dt / SUBSTEP)) if substeps is None else substeps,
    )


def _refuse_unplain(law: "Law", active: tuple[bool, ...]) -> None:
    """Raises unless masses are constant and modes add to one base law."""
    terms = [(e.term, e.block) for e, used in zip(law.form.entries, active, strict=True) if used and e.term is not None]
    odd = [term for term, block in terms if momentum_degree(term) and not (is_kinetic(term) and block < 0)]
    if odd or not law.form.additive:
        what = odd[0].text(law.coordinates) if odd else "modes that replace the base law"
        raise ValueError(
            f"the law has {what}; expected constant masses, one along every position, and modes that add to a base "
            "law. Plan with `law.as_model()`."
        )
