"""Logs: what is refused and with which words, and how many become one batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.episodes import Channel, Contact, Episode, episode, pad

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


# --- names of actions, contacts ------------------------------------------------------------------------------


def test_actions_are_named():
    assert [c.name for c in log().inputs] == ["a0"]
    assert log(inputs=(Channel("force", "action", "N"),)).inputs[0].unit == "N"
    with pytest.raises(ValueError, match="2 input names for 1 action columns"):
        log(inputs=(Channel("a"), Channel("b")))


def test_contacts_have_a_row_for_each_observation():
    force = np.zeros(4)
    assert log(contacts=(Contact(("a", "b"), force, force),)).contacts[0].name == "a__b"
    with pytest.raises(ValueError, match="contact 'a__b' has 3 rows; expected 4"):
        log(contacts=(Contact(("a", "b"), force, force, np.zeros(3)),))


def test_columns_are_found_by_group_body_and_quantity():
    names = (("cube.x", "object"), ("cube.vx", "object"), ("tcp.x", "end_effector"))
    e = log(observations=np.zeros((4, 3)), channels=tuple(Channel(n, g) for n, g in names))
    assert e.columns(group="object") == [0, 1]
    assert e.columns(body="tcp") == [2]
    assert e.columns(quantities=("x", "y")) == [0, 2]
    assert e.columns(body="peg") == []


def test_one_channel_may_be_selected_by_its_name():
    assert [c.name for c in log().select("y").channels] == ["y"]


def test_an_episode_prints_in_one_line():
    assert repr(log(source="a.h5:traj_0")) == "Episode(4 rows of 2 channels, 1 inputs, dt 0.1 s, a.h5:traj_0)"
