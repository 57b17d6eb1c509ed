"""Occlusion: what of a log is hidden, in bursts, by channel group."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vhydro.episodes import Episode

ROWS = 128  # lengths are rounded up to this, so that few programs serve logs of any length


def occlude(episode: Episode, level: float, *, key: PRNGKeyArray, burst: int = 10, keep_first: bool = True) -> Episode:
    """The episode with a share `level` of its observations hidden, by group, in bursts of about `burst` rows.

    The same key hides the same entries for every method. What was hidden before stays hidden and does not count.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"occlusion level is {level}; expected a share in [0, 1].")
    if burst < 1:
        raise ValueError(f"burst is {burst}; expected at least one row.")
    rows = episode.steps + 1
    valid = np.zeros((1, -(-rows // ROWS) * ROWS), bool)
    valid[:, :rows] = True
    groups = tuple(channel_groups(episode).tolist())
    shown = _shown(jnp.asarray(valid), jnp.asarray(level), key, groups, burst, keep_first)
    hidden = ~np.asarray(shown)[0, :rows]
    return replace(episode, observations=np.where(hidden, np.nan, episode.observations))


@partial(jax.jit, static_argnums=(3, 4, 5))
def _shown(valid, level, key, groups, burst, keep_first):
    return visible(valid, level, groups=np.asarray(groups), burst=burst, keep_first=keep_first, key=key)


def channel_groups(episode: Episode) -> np.ndarray:
    """The group number of every channel; channels of one group are hidden together."""
    groups = [c.group for c in episode.channels]
    order = {g: i for i, g in enumerate(dict.fromkeys(groups))}
    return np.array([order[g] for g in groups])


def visible(
    valid: Bool[Array, "episodes times"],
    level: Float[Array, ""] | float,
    *,
    groups: np.ndarray,
    burst: int,
    keep_first: bool = True,
    key: PRNGKeyArray,
) -> Bool[Array, "episodes times channels"]:
    """What stays visible when a share `level` of the valid entries is hidden, by group, in bursts.

    Noise smoothed over `burst` rows is cut at its own quantile: bursts come from the smoothing, the exact
    share from the quantile. The first row, where kept, does not count.
    """
    count = int(groups.max()) + 1
    noise = jax.random.normal(key, (valid.shape[0], count, valid.shape[1] + burst - 1))
    total = jnp.cumsum(jnp.pad(noise, ((0, 0), (0, 0), (1, 0))), -1)
    smooth = jnp.moveaxis(total[..., burst:] - total[..., :-burst], 1, -1)  # episodes, times, groups
    can_hide = valid.at[:, 0].set(False) if keep_first else valid
    # The quantile is weighted by the number of channels in a group: the share is one of entries, not of groups.
    width = jnp.where(can_hide[..., None], jnp.asarray(np.bincount(groups)), 0)
    order = jnp.argsort(jnp.where(can_hide[..., None], smooth, jnp.inf).ravel())
    entries = width.ravel()[order]
    upto = jnp.cumsum(entries)
    hide = upto - entries / 2 <= level * upto[-1]  # in order, until the next would be further off than staying
    hidden = jnp.zeros(order.shape, bool).at[order].set(hide).reshape(smooth.shape) & can_hide[..., None]
    return ~hidden[..., groups]


def straight_lines(values: Float[np.ndarray, "rows channels"]) -> Float[np.ndarray, "rows channels"]:
    """The rows with straight lines where readings are hidden, and 0 in a channel that always is."""
    out, rows = values.astype(np.float64), np.arange(len(values))
    for column in out.T:
        known = ~np.isnan(column)
        if not known.all():
            column[~known] = np.interp(rows[~known], rows[known], column[known]) if known.any() else 0.0
    return out
