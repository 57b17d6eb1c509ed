"""Logs: what is refused and with which words, how many become one batch, and how occlusion hides them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.episodes import Channel, Episode, channel_groups, episode, pad, visible

NAMES = ("x", "y")


def log(steps=3, **changes):
    """A valid episode of two channels and one input, but for what is changed."""
    rng = np.random.default_rng(steps)
    parts = {
        "observations": rng.standard_normal((steps + 1, 2)),
        "actions": rng.standard_normal((steps, 1)),
        "dt": 0.1,
        "channels": tuple(Channel(n) for n in NAMES),
    }
    return Episode(**(parts | changes))


def changed(array, index, value):
    out = np.array(array, float)
    out[index] = value
    return out


# --- refusals -----------------------------------------------------------------------------------------------

BAD = {
    "no rows": ({"observations": np.zeros((0, 2))}, [r"\(0, 2\)", "expected .* at least one row", "Drop"]),
    "no channels": ({"observations": np.zeros((4, 0))}, [r"\(4, 0\)", "expected"]),
    "flat observations": ({"observations": np.zeros(4)}, [r"\(4,\)", r"expected \(steps \+ 1, channels\)"]),
    "too many actions": ({"actions": np.zeros((4, 1))}, [r"\(4, 1\)", r"expected \(3, inputs\)", "width 0"]),
    "flat actions": ({"actions": np.zeros(3)}, [r"\(3,\)", r"expected \(3, inputs\)"]),
    "a name missing": ({"channels": (Channel("x"),)}, ["1 channel names .*2 observed", "name every column"]),
    "a name twice": ({"channels": (Channel("x"), Channel("x"))}, ["repeat", r"\['x'\]"]),
    "infinite observation": (
        {"observations": changed(np.zeros((4, 2)), (2, 1), -np.inf)},
        ["-inf at row 2, channel 'y'", "expected finite", "NaN"],
    ),
    "infinite action": (
        {"actions": changed(np.zeros((3, 1)), (1, 0), np.inf)},
        ["inf at step 1, column 0", "must be finite", "Fill it"],
    ),
    "hidden action": (
        {"actions": changed(np.zeros((3, 1)), (0, 0), np.nan)},
        ["nan at step 0", "only observations"],
    ),
    "zero dt": ({"dt": 0.0}, [r"dt is 0\.0", "expected the positive time"]),
    "negative dt": ({"dt": -0.1}, [r"dt is -0\.1", "positive"]),
    "infinite dt": ({"dt": np.inf}, ["dt is inf"]),
    "undefined dt": ({"dt": np.nan}, ["dt is nan"]),
    "short label": ({"labels": {"mode": np.zeros(3)}}, ["label 'mode'", "3 rows", "expected 4"]),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_an_episode_refuses(changes, words):
    """Every error says what was found, what was expected or what to do, and in which file."""
    for match in words:
        with pytest.raises(ValueError, match=match):
            log(**changes)
    if "dt" not in changes:
        with pytest.raises(ValueError, match=r"in day1\.h5"):
            log(**changes, source="day1.h5")


def test_a_valid_episode_is_kept_as_it_is():
    hidden = changed(np.ones((4, 2)), (1, 0), np.nan)
    kept = log(observations=hidden, labels={"mode": np.arange(4)}, source="day1.h5")
    assert kept.steps == 3
    np.testing.assert_array_equal(kept.observed, [[True, True], [False, True], [True, True], [True, True]])
    assert log(observations=np.full((4, 2), np.nan)).observed.sum() == 0
    assert log(steps=0, actions=np.zeros((0, 1))).steps == 0


def test_plain_arrays_become_an_episode():
    plain = episode([1, 2, 3], dt=0.5)
    assert plain.observations.shape == (3, 1)
    assert plain.observations.dtype == np.float64
    assert plain.actions.shape == (2, 0)
    assert plain.channels == (Channel("y0"),)
    given = episode(np.zeros((3, 2), np.float32), [1.0, 2.0], dt=0.5, channels=["a", Channel("b", "gripper")])
    assert given.observations.dtype == np.float32
    np.testing.assert_array_equal(given.actions, [[1.0], [2.0]])
    assert [c.group for c in given.channels] == ["object", "gripper"]
    with pytest.raises(ValueError, match="at least one row"):
        episode(np.zeros((0, 2)), dt=0.5)


def test_select_keeps_and_orders_channels():
    whole = log(labels={"mode": np.arange(4)})
    swapped = whole.select(["y", "x"])
    assert [c.name for c in swapped.channels] == ["y", "x"]
    np.testing.assert_array_equal(swapped.observations, whole.observations[:, ::-1])
    np.testing.assert_array_equal(swapped.actions, whole.actions)
    assert swapped.labels is whole.labels
    with pytest.raises(ValueError, match=r"unknown channel \['z'\]; this episode has \['x', 'y'\]\. Check"):
        whole.select(["x", "z"])


# --- padding ------------------------------------------------------------------------------------------------


def test_padding_keeps_every_value_in_its_place():
    episodes = [log(3), log(5, dt=0.2, observations=changed(log(5).observations, (2, 1), np.nan)), log(0)]
    batch = pad(episodes, length=8)
    assert batch.observations.shape == (3, 8, 2)
    for i, e in enumerate(episodes):
        rows = e.steps + 1
        np.testing.assert_array_equal(batch.valid[i], np.arange(8) < rows)
        np.testing.assert_array_equal(batch.observed[i, :rows], e.observed)
        np.testing.assert_array_equal(batch.observations[i, :rows], np.nan_to_num(e.observations))
        np.testing.assert_array_equal(batch.actions[i, 1:rows], e.actions)  # row t leads to observation t
        for rest in (batch.observations[i, rows:], batch.observed[i, rows:], batch.actions[i, rows:]):
            assert not np.asarray(rest).any()
    np.testing.assert_array_equal(batch.actions[:, 0], 0.0)
    np.testing.assert_array_equal(batch.dt, [0.1, 0.2, 0.1])
    assert jnp.isfinite(batch.observations).all()
    assert pad(episodes).valid.shape == (3, 6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_padding_gives_the_dtype_asked_for(dtype):
    batch = pad([log()], dtype=dtype)
    assert batch.observations.dtype == batch.actions.dtype == batch.dt.dtype == dtype


def test_padding_refuses():
    with pytest.raises(ValueError, match="no episodes given; expected at least one"):
        pad([])
    with pytest.raises(ValueError, match=r"differ in their channels: \['x'\] .* beside \['x', 'y'\].*select"):
        pad([log(), log().select(["x"])])
    with pytest.raises(ValueError, match=r"with 2 inputs beside .* with 1"):
        pad([log(), log(actions=np.zeros((3, 2)))])
    with pytest.raises(ValueError, match=r"length is 3; the longest episode has 4 rows\. Give at least"):
        pad([log()], length=3)


# --- occlusion ----------------------------------------------------------------------------------------------

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


def test_channel_groups_are_numbered_in_order():
    channels = tuple(Channel(n, g) for n, g in (("a", "object"), ("b", "gripper"), ("c", "object"), ("d", "arm")))
    np.testing.assert_array_equal(channel_groups(log(observations=np.zeros((4, 4)), channels=channels)), [0, 1, 0, 2])
