"""What a mode kernel sees of reach: the gap between the hand and every body, before and after a step."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from vhydro.small import matvec, over

REACH = 0.1  # metres: gaps far beyond it are all alike
TINY = 1e-6  # metres: keeps the gradient of a gap of 0


class Geometry(eqx.Module):
    """Where hand and bodies are in `(z, a)`; given, and never learned."""

    before: Float[Array, "bodies 3 width"]  # hand less body, in metres, before the step
    after: Float[Array, "bodies 3 width"]  # and after the hand's own step
    offset: Float[Array, "bodies 3"]
    others: Float[Array, "others width"]  # whatever else a contact may depend on, in units of its spread
    closing: Float[Array, ""]  # metres that count as a fast approach in one step

    def __call__(self, x: Float[Array, "width *particles"]) -> Float[Array, "features *particles"]:
        """The features: every gap, how fast it closes, and the rest."""
        before, after = self._gaps(self.before, x), self._gaps(self.after, x)
        nearing = jnp.tanh((after - before) / self.closing)
        return jnp.concatenate([jnp.tanh(after / REACH), nearing, matvec(self.others, x)])

    def _gaps(self, rows: Float[Array, "bodies 3 width"], x: Float[Array, "width *particles"]):
        apart = matvec(rows.reshape(-1, rows.shape[-1]), x) + over(self.offset.reshape(-1), x.ndim - 1)
        apart = apart.reshape(*rows.shape[:2], *x.shape[1:])
        return jnp.sqrt((apart**2).sum(1) + TINY**2)


class GapDrive(eqx.Module):
    """What gaps add to the logit of every next mode: contact begins within reach, and when the hand closes in."""

    geometry: Geometry
    weight: Float[Array, "modes features"]

    def __call__(self, x: Float[Array, "width *particles"]) -> Float[Array, "modes *particles"]:
        return matvec(self.weight, self.geometry(x))
