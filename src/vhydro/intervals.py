"""Intervals for what the sensors would have read, as the belief gives them or calibrated on validation logs."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from vhydro.calibration import EDGES, LEVELS, Calibration, band_of, conformal_factors, hidden_share
from vhydro.emission import LinearEmission
from vhydro.episodes import Episode
from vhydro.filter.run import Belief, refuse_other_channels
from vhydro.model import HybridModel
from vhydro.occlusion import channel_groups


def reading_moments(model: HybridModel, filtered: Belief) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of every reading (rows, channels), sensor noise included, standardised.

    The belief holds a variance for each coordinate and no covariances: the result is exact where a channel reads one
    coordinate, while one that mixes several is given the variance it would have if they were uncorrelated.
    """
    emission = model.emission
    if not isinstance(emission, LinearEmission):
        raise ValueError(
            f"the model has a {type(emission).__name__}; expected a LinearEmission, for the belief's mean and variance "
            "do not give those of a network's output. Keep the particles (`FilterSettings(history=True)`) instead."
        )
    matrix, offset, noise = (np.asarray(x, np.float64) for x in (emission.dense(), emission.offset, emission.noise))
    mean, variance = (np.asarray(x, np.float64) for x in (filtered.mean, filtered.variance))
    return mean @ matrix.T + offset, np.sqrt(variance @ (matrix**2).T + noise**2)


def calibrated(
    model: HybridModel, truth: Sequence[Episode], seen: Sequence[Episode], filtered: Sequence[Belief]
) -> HybridModel:
    """The model with a calibration from validation episodes: before occlusion, after it, and the latter filtered.

    Use episodes the model was not trained on, at every occlusion that will be met; one that comes several times, hidden
    in several ways, counts as one. What is exchangeable is the episode: coverage is of a reading of a new episode, and
    needs no assumption on scores up to the level K / (K + 1) of K episodes (see `Calibration.ranked_up_to`). The
    calibration is of this model with these filter settings; train or change either, and it must be made again.
    """
    _refuse_unpaired(model, truth, seen, filtered)
    groups = channel_groups(seen[0])
    parts = [_scores(model, groups, *each) for each in zip(truth, seen, filtered, strict=True)]
    score, group, band, hidden = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not score.size:
        raise ValueError("the episodes before occlusion hold no reading; expected some to compare the belief with.")
    episode = np.repeat(_episode_numbers(truth), [part[0].size for part in parts])
    count, bands = int(groups.max()) + 1, len(EDGES) + 1
    factors, episodes = conformal_factors(score, episode, group, band, hidden, groups=count, bands=bands)
    stored = jnp.asarray(factors, model.dtype), tuple(groups.tolist()), EDGES, jnp.asarray(episodes, jnp.int32)
    return replace(model, calibration=Calibration(*stored))


