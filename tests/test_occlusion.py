"""What occlusion hides: the share, the bursts, the groups."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.episodes import Channel, Episode
from vhydro.occlusion import channel_groups, occlude, visible

EVEN = np.array([0, 1, 0, 1])  # two groups of two channels
UNEVEN = np.array([0, 0, 0, 0, 0, 1])  # five channels of one group, one of another


def ragged(episodes=6, times=200):
    """Which rows are valid in episodes of different lengths."""
    return jnp.arange(times)[None] < jnp.linspace(times // 2, times, episodes).astype(int)[:, None]


@partial(jax.jit, static_argnums=(2, 3, 4))
def hidden(valid, level, groups, burst, keep_first, key):
    return visible(valid, level, groups=np.array(groups), burst=burst, keep_first=keep_first, key=key)


def shown(level, *, groups=EVEN, burst=8, keep_first=True, seed=0, valid=None):
    valid = ragged() if valid is None else valid
    out = hidden(valid, level, tuple(groups), burst, keep_first, jax.random.key(seed))
    return np.asarray(out), np.asarray(valid)


def hidden_share(seen, valid, keep_first=True):
    """The share of hidden entries among those that may be hidden."""
    can_hide = valid & (np.arange(valid.shape[1]) > 0) if keep_first else valid
    return 1 - seen[can_hide].mean()


LEVELS = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]


@pytest.mark.parametrize("keep_first", [True, False])
def test_the_hidden_share_is_the_level(keep_first):
    for level in LEVELS:
        seen, valid = shown(level, keep_first=keep_first, seed=1)
        assert hidden_share(seen, valid, keep_first) == pytest.approx(level, abs=0.01)


def test_the_hidden_share_is_the_level_whatever_the_groups():
    """A group of five channels counts five times: the share is of entries."""
    for seed in range(5):
        seen, valid = shown(0.5, groups=UNEVEN, seed=seed)
        assert hidden_share(seen, valid) == pytest.approx(0.5, abs=0.01)


def test_a_group_is_hidden_together_and_groups_apart():
    seen, _ = shown(0.5)
    np.testing.assert_array_equal(seen[..., 0], seen[..., 2])
    np.testing.assert_array_equal(seen[..., 1], seen[..., 3])
    assert (seen[..., 0] != seen[..., 1]).mean() > 0.2


def test_the_first_row_is_kept_on_request():
    assert shown(0.9)[0][:, 0].all()
    assert not shown(0.9, keep_first=False)[0][:, 0].all()


def test_padding_neither_counts_nor_hides():
    seen, valid = shown(0.9)
    assert seen[~valid].all()
    assert not seen[valid].all()


def run_lengths(hidden):
    """The lengths of all runs of True along the time axis (episodes, times)."""
    edges = np.diff(np.pad(hidden.astype(int), ((0, 0), (1, 1))), axis=1)
    return np.argwhere(edges == -1)[:, 1] - np.argwhere(edges == 1)[:, 1]


@pytest.mark.parametrize("level", [0.25, 0.5, 0.75])
def test_occlusion_comes_in_bursts(level):
    """Independent rows hide in runs of mean length `1/(1 − level)`; bursts are longer."""
    valid = jnp.ones((40, 250), bool)
    mean = {b: run_lengths(~shown(level, burst=b, valid=valid)[0][..., 0]) for b in (1, 4, 16)}
    error = {b: runs.std(ddof=1) / np.sqrt(len(runs)) for b, runs in mean.items()}
    mean = {b: runs.mean() for b, runs in mean.items()}
    assert mean[1] == pytest.approx(1 / (1 - level), abs=4 * error[1])
    assert mean[4] > 1 / (1 - level) + 4 * error[4]
    assert mean[16] > mean[4] + 4 * np.hypot(error[4], error[16])


def test_occlusion_is_drawn_from_its_key_alone():
    np.testing.assert_array_equal(shown(0.5)[0], shown(0.5)[0])
    assert (shown(0.5)[0] != shown(0.5, seed=1)[0]).any()
    # More is hidden at a higher level, and nothing comes back.
    assert not (shown(0.75)[0] & ~shown(0.5)[0]).any()


def test_occlusion_is_the_same_compiled_and_not():
    eager = visible(ragged(), 0.5, groups=EVEN, burst=8, key=jax.random.key(0))
    np.testing.assert_array_equal(eager, shown(0.5)[0])


def log(rows=60, groups=("object", "gripper", "object", "arm")):
    channels = tuple(Channel(f"c{i}", g) for i, g in enumerate(groups))
    return Episode(np.random.default_rng(rows).normal(size=(rows, len(groups))), np.zeros((rows - 1, 1)), 0.1, channels)


def test_channel_groups_are_numbered_in_order():
    np.testing.assert_array_equal(channel_groups(log()), [0, 1, 0, 2])


@pytest.mark.parametrize("level", LEVELS)
def test_the_share_over_a_dataset_is_the_level(level):
    """Logs of every length, groups of unequal width."""
    logs = [occlude(log(rows), level, key=jax.random.key(rows)) for rows in range(40, 160, 3)]
    hidden = np.concatenate([np.isnan(e.observations[1:]).ravel() for e in logs])
    assert hidden.mean() == pytest.approx(level, abs=0.01)
    assert not any(np.isnan(e.observations[0]).any() for e in logs)


def test_occluding_changes_nothing_else():
    before = log()
    after = occlude(before, 0.5, key=jax.random.key(0))
    seen = ~np.isnan(after.observations)
    np.testing.assert_array_equal(after.observations[seen], before.observations[seen])
    np.testing.assert_array_equal(after.observations, occlude(before, 0.5, key=jax.random.key(0)).observations)
    assert (after.channels, after.dt) == (before.channels, before.dt)
    assert after.observations.dtype == before.observations.dtype


@pytest.mark.parametrize(
    ("options", "message"), [({"level": 1.2}, "level is 1.2; expected"), ({"burst": 0}, "burst is 0")]
)
def test_occlusion_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        occlude(log(), **({"level": 0.5, "key": jax.random.key(0)} | options))
