"""How the continuous state moves within a mode, and how it jumps when the mode changes."""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vhydro.bouncing import Rebound, rebounded
from vhydro.lagrangian import Lagrangian, Surface, follows, impulse_along
from vhydro.library import Library, Monomial, values
from vhydro.network import Network
from vhydro.small import matvec, over, pick, product, stacked


class PortHamiltonianFlow(eqx.Module):
    """`ż = (J_s − R_s) ∇H_s(z) + G_s a` with `H_s = Θᵀ ξ_s`, one step by a fixed-step integrator.

    Paper: Sec. 2. J is skew and R positive semidefinite whatever the parameters are.
    """

    coefficients: Float[Array, "modes terms"]
    interconnection: Float[Array, "modes latent latent"]  # J = A − Aᵀ
    dissipation: Float[Array, "modes latent latent"]  # R = tril(L) tril(L)ᵀ
    port: Float[Array, "modes latent inputs"]
    smooth: Network | None  # optional extra energy, one output per mode
    library: Library = eqx.field(static=True)
    integrator: Literal["midpoint", "rk4"] = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    def skew(self) -> Float[Array, "modes latent latent"]:
        return self.interconnection - jnp.swapaxes(self.interconnection, -1, -2)

    def resistance(self) -> Float[Array, "modes latent latent"]:
        factor = jnp.tril(self.dissipation)
        return factor @ jnp.swapaxes(factor, -1, -2)

    def energy(self, z: Float[Array, "latent *particles"]) -> Float[Array, "modes *particles"]:
        """The Hamiltonian of every mode at z."""
        energy = matvec(self.coefficients, values(self.library, z))
        return energy if self.smooth is None else energy + self.smooth(z)

    def _total_energy(self, starts: Float[Array, "modes latent *particles"]) -> Float[Array, ""]:
        """The energies of all modes, each at its own start, summed over particles."""
        swapped = jnp.swapaxes(starts, 0, 1)
        energy = jnp.einsum("sp,ps...->s...", self.coefficients, values(self.library, swapped))
        if self.smooth is not None:
            energy = energy + jnp.einsum("ss...->s...", self.smooth(swapped))
        return energy.sum()

    def velocity(
        self, starts: Float[Array, "modes latent *particles"], drive: Float[Array, "modes latent ..."]
    ) -> Float[Array, "modes latent *particles"]:
        """`ż` of every mode at its own start."""
        # No start enters two energies: the gradient of their sum is every mode's and every particle's own.
        gradient = jax.grad(self._total_energy)(starts)
        return jnp.einsum("sij,sj...->si...", self.skew() - self.resistance(), gradient) + drive

    def step(
        self,
        starts: Float[Array, "modes latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step of length dt."""
        drive = _driven(self.port, action, starts.ndim - 2)
        return _integrated(lambda z: self.velocity(z, drive), starts, dt, self.integrator, self.substeps)

    def jacobian(
        self,
        starts: Float[Array, "modes latent particles"],
        ends: Float[Array, "modes latent particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Float[Array, "modes latent latent particles"]:
        """About how much every mode's end moves with its start: `exp(A dt)` with A halfway between the two."""
        drive = _driven(self.port, action, starts.ndim - 2)
        return _propagator(lambda z: self.velocity(z, drive), 0.5 * (starts + ends), dt, 1)

    def _velocity_in(self, mode: Int[Array, "*particles"], action: Float[Array, "inputs ..."]) -> Callable:
        """`ż` as a function of z (latent, *particles), each particle in its own mode.

        Worked out coordinate by coordinate, each a loop over the particles in which nothing is computed twice.
        """
        axes = mode.ndim
        shared = (over(x, axes) for x in (self.coefficients, self.skew() - self.resistance()))
        # Picked once: fused into every evaluation they would be picked for each of them.
        picked = tuple(pick(x, mode) for x in (*shared, _driven(self.port, action, axes)))
        coefficients, structure, drive = jax.lax.optimization_barrier(picked)

        def energy(z):
            own = reduce(add, (c * t.value(z) for c, t in zip(coefficients, self.library, strict=True)))
            return own.sum() + (0.0 if self.smooth is None else pick(self.smooth(jnp.stack(z)), mode).sum())

        def velocity(z: Float[Array, "latent *particles"]) -> Float[Array, "latent *particles"]:
            gradient = jax.grad(energy)(tuple(z))
            return stacked(
                [
                    reduce(add, (x * g for x, g in zip(row, gradient, strict=True)), push)
                    for row, push in zip(structure, drive, strict=True)
                ]
            )

        return velocity

    def step_in(
        self,
        mode: Int[Array, "*particles"],
        start: Float[Array, "latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Float[Array, "latent *particles"]:
        """Where each particle's own mode takes it: `step` without the modes that are not asked for."""
        return _integrated(self._velocity_in(mode, action), start, dt, self.integrator, self.substeps)

    def jacobian_in(self, mode, start, end, action, dt) -> Float[Array, "latent latent particles"]:
        """`jacobian` of each particle's own mode."""
        return _propagator(self._velocity_in(mode, action), 0.5 * (start + end), dt, 0)

    def push(self, dt: Float[Array, ""]) -> Float[Array, "modes latent inputs"]:
        """How far a unit of each input moves every mode in one step, to first order."""
        return self.port * dt

    def pushed(self, surface: Surface, z: Float[Array, "latent *particles"]) -> tuple[float, ...]:
        """How all momenta follow an impulse of one along a surface."""
        return impulse_along(surface, z.shape[0] // 2)

    @property
    def affine(self) -> bool:
        """Whether a step is an affine map of z: the energy is quadratic, whatever its coefficients."""
        return self.smooth is None and all(isinstance(t, Monomial) and sum(t.powers) <= 2 for t in self.library)


def _driven(port: Float[Array, "modes latent inputs"], action: Float[Array, "inputs ..."], axes: int):
    """What an action adds in every mode, (modes, latent, …), to broadcast over particles."""
    return over(matvec(port, action), axes + 1 - action.ndim)


def _integrated(velocity: Callable, z, dt, integrator: str, substeps: int):
    """z after dt, by equal steps of a fixed-step integrator."""
    h = dt / substeps

    def rk4(z):
        k1 = velocity(z)
        k2 = velocity(z + 0.5 * h * k1)
        k3 = velocity(z + 0.5 * h * k2)
        k4 = velocity(z + h * k3)
        return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def midpoint(z):
        return z + h * velocity(z + 0.5 * h * velocity(z))

    one = rk4 if integrator == "rk4" else midpoint
    for _ in range(substeps):
        z = one(z)
    return z


def _propagator(velocity: Callable, z, dt, axis: int):
    """`exp(A dt)` to third order, A the derivative of a velocity at z, whose coordinates are along `axis`."""
    latent = z.shape[axis]
    units = [jnp.zeros_like(z).at[(slice(None),) * axis + (j,)].set(1.0) for j in range(latent)]
    columns = [dt * jax.jvp(velocity, (z,), (unit,))[1] for unit in units]
    step = jnp.stack(columns, axis=axis + 1)  # (…, latent, latent, particles)
    identity = over(jnp.eye(latent, dtype=z.dtype), 1)

    out = identity + step / 3
    for order in (2, 1):
        out = identity + product(step, out) / order
    return out


class MechanicalFlow(eqx.Module):
    """Lagrange's equations with M(q): z is (positions, velocities), a contact is on in its own mode, one step by RK4.

    Dry friction creeps: below a small speed it grows from 0 instead of changing its sign at once.
    """

    parameters: Float[Array, "entries"]
    on: Float[Array, "modes blocks"]  # which contact is on in every mode
    moves: Float[Array, "modes"]  # 0 of a mode in which nothing moves
    port: Float[Array, "modes latent inputs"]  # how inputs accelerate things in the middle of where they move
    equations: Lagrangian = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    def _rates(self, on, moves, z, action):
        """ż at z (latent, …), with contacts on as told."""
        rate = self.equations.field(tuple(self.parameters), tuple(on), tuple(z), tuple(action))
        return moves * jnp.stack(jnp.broadcast_arrays(*rate))

    def velocity(
        self, starts: Float[Array, "modes latent *particles"], action: Float[Array, "inputs ..."]
    ) -> Float[Array, "modes latent *particles"]:
        """`ż` of every mode at its own start."""
        every = zip(self.on, self.moves, starts, strict=True)
        return jnp.stack([self._rates(on, moves, z, action) for on, moves, z in every])

    def step(
        self,
        starts: Float[Array, "modes latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step of length dt."""
        return _integrated(lambda z: self.velocity(z, action), starts, dt, "rk4", self.substeps)

    def jacobian(self, starts, ends, action, dt) -> Float[Array, "modes latent latent _particles"]:
        """About how much every mode's end moves with its start."""
        return _propagator(lambda z: self.velocity(z, action), 0.5 * (starts + ends), dt, 1)

    def _velocity_in(self, mode: Int[Array, "*particles"], action: Float[Array, "inputs ..."]) -> Callable:
        axes = mode.ndim
        on = [pick(over(column, axes), mode) for column in self.on.T]
        moves = pick(over(self.moves, axes), mode)
        return lambda z: self._rates(on, moves, z, action)

    def step_in(self, mode, start, action, dt) -> Float[Array, "latent *particles"]:
        """Where each particle's own mode takes it."""
        return _integrated(self._velocity_in(mode, action), start, dt, "rk4", self.substeps)

    def jacobian_in(self, mode, start, end, action, dt) -> Float[Array, "latent latent particles"]:
        """`jacobian` of each particle's own mode."""
        return _propagator(self._velocity_in(mode, action), 0.5 * (start + end), dt, 0)

    def push(self, dt: Float[Array, ""]) -> Float[Array, "modes latent inputs"]:
        """About how far a unit of each input moves every mode in one step."""
        return self.port * dt

    def pushed(self, surface: Surface, z: Float[Array, "latent *particles"]) -> tuple[Array, ...]:
        """How all velocities follow an impulse of one along a surface."""
        n = self.equations.positions
        return follows(self.equations, tuple(self.parameters), tuple(z[:n]), surface)

    @property
    def affine(self) -> bool:
        return False


class BouncingFlow(eqx.Module):
    """A flow in some of whose modes z bounces off a surface within the step; where it meets none it flies on.

    `axes` says of every mode along which position its surface lies, −1 of one without; `others` which position is taken
    off, −1 where none is.
    """

    flight: PortHamiltonianFlow | MechanicalFlow
    place: Float[Array, "modes"]
    restitution: Float[Array, "modes"]
    slow: Float[Array, "modes"]  # velocities that count as none
    light: Float[Array, "positions"]  # what turns the second half of z into velocities
    axes: tuple[int, ...] = eqx.field(static=True)
    signs: tuple[float, ...] = eqx.field(static=True)  # 1 of a ceiling, −1 of a floor
    others: tuple[int, ...] = eqx.field(static=True, default=())  # empty: of no mode one is

    @property
    def port(self) -> Float[Array, "modes latent inputs"]:
        return self.flight.port

    @property
    def substeps(self) -> int:
        return self.flight.substeps

    @property
    def affine(self) -> bool:
        return False

    def _bounced(self, mode: int, start, flown, dt) -> Float[Array, "latent *particles"]:
        """Where a step in a mode ends that would end at `flown` if it met nothing."""
        axis = self.axes[mode]
        if axis < 0:
            return flown
        other = self.others[mode] if self.others else -1
        surface = Surface(axis, "above" if self.signs[mode] > 0 else "below", None if other < 0 else other)
        rebound = Rebound(surface, self.place[mode], self.restitution[mode], self.slow[mode])
        pushed = self.flight.pushed(surface, flown)
        return stacked(rebounded(rebound, tuple(self.light), pushed, tuple(start), tuple(flown), dt))

    def step(
        self, starts: Float[Array, "modes latent *particles"], action: Float[Array, "inputs ..."], dt: Float[Array, ""]
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step of length dt."""
        flown = self.flight.step(starts, action, dt)
        return jnp.stack([self._bounced(m, starts[m], end, dt) for m, end in enumerate(flown)])

    def jacobian(self, starts, ends, action, dt) -> Float[Array, "modes latent latent particles"]:  # noqa: ARG002
        """How much every mode's end moves with its start, through its bounce."""
        return _slopes(lambda z: self.step(z, action, dt), starts, 1)

    def step_in(self, mode, start, action, dt) -> Float[Array, "latent *particles"]:
        """Where each particle's own mode takes it."""
        flown = self.flight.step_in(mode, start, action, dt)
        return pick(jnp.stack([self._bounced(m, start, flown, dt) for m in range(len(self.axes))]), mode)

    def jacobian_in(self, mode, start, end, action, dt) -> Float[Array, "latent latent particles"]:  # noqa: ARG002
        """`jacobian` of each particle's own mode."""
        return _slopes(lambda z: self.step_in(mode, z, action, dt), start, 0)

    def push(self, dt: Float[Array, ""]) -> Float[Array, "modes latent inputs"]:
        """About how far a unit of each input moves every mode in one step."""
        return self.flight.push(dt)


def _slopes(moved: Callable, z, axis: int):
    """The derivative of a map at z, whose coordinates are along `axis`."""
    units = [jnp.zeros_like(z).at[(slice(None),) * axis + (j,)].set(1.0) for j in range(z.shape[axis])]
    return jnp.stack([jax.jvp(moved, (z,), (unit,))[1] for unit in units], axis=axis + 1)


class LinearFlow(eqx.Module):
    """`z' = F_s z + f_s + G_s a`: a mode that is already discrete and linear, whatever dt is."""

    matrix: Float[Array, "modes latent latent"]
    offset: Float[Array, "modes latent"]
    port: Float[Array, "modes latent inputs"]

    def step(
        self,
        starts: Float[Array, "modes latent *particles"],
        action: Float[Array, "inputs ..."],
        dt: Float[Array, ""],  # noqa: ARG002 — one contract for every flow
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step."""
        move = jnp.einsum("sij,sj...->si...", self.matrix, starts)
        return move + self._pushed(action, starts.ndim - 2)

    def shared_step(
        self, z: Float[Array, "latent *particles"], action: Float[Array, "inputs ..."]
    ) -> Float[Array, "modes latent *particles"]:
        """The same when all modes start at one z: a single matrix product."""
        return matvec(self.matrix, z) + self._pushed(action, z.ndim - 1)

    def _pushed(self, action: Float[Array, "inputs ..."], axes: int) -> Float[Array, "modes latent ..."]:
        return over(self.offset, axes) + _driven(self.port, action, axes)

    def jacobian(self, starts, ends, action, dt) -> Float[Array, "modes latent latent _particles"]:  # noqa: ARG002
        """How much every mode's end moves with its start."""
        return over(self.matrix, 1)

    def step_in(self, mode, start, action, dt) -> Float[Array, "latent *particles"]:  # noqa: ARG002
        """Where each particle's own mode takes it."""
        return pick(self.shared_step(start, action), mode)

    def jacobian_in(self, mode, start, end, action, dt) -> Float[Array, "latent latent particles"]:  # noqa: ARG002
        """`jacobian` of each particle's own mode."""
        return pick(over(self.matrix, 1), mode)

    def push(self, dt: Float[Array, ""]) -> Float[Array, "modes latent inputs"]:  # noqa: ARG002
        """How far a unit of each input moves every mode in one step."""
        return self.port

    @property
    def affine(self) -> bool:
        return True


def as_linear(flow: "Flow", dt: Float[Array, ""]) -> LinearFlow:
    """The flow as the discrete linear one that it is for this dt; see `affine`.

    Its columns are steps from the unit vectors and under unit inputs, less the step from the origin without input.
    """
    return flow if isinstance(flow, LinearFlow) else _linear(flow, dt)


@eqx.filter_jit
def _linear(flow: "Flow", dt: Float[Array, ""]) -> LinearFlow:
    modes, latent, inputs = flow.port.shape
    units = jnp.concatenate([jnp.zeros((latent, 1)), jnp.eye(latent)], axis=1).astype(flow.port.dtype)
    ends = flow.step(jnp.broadcast_to(units, (modes, latent, latent + 1)), jnp.zeros(inputs, units.dtype), dt)
    offset = ends[..., 0]
    origin = jnp.zeros((modes, latent), units.dtype)
    pushed = [flow.step(origin, unit, dt) - offset for unit in jnp.eye(inputs, dtype=units.dtype)]
    port = jnp.stack(pushed, axis=-1) if inputs else jnp.zeros_like(flow.port)
    return LinearFlow(ends[..., 1:] - offset[..., None], offset, port)


class Reset(eqx.Module):
    """`p_j ← k_j p_j` with `|k_j| < 1` when the mode changes: an impact with restitution `−k_j`.

    Positions stay, momenta shrink, so an energy that grows with every |p_j| never grows. Differs: DESIGN's affine
    map, kept to the part that has this property by construction.
    """

    raw: Float[Array, "modes modes momenta"]
    momenta: tuple[int, ...] = eqx.field(static=True)

    def starts(
        self, mode: Int[Array, "*particles"], z: Float[Array, "latent *particles"]
    ) -> Float[Array, "modes latent *particles"]:
        """Where each next mode starts from z in this mode; staying in the mode changes nothing."""
        modes, axes = self.raw.shape[0], z.ndim - 1
        stays = over(jnp.arange(modes), axes) == mode
        factor = jnp.where(stays[:, None], 1.0, pick(over(jnp.tanh(self.raw), axes), mode))
        kept = jnp.ones_like(factor[:, 0])
        rows = [factor[:, self.momenta.index(j)] if j in self.momenta else kept for j in range(z.shape[0])]
        return jnp.stack(rows, axis=1) * z


def kept_momenta(
    reset: Reset | None,
    before: Int[Array, "*particles"],
    mode: Int[Array, "*particles"],
    z: Float[Array, "latent *particles"],
) -> Float[Array, "latent *particles"]:
    """What a change of mode multiplies each coordinate by."""
    if reset is None:
        return jnp.ones_like(z)
    return pick(reset.starts(before, jnp.ones_like(z)), mode)


Flow = PortHamiltonianFlow | MechanicalFlow | LinearFlow | BouncingFlow
