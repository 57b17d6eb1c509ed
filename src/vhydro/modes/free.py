"""Modes of what nobody holds: the next step is a share of the last one and a push, `z' = k_s z + p_s + noise`.

`z` is how far a body goes and turns in a step. A body that flies keeps all of it and is pushed down by gravity, one
that rests keeps nothing. What physics says of a mode is given and not learned; of the others, share and push are found
by expectation maximisation from several starts, and validation logs choose between those.

Differs from `modes.switching`, which is for things that a hand drives: there is no drive, and a mode may have a noise
of its own. An impact needs that: nothing before it says what comes after it, and that is what tells it from the rest.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from sklearn.cluster import KMeans

from vhydro.chains import chain_posterior, sticky
from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.modes.switching import seen_mean
from vhydro.robots import PRIOR, STAY

ROUNDS, STARTS = 40, 4
CLOSE = 5.0  # noise floors: rows that a given law explains this well are its own at the start
SENSOR = 1.0  # of the noise floor, which is how far readings of a thing that does not move are apart
LEAST_MOVE = 1e-6  # no mode is ever impossible


class Laws(NamedTuple):
    """What each mode does, in the units of the log; NaN where it is to be learned."""

    keep: Float[np.ndarray, "modes channels"]  # the share of the last step that goes on
    push: Float[np.ndarray, "modes channels"]  # what is added to it


class Free(NamedTuple):
    """Modes that were found, in the units of the log, and the model of them."""

    model: HybridModel
    laws: Laws
    noise: Float[np.ndarray, "modes channels"]
    share: Float[np.ndarray, "modes"]  # of the training rows that are in each mode
    starts: np.ndarray  # validation log likelihood per row of every start


class Steps(NamedTuple):
    """Each step and the one after it, in noise floors; what is not seen, or padding, is 0 and does not count."""

    last: Float[Array, "logs rows channels"]
    next: Float[Array, "logs rows channels"]
    seen: Float[Array, "logs rows channels"]
    valid: Bool[Array, "logs rows"]


class Given(NamedTuple):
    """The laws in noise floors, and which channels are of one group."""

    keep: Float[Array, "modes channels"]
    push: Float[Array, "modes channels"]
    together: Float[Array, "channels channels"]


class Now(NamedTuple):
    """Where expectation maximisation is; in noise floors."""

    keep: Float[Array, "*starts modes channels"]
    push: Float[Array, "*starts modes channels"]
    noise: Float[Array, "*starts modes channels"]
    transition: Float[Array, "*starts modes modes"]
    start: Float[Array, "*starts modes"]


def learned_free(
    train: Sequence[Episode],
    validation: Sequence[Episode],
    laws: Laws,
    *,
    floor: Float[np.ndarray, "channels"],
    own_noise: bool,
    seed: int = 0,
) -> Free:
    """The modes of logs of steps, as many as there are laws; labels are never looked at.

    Channels of a group share `keep` and noise, for no direction is special. No noise is below the floor, in the units
    of the log. Without `own_noise` all modes share one.
    """
    _refuse(train, validation, laws, floor)
    groups = np.array([c.group for c in train[0].channels])
    given = Given(*(jnp.asarray(x, jnp.float32) for x in (laws.keep, laws.push / floor, groups[:, None] == groups)))
    rows = padded_length(max(e.steps for e in (*train, *validation)))  # logs alike share a program
    data, held = _steps(train, floor, rows), _steps(validation, floor, rows)
    if not bool(data.seen.any()) or not bool(held.seen.any()):
        raise ValueError(
            "no two steps in a row were seen in any training or any validation log; expected some in both."
        )
    begun = jnp.asarray(_starts(data, given, seed))
    found, share = _climbed(data, given, begun, jnp.asarray(own_noise))
    value = np.nan_to_num(np.asarray(_scored(held, found), np.float64), nan=-np.inf)
    best = int(value.argmax())
    now, share = jax.tree.map(lambda x: np.asarray(x[best], np.float64), (found, share))
    return Free(_model(now, floor, train), Laws(now.keep, now.push * floor), now.noise * floor, share, value)


def _steps(episodes: Sequence[Episode], floor: np.ndarray, rows: int) -> Steps:
    shape = (len(episodes), rows, len(floor))
    last, after, seen = (np.zeros(shape, np.float32) for _ in range(3))
    valid = np.zeros(shape[:2], bool)
    for i, e in enumerate(episodes):
        y, n = e.observations / floor, e.steps
        last[i, :n], after[i, :n] = np.nan_to_num(y[:-1]), np.nan_to_num(y[1:])
        seen[i, :n], valid[i, :n] = ~np.isnan(y[1:] + y[:-1]), True
    return Steps(*(jnp.asarray(x) for x in (last * seen, after * seen, seen, valid)))


def _starts(data: Steps, given: Given, seed: int) -> Int[np.ndarray, "starts logs rows"]:
    """The mode of every row to start from: that of a given law which explains it, or a cluster of local dynamics."""
    last, after, valid = (np.asarray(x) for x in (data.last, data.next, data.valid))
    local = np.concatenate([np.arcsinh(after), np.log1p(np.abs(after - last))], -1)
    around = (local + np.roll(local, 1, 1) + np.roll(local, -1, 1))[valid]
    whole = ~np.isnan(np.asarray(given.keep) + np.asarray(given.push)).any(1)
    learned, distinct = np.flatnonzero(~whole), len(np.unique(around, axis=0))
    out = np.zeros((STARTS, *valid.shape), np.int32)
    for k in range(STARTS if len(learned) else 0):
        means = KMeans(min(len(learned), distinct), init="random", n_init=1, random_state=seed * STARTS + k)  # pyright: ignore[reportArgumentType]
        out[k][valid] = learned[means.fit_predict(around)]
    for mode in np.flatnonzero(whole)[::-1]:  # where two explain a row, it is the first one's
        missed = np.abs(after - np.asarray(given.keep[mode]) * last - np.asarray(given.push[mode])).max(-1)
        out[:, missed < CLOSE] = mode
    return out


@jax.jit
def _climbed(data: Steps, given: Given, begun: Int[Array, "starts logs rows"], own_noise: Bool[Array, ""]):
    """Every start improved, and the share of the rows in each of its modes."""
    return jax.vmap(partial(_climbed_once, data, given, own_noise))(begun)


def _climbed_once(data: Steps, given: Given, own_noise: Bool[Array, ""], begun: Int[Array, "logs rows"]):
    modes, dtype = len(given.keep), given.keep.dtype
    weight = jax.nn.one_hot(begun, modes, dtype=dtype)
    blank = Now(
        keep=jnp.zeros_like(given.keep),
        push=jnp.zeros_like(given.push),
        noise=jnp.ones_like(given.keep),
        transition=jnp.asarray(sticky(modes, STAY), dtype),
        start=jnp.full(modes, 1 / modes, dtype),
    )
    first = _fitted(data, given, weight, blank, own_noise)

    def improved(_, now: Now) -> Now:
        weight, moves, _ = _believed(data, now)
        moves, starts = moves.sum(0) + PRIOR, weight[:, 0].sum(0) + PRIOR
        chances = now._replace(transition=moves / moves.sum(1, keepdims=True), start=starts / starts.sum())
        return _fitted(data, given, weight, chances, own_noise)

    after = jax.lax.fori_loop(0, ROUNDS, improved, first)
    return after, (_believed(data, after)[0] * data.valid[..., None]).sum((0, 1)) / data.valid.sum()


def _missed(data: Steps, now: Now) -> Float[Array, "logs rows modes channels"]:
    return (data.next[:, :, None] - now.keep * data.last[:, :, None] - now.push) * data.seen[:, :, None]


def _believed(data: Steps, now: Now):
    """Who was in which mode, how often it changed, and how likely every log is."""
    terms = -0.5 * (_missed(data, now) / now.noise) ** 2 - jnp.log(now.noise) * data.seen[:, :, None]
    return jax.vmap(chain_posterior, in_axes=(0, 0, None, None))(terms.sum(-1), data.valid, now.transition, now.start)


def _fitted(data: Steps, given: Given, weight: Float[Array, "logs rows modes"], now: Now, own_noise) -> Now:
    """The laws and noises that make what is believed likeliest, what is given left as it is."""
    weight = weight * data.valid[..., None]

    def total(values) -> Float[Array, "modes channels"]:
        return jnp.einsum("lrm,lrc->mc", weight, data.seen * values)

    x, y = data.last, data.next
    rows, square = total(jnp.ones_like(x)), total(x * x)
    # A prior of one row, at 0, keeps a mode of few rows from inventing a law.
    free, pushed = jnp.isnan(given.push), jnp.nan_to_num(given.push)
    middle = jnp.where(free, total(y) / (rows + 1), pushed)
    lean = jnp.where(free, total(x) / (rows + 1), 0.0)
    up = (total(x * y) - total(x) * middle) @ given.together
    down = (square - total(x) * lean) @ given.together + now.noise**2
    keep = jnp.where(jnp.isnan(given.keep), up / down, given.keep)
    push = jnp.where(free, middle - keep * lean, pushed)
    error = jnp.einsum("lrm,lrmc->mc", weight, _missed(data, now._replace(keep=keep, push=push)) ** 2) @ given.together
    count = rows @ given.together
    each, shared = jnp.sqrt((error + 1) / (count + 1)), jnp.sqrt(error.sum(0) / jnp.maximum(count.sum(0), 1))
    noise = jnp.maximum(jnp.where(own_noise, each, shared), 1.0)
    return now._replace(keep=keep, push=push, noise=noise)


@jax.jit
def _scored(data: Steps, found: Now) -> Float[Array, "starts"]:
    """The log likelihood per row of every start."""
    return jax.vmap(lambda one: _believed(data, one)[2].sum() / jnp.maximum(data.valid.sum(), 1))(found)


def _model(now: Now, floor: np.ndarray, train: Sequence[Episode]) -> HybridModel:
    """The hybrid model of what was found, in units of the noise floor."""
    modes, width = now.keep.shape
    seen = np.concatenate([e.observations for e in train]) / floor
    moves = jnp.asarray(np.log(np.maximum(now.transition, LEAST_MOVE)), jnp.float32)
    return hybrid_model(
        replace(mode_kernel(modes), logits=moves),
        linear_flow(np.asarray(now.keep)[:, :, None] * np.eye(width), offset=np.asarray(now.push)),
        axis_emission(width, range(width), noise=SENSOR),
        noise=now.noise,
        start_mode=now.start,
        start_scale=np.maximum(np.sqrt(seen_mean(seen**2)), 1.0),
        scale=floor,
        channels=[c.name for c in train[0].channels],
    )


def _refuse(train: Sequence[Episode], validation: Sequence[Episode], laws: Laws, floor: np.ndarray) -> None:
    if not train or not validation:
        raise ValueError(
            f"{len(train)} training and {len(validation)} validation logs; expected at least one of each. The second "
            "chooses between starts."
        )
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
