"""How the continuous state moves within a mode, and how it jumps when the mode changes."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vhydro.library import Library, values
from vhydro.network import Network
from vhydro.small import matvec, over, pick


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
        action: Float[Array, "inputs"],
        dt: Float[Array, ""],
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step of length dt."""
        h = dt / self.substeps
        drive = over(self.port @ action, starts.ndim - 2)

        def rk4(z):
            k1 = self.velocity(z, drive)
            k2 = self.velocity(z + 0.5 * h * k1, drive)
            k3 = self.velocity(z + 0.5 * h * k2, drive)
            k4 = self.velocity(z + h * k3, drive)
            return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        def midpoint(z):
            return z + h * self.velocity(z + 0.5 * h * self.velocity(z, drive), drive)

        one = rk4 if self.integrator == "rk4" else midpoint
        for _ in range(self.substeps):
            starts = one(starts)
        return starts


class LinearFlow(eqx.Module):
    """`z' = F_s z + f_s + G_s a`: a mode that is already discrete and linear, whatever dt is."""

    matrix: Float[Array, "modes latent latent"]
    offset: Float[Array, "modes latent"]
    port: Float[Array, "modes latent inputs"]

    def step(
        self,
        starts: Float[Array, "modes latent *particles"],
        action: Float[Array, "inputs"],
        dt: Float[Array, ""],  # noqa: ARG002 — one contract for every flow
    ) -> Float[Array, "modes latent *particles"]:
        """Where each mode takes its own start in one step."""
        move = jnp.einsum("sij,sj...->si...", self.matrix, starts)
        return move + over(self.offset + self.port @ action, starts.ndim - 2)

    def shared_step(
        self, z: Float[Array, "latent *particles"], action: Float[Array, "inputs"]
    ) -> Float[Array, "modes latent *particles"]:
        """The same when all modes start at one z: a single matrix product."""
        return matvec(self.matrix, z) + over(self.offset + self.port @ action, z.ndim - 1)


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


Flow = PortHamiltonianFlow | LinearFlow