def _episode_numbers(truth: Sequence[Episode]) -> list[int]:
    """A number for every log, the same for logs of the same readings: one episode that was hidden in several ways."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(log.observations.tobytes(), len(numbers)) for log in truth]


def _scores(model: HybridModel, groups: np.ndarray, truth: Episode, seen: Episode, filtered: Belief):
    """The score, group, band and hidden flag of every reading of one log that is known."""
    mean, sd = reading_moments(model, filtered)
    reading = (truth.observations - np.asarray(model.shift)) / np.asarray(model.scale)
    hidden = ~seen.observed
    band = band_of(hidden_share(hidden, groups))
    known = truth.observed
    score = np.abs(reading - mean) / sd
    group = np.broadcast_to(groups, score.shape)
    return score[known], group[known], band[group[known]], hidden[known]


def _refuse_unpaired(
    model: HybridModel, truth: Sequence[Episode], seen: Sequence[Episode], filtered: Sequence[Belief]
) -> None:
    counts = len(truth), len(seen), len(filtered)
    if len(set(counts)) > 1 or not counts[0]:
        raise ValueError(
            f"{counts[0]} episodes before occlusion, {counts[1]} after it and {counts[2]} filtered; expected as many "
            "of each, and at least one."
        )
    for i, (before, after, out) in enumerate(zip(truth, seen, filtered, strict=True)):
        for log in (before, after):
            refuse_other_channels(model, log)
        if before.channels != seen[0].channels or after.channels != seen[0].channels:
            raise ValueError(f"episode {i} has its channels in other groups than episode 0; expected the same groups.")
        if before.steps != after.steps:
            raise ValueError(f"episode {i} has {before.steps} steps before occlusion and {after.steps} after it.")
        both = after.observed
        if not np.array_equal(before.observations[both], after.observations[both]):
            raise ValueError(
                f"episode {i} shows readings after occlusion that it does not hold before; expected `truth` to be what "
                "`seen` was made from. Check the order of the two and of the episodes."
            )
        _refuse_other_rows(after, out)


def _refuse_other_rows(episode: Episode, filtered: Belief) -> None:
    rows = filtered.mean.shape[:-1]
    if rows != (episode.steps + 1,):
        raise ValueError(
            f"the belief has rows {rows}, the episode {episode.steps + 1}; expected the filter's output for it."
        )


def intervals(
    model: HybridModel, episode: Episode, filtered: Belief, level: float = 0.9, *, calibrated: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The low and high end (rows, channels), in raw units, of the central interval of every reading.

    Without calibration it is the Gaussian interval `mean ± z · sd`; with it, the factor of the reading's cell takes z's
    place (see `calibration` for what that promises). The cell depends on how much of the whole log is hidden.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a share strictly between 0 and 1, such as 0.9.")
    refuse_other_channels(model, episode)
    _refuse_other_rows(episode, filtered)
    factor = _calibrated_factor(model, episode, level) if calibrated else ndtri((1 + level) / 2)
    mean, sd = reading_moments(model, filtered)
    shift, scale = np.asarray(model.shift), np.asarray(model.scale)
    return (mean - factor * sd) * scale + shift, (mean + factor * sd) * scale + shift


def _calibrated_factor(model: HybridModel, episode: Episode, level: float) -> np.ndarray:
    """The factor of every reading of a log, linear between the stored levels."""
    stored = model.calibration
    if stored is None:
        raise ValueError(
            "the model holds no calibration; expected one. Make it with `calibrated` on validation episodes, or ask "
            "for the belief's own intervals with calibrated=False."
        )
    if len(stored.groups) != len(model.channels):
        raise ValueError(f"the calibration is of {len(stored.groups)} channels, the model has {len(model.channels)}.")
    if not LEVELS[0] <= level <= LEVELS[-1]:
        raise ValueError(
            f"level is {level}; calibrated intervals go from {LEVELS[0]} to {LEVELS[-1]}, beyond which validation logs "
            "say too little. Take a level within, or calibrated=False."
        )
    hidden = ~episode.observed
    factors = stored.factors_at(hidden_share(hidden, np.asarray(stored.groups)), hidden)
    above = max(int(np.searchsorted(LEVELS, level)), 1)
    share = (level - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1])
    return (1 - share) * factors[..., above - 1] + share * factors[..., above]


ROOM = 1.5  # times the largest surprise of the validation logs


def with_outliers(model: HybridModel, filtered: Sequence[Belief]) -> HybridModel:
    """The model with a threshold of surprise for each channel, from validation logs filtered with `outliers=None`.

    A channel whose readings the model explains badly gets a higher one; none is below that of the filter's settings. A
    surprise beyond what a float tells counts as the largest that it does.
    """
    if not filtered:
        raise ValueError("no filtered logs given; expected at least one, filtered with FilterSettings(outliers=None).")
    every = np.concatenate([np.asarray(out.record.surprise, np.float64) for out in filtered])
    if every.shape[1] != len(model.channels) or (every < -0.5).any() or np.isnan(every).any():
        raise ValueError(
            f"surprises are {every.shape}, from {every.min():g} to {every.max():g}; expected one of at least 0 for "
            f"each of {len(model.channels)} channels, which only linear sensors have. Leave `outliers` to the settings."
        )
    most = -np.log10(float(jnp.finfo(model.dtype).tiny))
    return replace(model, outliers=jnp.asarray(ROOM * np.minimum(every.max(0), most), model.dtype))
