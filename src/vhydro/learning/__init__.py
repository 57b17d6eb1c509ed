"""Learning from logs without labels: switching regressions start a model, FIVO refines it, calibration closes it."""
