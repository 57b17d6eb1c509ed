"""Guides: where an observation says the particles should go. Never trusted alone; see `certificate`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vhydro.emission import LinearEmission, Observation
from vhydro.gaussian import Conditioned, deviations
from vhydro.model import Branches, HybridModel
from vhydro.network import Network, network
from vhydro.small import log_softmax, over

MAX_SURPRISE = 8.0  # standard deviations; further off says nothing more
MAX_LOG_SCALE = 3.0  # a guide may be at most e³ ≈ 20 times wider or narrower than what it starts from


def _features(model: HybridModel, mode, z, action, seen: Observation) -> Float[Array, "features *particles"]:
    one_hot = jax.nn.one_hot(mode, model.modes, dtype=z.dtype, axis=0)
    given = jnp.concatenate([action, seen.value, seen.observed.astype(z.dtype)])
    return jnp.concatenate([z, one_hot, jnp.broadcast_to(over(given, z.ndim - 1), (given.shape[0], *z.shape[1:]))])


def _split(model: HybridModel, out: Float[Array, "outputs *particles"]):
    m, d = model.modes, model.latent
    shape = (m, d, *out.shape[1:])
    return out[:m], out[m : m + m * d].reshape(shape), out[m + m * d :].reshape(shape)


def _stretch(raw: Float[Array, "modes latent *particles"]) -> Float[Array, "modes latent *particles"]:
    return jnp.exp(MAX_LOG_SCALE * jnp.tanh(raw / MAX_LOG_SCALE))


class ConditionedProposal(eqx.Module):
    """The exact conditional of the model given the observation; approximate if the emission is not linear.

    Of an emission that has no update of its own (`Emission.condition`) it is the carrier.

    The optional residual shifts its modes, means and scales by a learned amount.
    """

    residual: Network | None = None

    def guide(
        self,
        model: HybridModel,
        carrier: Branches,
        after: Conditioned,
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs"],
        seen: Observation,
    ) -> Branches:
        """The guide of each particle; `after` holds every mode's update by `seen`."""
        log_mode = log_softmax(carrier.log_mode + after.log_evidence)
        if self.residual is None:
            return Branches(log_mode, after.mean, after.scale)
        tilt, shift, stretch = _split(model, self.residual(_features(model, mode, z, action, seen)))
        # Rows of a factor are stretched: coordinate i becomes wider, the factor stays triangular.
        stretch = _stretch(stretch) if after.scale.ndim == after.mean.ndim else _stretch(stretch)[:, :, None]
        moved = after.mean + _spread(carrier) * shift
        return Branches(log_softmax(log_mode + tilt), moved, after.scale * stretch)

    def exact(self, model: HybridModel) -> bool:
        """Whether the guide is the conditional itself: A = 1, one scale per mode for all particles."""
        return self.residual is None and isinstance(model.emission, LinearEmission)


class AmortizedProposal(eqx.Module):
    """The paper's learned guide: a network from (particle, action, observation) to a sharp law over (mode, z).

    Paper: Sec. 2, "Model and training". Means are relative to the carrier's, scales to the carrier's.
    """

    network: Network

    def guide(
        self,
        model: HybridModel,
        carrier: Branches,
        after: Conditioned | None,  # noqa: ARG002 — one contract for every proposal
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs"],
        seen: Observation,
    ) -> Branches:
        """The guide of each particle."""
        out = self.network(_surprised_features(model, carrier, mode, z, action, seen))
        logits, shift, stretch = _split(model, out)
        return Branches(
            _learned_modes(carrier, logits),
            carrier.mean + _spread(carrier) * shift,
            _spread(carrier) * _stretch(stretch),
        )

    def exact(self, model: HybridModel) -> bool:  # noqa: ARG002
        return False


class ModeProposal(eqx.Module):
    """A guide whose modes a network chooses; where a particle goes in each is the exact conditional.

    With precise sensors of many things no network hits z: this learns what is left to learn, which branch it is.
    """

    network: Network

    def guide(
        self,
        model: HybridModel,
        carrier: Branches,
        after: Conditioned,
        mode: Int[Array, "*particles"],
        z: Float[Array, "latent *particles"],
        action: Float[Array, "inputs"],
        seen: Observation,
    ) -> Branches:
        """The guide of each particle; `after` holds every mode's update by `seen`."""
        logits = self.network(_surprised_features(model, carrier, mode, z, action, seen))
        return Branches(_learned_modes(carrier, logits), after.mean, after.scale)

    def exact(self, model: HybridModel) -> bool:  # noqa: ARG002
        return False


def _surprised_features(
    model: HybridModel, carrier: Branches, mode, z, action, seen: Observation
) -> Float[Array, "features *particles"]:
    """What a network is told of a particle, a step and how much every mode is surprised by the reading."""
    axes = z.ndim - 1
    # In predicted standard deviations: what a network can read whatever the sensor's precision is.
    each = jax.vmap(model.emission.surprise, in_axes=(0, 0, None))
    noise = over(model.noise_under(action), axes + 1 - action.ndim)
    surprise = each(carrier.mean, deviations(noise, model.noise_lower is None), seen)
    error = jnp.where(over(seen.observed, axes), jnp.clip(surprise, -MAX_SURPRISE, MAX_SURPRISE), 0.0)
    error = error.reshape(-1, *z.shape[1:])
    return jnp.concatenate([_features(model, mode, z, action, seen), error])


def _spread(carrier: Branches) -> Float[Array, "modes latent ..."]:
    return deviations(carrier.scale, carrier.scale.ndim == carrier.mean.ndim)


def _learned_modes(carrier: Branches, logits: Float[Array, "modes *particles"]) -> Float[Array, "modes *particles"]:
    """The network's modes, of those that the particle's own carrier can reach."""
    return log_softmax(jnp.where(carrier.log_mode > -jnp.inf, logits, -jnp.inf))


Proposal = ConditionedProposal | AmortizedProposal | ModeProposal


def _outputs(model: HybridModel) -> int:
    return model.modes * (1 + 2 * model.latent)


def _inputs(model: HybridModel) -> int:
    return model.latent + model.modes + model.inputs + 2 * len(model.channels)


def amortized_proposal(model: HybridModel, *, hidden=(48, 48), key: PRNGKeyArray) -> AmortizedProposal:
    """An untrained amortised guide for this model; it starts near the carrier."""
    return AmortizedProposal(_surprised_network(model, hidden, _outputs(model), key))


def mode_proposal(model: HybridModel, *, hidden=(48, 48), key: PRNGKeyArray) -> ModeProposal:
    """An untrained guide of modes for this model, all of them about equally likely."""
    return ModeProposal(_surprised_network(model, hidden, model.modes, key))


def _surprised_network(model: HybridModel, hidden, outputs: int, key: PRNGKeyArray) -> Network:
    inputs = _inputs(model) + model.modes * len(model.channels)
    return network(inputs, tuple(hidden), outputs, key=key, dtype=model.dtype, last=0.01)


def conditioned_proposal(
    model: HybridModel, *, residual: tuple[int, ...] | None = None, key: PRNGKeyArray | None = None
) -> ConditionedProposal:
    """The conditioned guide; `residual` gives the hidden sizes of a learned correction and then needs a key."""
    if residual is None:
        return ConditionedProposal(None)
    if key is None:
        raise ValueError("a learned residual needs a random key; pass key=jax.random.key(…).")
    return ConditionedProposal(
        network(_inputs(model), tuple(residual), _outputs(model), key=key, dtype=model.dtype, last=0.0)
    )
