"""What every mode, clamped over a segment, predicts of each row: the law that Thm 2 compares."""

import numpy as np
from jaxtyping import Float

from vhydro.emission import LinearEmission
from vhydro.episodes import Episode
from vhydro.filter.merged import is_separate
from vhydro.flow import LinearFlow
from vhydro.model import HybridModel

WIDE = 1e4  # standard deviations of the model's noise: of what was never seen before


def clamped_predictions(
    model: HybridModel, episode: Episode, start: int, end: int
) -> tuple[
    Float[np.ndarray, "steps modes channels"], Float[np.ndarray, "steps channels"], Float[np.ndarray, "steps channels"]
]:
    """Predictive means and spreads of rows `start` to `end` (exclusive) in every mode, and what was seen of them.

    In the model's units; hidden is NaN. Drives are taken as given: the hand's path, and the gaps between targets
    and fingers or joints, which encoders measured. Every mode starts from what was last seen before the segment.
    The spread is that of the roughest mode: one for all modes. The first row of a log is not predicted by anything.
    """
    if not _is_contact_model(model):
        raise ValueError(
            "the model is no contact model; expected one whose coordinates stay where they are but for a drive each, "
            "as a fit through the contact view makes it."
        )
    rows = episode.steps + 1
    if not 0 <= start < end <= rows or end < 2:
        raise ValueError(f"rows {start} to {end} of a log with {rows} rows; expected some of them, past the first.")
    assert isinstance(model.emission, LinearEmission)
    gain = np.diagonal(np.asarray(model.flow.port, np.float64)[..., : model.latent], axis1=1, axis2=2)
    noise, sensor = np.asarray(model.noise, np.float64), np.asarray(model.emission.noise, np.float64)
    values = (episode.observations - np.asarray(model.shift, np.float64)) / np.asarray(model.scale, np.float64)
    drive = (episode.actions / np.asarray(model.action_scale, np.float64))[:, : model.latent]
    rough = _step_variance(model, episode)
    first = max(start, 1)
    mean, variance = _before(values[:first], noise.max(0), sensor)
    mean = np.tile(mean, (model.modes, 1))
    means, spreads = [], []
    for row in range(first, end):
        mean, variance = mean + gain * drive[row - 1], variance + rough[row - 1]
        means.append(mean)
        spreads.append(np.sqrt(variance + sensor**2))
        known = ~np.isnan(values[row])
        keep = np.where(known, variance / (variance + sensor**2), 0.0)
        mean = mean + keep * (np.where(known, values[row], 0.0) - np.where(known, mean, 0.0))
        variance = variance * (1 - keep)
    return np.stack(means), np.stack(spreads), values[first:end]


def _step_variance(model: HybridModel, episode: Episode) -> Float[np.ndarray, "steps channels"]:
    """The variance of every step in the roughest mode: that of the noise, and what the drives add to it."""
    still = np.asarray(model.noise, np.float64).max(0) ** 2
    if model.roughness is None:
        return np.broadcast_to(still, (episode.steps, len(still)))
    actions = episode.actions / np.asarray(model.action_scale, np.float64)
    added = np.einsum("mci,ti->tmc", np.asarray(model.roughness, np.float64) ** 2, actions**2).max(1)
    return still + added


def _is_contact_model(model: HybridModel) -> bool:
    if not is_separate(model) or not isinstance(model.flow, LinearFlow) or model.inputs < model.latent:
        return False
    others = np.asarray(model.flow.port) * (1 - np.eye(model.latent, model.inputs))
    still = np.allclose(model.flow.matrix, np.eye(model.latent)) and not np.any(np.asarray(model.flow.offset))
    return bool(still and not others.any())


def _before(values: np.ndarray, noise: np.ndarray, sensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where every channel was last seen, and how unsure that leaves it by the last of these rows."""
    known = ~np.isnan(values)
    ever, last = known.any(0), len(values) - 1 - known[::-1].argmax(0)
    place = np.where(ever, values[last, np.arange(values.shape[1])], 0.0)
    rows = len(values) - 1 - last
    return place, np.where(ever, sensor**2 + rows * noise**2, (WIDE * noise) ** 2)
