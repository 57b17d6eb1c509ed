"""The methods of the support audit: how each mixes, how it filters, and how its model and guide are learned."""

from enum import IntEnum
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import Batch, Episode, pad
from vhydro.filter import FilterSettings
from vhydro.proposal import amortized_proposal, conditioned_proposal
from vhydro.robots import GIVEN, couplings, robot_model
from vhydro.training import Fit, Parts, TrainingConfig, fit

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
CONFORMAL = "two-sided+conformal"
METHODS = ("adaptive", "conservative", "no-support", "smooth", "two-sided", CONFORMAL)
FITTED = METHODS[:-1]  # the last is the one before it with other intervals
MODES = 3


class Stream(IntEnum):
    """What a seed draws keys for; two purposes never share one."""

    TEST = 1
    VALIDATION = 2
    MODEL = 3
    GUIDE = 4


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
    method: str,
    regime: str,
    config: dict[str, Any],
    train: list[list[Episode]],
    validation: list[list[Episode]],
    length: int,
) -> Fit:
    """Every seed's model and guide, learned together on its own episodes with the method's own gate."""
    seeds, trained = len(train), REGIMES[regime].trained
    found = couplings(train, 1 if method == "smooth" else MODES, config["sensor_noise"], seeds=range(seeds))
    starts = []
    keys = zip(seed_keys(seeds, Stream.MODEL), seed_keys(seeds, Stream.GUIDE), strict=True)
    for seed, (model_key, guide_key) in enumerate(keys):
        model = robot_model(train[seed], found[seed], sensor_noise=config["sensor_noise"], key=model_key)
        learned = method != "two-sided"
        guide = amortized_proposal(model, hidden=(32, 32), key=guide_key) if learned else conditioned_proposal(model)
        starts.append(Parts(model, guide))
    training = TrainingConfig(
        steps=config["steps"] * REGIMES[regime].steps,
        batch=16,
        window=32,
        learning_rate=0.01,
        occlusion=trained * (10 // len(trained)),  # ten levels in every regime, so that all share a program
        burst=config["burst"],
        validate_every=100,
        seeds=seeds,
        frozen=GIVEN,
        settings=settings_of(method, regime, 32),
    )
    return fit(starts, train, validation, key=jax.random.key(2**20), config=training, length=length, progress=False)


def stacked(lists: list[list[Episode]], length: int) -> Batch:
    """Every seed's episodes as arrays with an axis of seeds in front."""
    batches = [pad(own, dtype=np.float32, length=length) for own in lists]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def seed_keys(seeds: int, stream: Stream) -> Key[Array, "seeds"]:
    """One key for every seed and purpose."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), int(stream)))(np.arange(seeds))
