"""The support-safe particle filter, over whole logs and in a control loop."""

from vhydro.filter.frames import Frame, Moments, Particles, Record, moments_of
from vhydro.filter.loop import Step
from vhydro.filter.run import Belief, filter, filter_alike, filter_episodes, filtered, log_evidence
from vhydro.filter.settings import FilterSettings, bootstrap
from vhydro.filter.step import filter_step
from vhydro.filter.stream import Stream

__all__ = [
    "Belief",
    "FilterSettings",
    "Frame",
    "Moments",
    "Particles",
    "Record",
    "Step",
    "Stream",
    "bootstrap",
    "filter",
    "filter_alike",
    "filter_episodes",
    "filter_step",
    "filtered",
    "log_evidence",
    "moments_of",
]
