"""A small smooth network, the only kind used here."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from vhydro.small import matvec, over


class Network(eqx.Module):
    """Affine layers with tanh between them."""

    weights: tuple[Float[Array, "_outputs _inputs"], ...]  # layers differ in size
    biases: tuple[Float[Array, "_outputs"], ...]

    def __call__(self, x: Float[Array, "inputs *particles"]) -> Float[Array, "outputs *particles"]:
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(matvec(w, x) + over(b, x.ndim - 1))
        return matvec(self.weights[-1], x) + over(self.biases[-1], x.ndim - 1)


def network(
    inputs: int, hidden: tuple[int, ...], outputs: int, *, key: PRNGKeyArray, dtype, last: float = 1.0
) -> Network:
    """A `Network` with variance-preserving weights; its last layer is multiplied by `last`."""
    sizes = (inputs, *hidden, outputs)
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [1.0] * (len(sizes) - 2) + [last]
    pairs = zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
    weights = tuple(g * jax.random.normal(k, (o, i), dtype) / max(i, 1) ** 0.5 for k, g, i, o in pairs)
    return Network(weights, tuple(jnp.zeros(o, dtype) for o in sizes[1:]))
