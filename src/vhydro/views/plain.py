"""Channels as they are: for logs of which nothing is known but numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vhydro.episodes import Episode
from vhydro.views.view import looked_up, only


@dataclass(frozen=True)
class PlainView:
    """Some channels and inputs; called with a log, the log of them in SI units."""

    channels: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    kind: ClassVar[str] = "plain"
    example: ClassVar[str] = 'PlainView(channels=("pressure", "flow"), inputs=("valve",))'

    def __post_init__(self):
        if not self.channels:
            raise ValueError(f"no channels given; expected at least one. For example {self.example}.")

    def __call__(self, episode: Episode) -> Episode:
        """The log of the named channels and inputs."""
        return only(looked_up(self, episode), self.channels, self.inputs)


def plain_view(episodes: Sequence[Episode]) -> PlainView:
    """Every channel that is seen and changes in some log, and every input that does."""
    channels, inputs = changing(episodes)
    if not channels:
        raise ValueError(
            f"no channel of {episodes[0].source or 'the logs'} is ever seen to change; expected at least one that "
            "does. Look at them with `vhydro data inspect LOGS`, and leave out logs of things that stand still."
        )
    return PlainView(channels, inputs)


def changing(episodes: Sequence[Episode]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the channels and of the inputs that are seen to change in some log."""
    first = episodes[0]
    values, actions = (np.concatenate([getattr(e, what) for e in episodes]) for what in ("observations", "actions"))
    seen = ~np.isnan(values)
    spread = np.where(seen, values, -np.inf).max(0) > np.where(seen, values, np.inf).min(0)
    moving = np.ptp(actions, axis=0) > 0 if len(actions) else np.zeros(len(first.inputs), bool)
    sides = ((first.channels, spread), (first.inputs, moving))
    channels, inputs = (tuple(c.name for c, on in zip(named, each, strict=True) if on) for named, each in sides)
    return channels, inputs
