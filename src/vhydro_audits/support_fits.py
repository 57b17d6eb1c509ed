"""The methods of the support audit: how each mixes, how it filters, and how its model and guide are learned."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import FilterSettings
from vhydro.fitted import Fitted
from vhydro.fitting import Division, Refinement, fit_divisions
from vhydro.training import Parts
from vhydro.views import ContactView

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
CONFORMAL = "two-sided+conformal"
METHODS = ("adaptive", "conservative", "no-support", "smooth", "two-sided", CONFORMAL)
FITTED = METHODS[:-1]  # the last is the one before it with other intervals
MODES = 3


class Stream(IntEnum):
    """What a seed draws keys for; two purposes never share one."""

    TEST = 1
    VALIDATION = 2


class Regime(NamedTuple):
    """What a regime trains on and tests with."""

    trained: tuple[float, ...]  # hidden shares while learning
    longer: int = 1  # times as long as then are the dark spells of the test
    steps: int = 1  # times as many training steps
    lookahead: bool = True  # resampled at every step, by how likely each particle makes what comes next


REGIMES = {
    "matched": Regime(LEVELS),
    "shift": Regime((0.0, 0.25)),
    "lit": Regime((0.0,), longer=3),
    # Where branches are lost: a guide that learned long and never saw the dark, in a filter that does not look ahead.
    "plain": Regime((0.0,), longer=3, steps=3, lookahead=False),
}


def gate_of(method: str) -> Gate:
    """How a method mixes; every one says what it could certify."""
    return {
        "adaptive": adaptive(certificate="guide-free"),
        "conservative": conservative(0.5),
        "no-support": no_support(),
        "smooth": no_support(),
        "two-sided": adaptive(certificate="two-sided"),
    }[method]


def settings_of(method: str, regime: str, particles: int, **options: Any) -> FilterSettings:
    """Filters that differ in their gate alone."""
    ahead = REGIMES[regime].lookahead
    threshold = 1.0 if ahead else 0.5
    return FilterSettings(
        particles=particles,
        engine="mixture",
        outliers=None,
        gate=gate_of(method),
        lookahead=ahead,
        ess_threshold=threshold,
        **options,
    )


def fitted(
    method: str, regime: str, config: dict[str, Any], divisions: list[Division], view: ContactView, length: int
) -> list[Fitted]:
    """Every seed's model and guide, each of its own logs.

    Two-sided is what `vhydro.fit` gives. The others learn a guide with their own gate, by the evidence of its filter.
    """
    trained, steps = REGIMES[regime].trained, config["steps"] * REGIMES[regime].steps
    levels = trained * (10 // len(trained))  # ten levels in every regime, so that all share a program
    refinement = Refinement(
        steps=steps, window=32, learning_rate=0.01, levels=levels, burst=config["burst"], guide="amortized",
        settings=settings_of(method, regime, 32), judged=(),
    )  # fmt: skip
    if method == "two-sided":
        judged = tuple(level for level in trained if level)[-2:]
        refinement = Refinement(steps=steps, levels=levels, burst=config["burst"], judged=judged)
    return fit_divisions(
        divisions, view, modes=1 if method == "smooth" else MODES, seeds=range(len(divisions)), refinement=refinement,
        calibrate=False, length=length,
    )  # fmt: skip


def units_of(divisions: Sequence[Division], view: ContactView) -> np.ndarray:
    """What every seed's readings are standardised by, in metres: how far they spread in its training logs."""
    every = [np.concatenate([view(e).observations for e in d.train]) for d in divisions]
    return np.array([np.sqrt(np.nanmean((values - np.nanmean(values, 0)) ** 2)) for values in every])


def parts_of(fits: list[Fitted]) -> list[Parts]:
    """The model and the guide of every seed."""
    return [Parts(f.model, f.guide) for f in fits]


def stacked(lists: list[list[Episode]], length: int) -> Batch:
    """Every seed's episodes as arrays with an axis of seeds in front."""
    batches = [pad(own, dtype=np.float32, length=length) for own in lists]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def seed_keys(seeds: int, stream: Stream) -> Key[Array, "seeds"]:
    """One key for every seed and purpose."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), int(stream)))(np.arange(seeds))
