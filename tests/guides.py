"""Guides that are wrong on purpose."""

import equinox as eqx
import jax.numpy as jnp

from vhydro.proposal import ConditionedProposal


class Wrong(ConditionedProposal):
    """A guide that always proposes mode 1."""

    def guide(self, model, carrier, after, mode, z, action, seen):
        full = super().guide(model, carrier, after, mode, z, action, seen)
        return eqx.tree_at(lambda b: b.log_mode, full, full.log_mode.at[0].set(-jnp.inf).at[1].set(0.0))

    def exact(self, model):
        return False
