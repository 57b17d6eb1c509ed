"""Modes of what nobody holds: the next step is a share of the last one and a push, `z' = k_s z + p_s + noise`.

`z` is how far a body goes and turns in a step. A body that flies keeps all of it and is pushed down by gravity, one
that rests keeps nothing. What physics says of a mode is given and not learned; of the others, share and push are
learned. A mode may have a noise of its own: an impact needs that, for nothing before it says what comes after it, and
that is what tells it from the rest.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.cluster import KMeans

from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.learning.noise import WINDOW, seen_mean
from vhydro.learning.start import AUTO, FEWEST_ROWS, LEAST_MOVE, Start, Tried, best_count, most_words, refuse_too_few
from vhydro.learning.switching import (
    Regression,
    Structure,
    Switching,
    SwitchingConfig,
    baum_welch,
    mean_log_likelihood,
    mode_shares,
    start_from_labels,
    structure,
)
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.progress import counted
from vhydro.views.body import UPRIGHT

RESTARTS = 4
CLOSE = 5.0  # noise floors: rows that a given law explains this well are its own at the start
SENSOR = 1.0  # of the noise floor, which is how far readings of a thing that does not move are apart
QUIET = 0.02  # the quantile of windows of steps in which a body counts as still
MOST = 5  # modes that `auto` tries
GRAVITY = 9.81  # m/s²


class StepLaws(NamedTuple):
    """What each mode does to a step, in the units of the log; NaN where it is to be learned."""

    keep: Float[np.ndarray, "modes channels"]  # the share of the last step that goes on
    push: Float[np.ndarray, "modes channels"]  # what is added to it


class BodyFit(NamedTuple):
    """Modes that were found, in the units of the log, and the model of them."""

    model: HybridModel
    laws: StepLaws
    noise: Float[np.ndarray, "modes channels"]
    share: Float[np.ndarray, "modes"]  # of the training rows that are in each mode
    validation: np.ndarray  # log likelihood per row of validation logs, of every start


def body_start(
    train: Sequence[Episode], validation: Sequence[Episode], modes: int | Literal["auto"] = AUTO, *, seed: int = 0
) -> Start:
    """The modes of a body's steps: at rest and in flight, which physics gives, and others that are learned.

    With one mode its law is learned. `auto` tries two to five.
    """
    refuse_too_few(train, validation)
    if modes != AUTO and modes < 1:
        raise ValueError(f"modes is {modes}; expected at least 1, or `auto`.")
    floor = step_noise(train)
    counts = range(2, MOST + 1) if modes == AUTO else (modes,)
    fits = [
        fit_body(train, validation, _physics(train[0], count), floor=floor, own_noise=True, seed=seed)
        for count in counted(counts, "finding modes: numbers of modes tried")
    ]
    tried = tuple(
        Tried(n, float(fit.validation.max()), int((fit.share >= FEWEST_ROWS).sum()))
        for n, fit in zip(counts, fits, strict=True)
    )
    best = fits[best_count(tried)]
    given = ("at rest", "in flight")[: len(best.share)] if len(best.share) > 1 else ()
    learned = len(best.share) - len(given)
    named = ("touching",) if learned == 1 else tuple(f"touching {i + 1}" for i in range(learned))
    collapsed = tuple(np.flatnonzero(best.share < FEWEST_ROWS).tolist())
    names = (*given, *named) if given else ("moving",)
    return Start(best.model, names, tried, collapsed, notes=most_words(len(best.share), tried))


def step_noise(episodes: Sequence[Episode]) -> Float[np.ndarray, "channels"]:
    """By how much the steps of a still body jitter, in the units of the log; one number for a group of channels."""
    windows = [sliding_window_view(e.observations, min(WINDOW, e.steps + 1), axis=0)[:: WINDOW // 2] for e in episodes]
    size = np.concatenate([np.sqrt((w**2).mean(-1)) for w in windows])
    groups = [c.group for c in episodes[0].channels]
    out = np.zeros(len(groups))
    for group in set(groups):
        mine = [g == group for g in groups]
        seen = size[:, mine][~np.isnan(size[:, mine])]
        moving = seen[seen > 0]
        if not moving.size:
            raise ValueError(
                "the body never moves in any log; expected motion, without which there is nothing to tell. Give "
                "logs of it."
            )
        out[mine] = max(float(np.quantile(seen, QUIET)), 1e-6 * float(moving.max()))
    return out


def _physics(log: Episode, modes: int) -> StepLaws:
    """What is known of the modes: one that rests, one that flies; along the ground no direction is special."""
    groups = np.array([c.group for c in log.channels])
    keep, push = np.full((modes, len(groups)), np.nan), np.zeros((modes, len(groups)))
    upright = groups == UPRIGHT
    if modes == 1:
        push[:, upright] = np.nan
        return StepLaws(keep, push)
    keep[0], keep[1] = 0.0, 1.0
    push[1, upright], push[2:, upright] = -GRAVITY * log.dt**2, np.nan
    return StepLaws(keep, push)


def fit_body(
    train: Sequence[Episode],
    validation: Sequence[Episode],
    laws: StepLaws,
    *,
    floor: Float[np.ndarray, "channels"],
    own_noise: bool,
    seed: int = 0,
) -> BodyFit:
    """The modes of logs of steps, as many as there are laws; labels are never looked at.

    Channels of a group share `keep` and noise, for no direction is special. No noise is below the floor, in the units
    of the log. Without `own_noise` all modes share one.
    """
    _refuse(train, validation, laws, floor)
    config = SwitchingConfig(own_noise=own_noise)
    rows = padded_length(max(e.steps for e in (*train, *validation)))  # logs alike share a program
    data, held = body_regression(train, floor, rows), body_regression(validation, floor, rows)
    if not bool(data.seen.any()) or not bool(held.seen.any()):
        raise ValueError(
            "no two steps in a row were seen in any training or any validation log; expected some in both. Give "
            "logs that show more."
        )
    assumed = body_structure([c.group for c in train[0].channels], laws, floor)
    labels = jnp.asarray(_labels(data, laws, floor, seed))
    found = baum_welch(data, assumed, start_from_labels(data, assumed, labels, config), config)
    share = np.asarray(mode_shares(data, found, config), np.float64)
    value = np.nan_to_num(np.asarray(mean_log_likelihood(held, found, config), np.float64), nan=-np.inf)
    best = int(value.argmax())
    one = jax.tree.map(lambda x: np.asarray(x[best], np.float64), found)
    keep, push = np.moveaxis(one.coefficients, -1, 0)
    return BodyFit(_model(one, floor, train), StepLaws(keep, push * floor), one.noise * floor, share[best], value)


def body_regression(episodes: Sequence[Episode], floor: np.ndarray, rows: int) -> Regression:
    """Each step as a response to the one before it and to 1, in noise floors."""
    shape = (len(episodes), rows, len(floor))
    design, response = np.zeros((*shape, 2), np.float32), np.zeros(shape, np.float32)
    seen, valid = np.zeros(shape, bool), np.zeros(shape[:2], bool)
    for i, e in enumerate(episodes):
        y, n = e.observations / floor, e.steps
        both = ~np.isnan(y[1:] + y[:-1])
        response[i, :n] = np.where(both, y[1:], 0.0)
        design[i, :n, :, 0], design[i, :n, :, 1] = np.where(both, y[:-1], 0.0), both
        seen[i, :n], valid[i, :n] = both, True
    return Regression(*(jnp.asarray(x) for x in (response, design, seen, valid, np.zeros((*shape[:2], 0), np.float32))))


def body_structure(groups: Sequence[str], laws: StepLaws, floor: np.ndarray) -> Structure:
    """One share for every group of channels, one push for every channel."""
    names = list(dict.fromkeys(groups))
    of_group = np.array([names.index(g) for g in groups])
    parameter = np.stack([of_group, len(names) + np.arange(len(groups))], 1)
    first = [list(groups).index(name) for name in names]
    given = np.concatenate([laws.keep[:, first], laws.push / floor], 1)
    # A prior at 0, of width 1 and of one row, keeps a mode of few rows from inventing a law.
    is_keep = np.arange(given.shape[1]) < len(names)
    return structure(
        parameter, len(given), given=given, precision=is_keep * 1.0, prior_rows=~is_keep * 1.0, groups=of_group
    )


def _labels(data: Regression, laws: StepLaws, floor: np.ndarray, seed: int) -> Int[np.ndarray, "starts logs rows"]:
    """The mode of every row to start from: that of a given law which explains it, or a cluster of local dynamics."""
    last, after, valid = (np.asarray(x) for x in (data.design[..., 0], data.response, data.valid))
    local = np.concatenate([np.arcsinh(after), np.log1p(np.abs(after - last))], -1)
    around = (local + np.roll(local, 1, 1) + np.roll(local, -1, 1))[valid]
    whole = ~np.isnan(laws.keep + laws.push).any(1)
    learned, distinct = np.flatnonzero(~whole), len(np.unique(around, axis=0))
    out = np.zeros((RESTARTS, *valid.shape), np.int32)
    for k in range(RESTARTS if len(learned) else 0):
        means = KMeans(min(len(learned), distinct), init="random", n_init=1, random_state=seed * RESTARTS + k)  # pyright: ignore[reportArgumentType]
        out[k][valid] = learned[means.fit_predict(around)]
    for mode in np.flatnonzero(whole)[::-1]:  # where two explain a row, it is the first one's
        missed = np.abs(after - laws.keep[mode] * last - laws.push[mode] / floor).max(-1)
        out[:, missed < CLOSE] = mode
    return out


def _model(found: Switching, floor: np.ndarray, train: Sequence[Episode]) -> HybridModel:
    """The hybrid model of what was found, in units of the noise floor."""
    modes, width = found.noise.shape
    seen = np.concatenate([e.observations for e in train]) / floor
    moves = jnp.asarray(np.maximum(found.logits, np.log(LEAST_MOVE)), jnp.float32)
    keep, push = np.moveaxis(np.asarray(found.coefficients), -1, 0)
    return hybrid_model(
        replace(mode_kernel(modes), logits=moves),
        linear_flow(keep[:, :, None] * np.eye(width), offset=push),
        axis_emission(width, range(width), noise=SENSOR),
        noise=found.noise,
        start_mode=np.exp(found.log_start),
        start_scale=np.maximum(np.sqrt(seen_mean(seen**2)), 1.0),
        scale=floor,
        channels=[c.name for c in train[0].channels],
    )


def _refuse(train: Sequence[Episode], validation: Sequence[Episode], laws: StepLaws, floor: np.ndarray) -> None:
    refuse_too_few(train, validation)
    names, groups = ([getattr(c, what) for c in train[0].channels] for what in ("name", "group"))
    for e in (*train, *validation):
        if [c.name for c in e.channels] != names or e.steps < 1:
            raise ValueError(
                f"{e.source or 'a log'} has {e.steps + 1} rows of {[c.name for c in e.channels]}; expected at least 2 "
                f"of {names}, as in the first training log."
            )
    shapes = {np.shape(laws.keep)[1:], np.shape(laws.push)[1:], np.shape(floor)}
    if shapes != {(len(names),)} or len(laws.keep) != len(laws.push) or not len(laws.keep):
        raise ValueError(
            f"laws have the shapes {np.shape(laws.keep)} and {np.shape(laws.push)}, the floor {np.shape(floor)}; "
            f"expected (modes, {len(names)}) twice and ({len(names)},), one column for every channel."
        )
    if not (np.asarray(floor) > 0).all():
        raise ValueError(f"the noise floor is {floor}; expected more than 0 in every channel.")
    for group in set(groups):
        mine = laws.keep[:, [g == group for g in groups]]
        if not ((mine == mine[:, :1]) | np.isnan(mine).all(1, keepdims=True)).all():
            raise ValueError(f"`keep` differs within the group {group!r}; expected one share for all of its channels.")
