"""The support-safe particle filter, over whole logs and in a control loop."""

from vhydro.filter.frames import Belief, Frame, Particles, Record, belief_of
from vhydro.filter.run import Filtered, filter, filter_episodes, filtered, log_evidence
from vhydro.filter.settings import FilterSettings, bootstrap
from vhydro.filter.step import filter_step
from vhydro.filter.stream import Step, Stream

__all__ = [
    "Belief",
    "FilterSettings",
    "Filtered",
    "Frame",
    "Particles",
    "Record",
    "Step",
    "Stream",
    "belief_of",
    "bootstrap",
    "filter",
    "filter_episodes",
    "filter_step",
    "filtered",
    "log_evidence",
]
