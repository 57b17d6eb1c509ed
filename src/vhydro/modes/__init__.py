"""Modes: contact regimes as segments of a log, and how well they agree with labels the model never saw."""

from vhydro.modes.metrics import (
    ChangePointScore,
    Scores,
    SegmentationRates,
    adjusted_rand,
    change_point_f1,
    change_points,
    macro_f1,
    matching,
    purity,
    scores,
    segmentation_rates,
)
from vhydro.modes.segments import Segment, as_rows, path_of, segments_of, write_segments

__all__ = [
    "ChangePointScore", "Scores", "Segment", "SegmentationRates", "adjusted_rand", "as_rows", "change_point_f1",
    "change_points", "macro_f1", "matching", "path_of", "purity", "scores", "segmentation_rates", "segments_of",
    "write_segments",
]  # fmt: skip
