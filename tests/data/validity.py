"""What every episode must keep, whichever file it came from."""

import numpy as np

from vhydro.episodes import Episode

GROUPS = {"object", "end_effector", "gripper", "joints", "scene", "action"}


def assert_valid(episode: Episode) -> None:
    """Fails unless the parts of an episode fit together and hold what they may hold."""
    rows = episode.steps + 1
    assert episode.observations.shape == (rows, len(episode.channels))
    assert episode.observations.dtype.kind == "f"
    assert episode.actions.shape == (episode.steps, len(episode.inputs))
    assert not np.isinf(episode.observations).any()
    assert np.isfinite(episode.actions).all()
    assert np.isfinite(episode.dt)
    assert episode.dt > 0
    names = [c.name for c in episode.channels]
    assert len(set(names)) == len(names)
    assert all(names)
    for contact in episode.contacts:
        parts = [contact.peak, contact.normal] + ([] if contact.tangential is None else [contact.tangential])
        for values in parts:
            assert values.shape == (rows,)
            assert np.isfinite(values).all()
            assert values[0] == 0
    assert all(len(v) == rows for v in episode.labels.values())
    assert all(isinstance(v, (str, float, bool)) for v in episode.info.values())
    assert episode.source


def assert_same(one: Episode, other: Episode) -> None:
    """Fails unless two episodes are equal to the last bit, hidden values included."""
    assert (one.channels, one.inputs, one.dt, one.info) == (other.channels, other.inputs, other.dt, other.info)
    np.testing.assert_array_equal(one.observations, other.observations)
    np.testing.assert_array_equal(one.actions, other.actions)
    assert one.observations.dtype == other.observations.dtype
    assert one.labels.keys() == other.labels.keys()
    for name in one.labels:
        np.testing.assert_array_equal(one.labels[name], other.labels[name])
    assert [c.bodies for c in one.contacts] == [c.bodies for c in other.contacts]
    for a, b in zip(one.contacts, other.contacts, strict=True):
        np.testing.assert_array_equal(a.peak, b.peak)
        np.testing.assert_array_equal(a.normal, b.normal)
