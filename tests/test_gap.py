"""What a mode kernel sees of reach, against plain arithmetic on hands and bodies in metres."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from known_logs import BODIES, hand_log
from vhydro.gap import REACH, GapDrive, Geometry
from vhydro.learning.contact import geometry_of, scales_of
from vhydro.views import contact_view


def test_features_are_gaps_in_metres_before_and_after_a_step():
    """The features of standardised `(z, a)` are those of the raw log, whatever its units and scales."""
    logs = [hand_log(seed) for seed in range(3)]
    view = contact_view(logs)
    seen = [view(log) for log in logs]
    scales = scales_of(seen)
    geometry = geometry_of(seen, scales, BODIES)
    z = (seen[0].observations[:-1] - scales.shift) / scales.floor
    got = np.asarray(geometry(jnp.asarray(np.concatenate([z, seen[0].actions / scales.action], 1).T, jnp.float32)))
    raw = logs[0].observations
    hand, bodies, width = raw[:, :3], raw[:, 5:].reshape(-1, 2, 3), np.abs(raw[:, 3:5]).mean(1)
    before = np.linalg.norm(hand[:-1, None] - bodies[:-1], axis=2).T
    after = np.linalg.norm(hand[1:, None] - bodies[:-1], axis=2).T  # a body stays where it is until it is touched
    moved = np.concatenate([np.diff(log.observations[:, :3], axis=0) for log in logs])
    fast = np.sqrt((moved**2).sum(1).mean())
    np.testing.assert_allclose(got[:2], np.tanh(after / REACH), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got[2:4], np.tanh((after - before) / fast), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got[4:], [width[1:] / 0.04, np.diff(width) / 0.01], rtol=1e-4, atol=1e-5)


def test_a_gap_of_nothing_has_a_gradient():
    geometry = Geometry(*(jnp.zeros(s) for s in ((1, 3, 4), (1, 3, 4), (1, 3), (0, 4))), jnp.ones(()))
    geometry = replace(geometry, before=geometry.before.at[0, 0, 0].set(1.0), after=geometry.after.at[0, 0, 0].set(1.0))
    slope = jax.jacobian(geometry)(jnp.zeros(4))
    assert np.isfinite(slope).all()


def test_what_gaps_add_to_every_logit():
    random = np.random.default_rng(0)
    parts = [random.normal(size=s) for s in ((2, 3, 5), (2, 3, 5), (2, 3), (1, 5))]
    geometry, weight = Geometry(*map(jnp.asarray, parts), jnp.asarray(0.3)), random.normal(size=(3, 5))
    x = jnp.asarray(random.normal(size=(5, 7)))
    np.testing.assert_allclose(GapDrive(geometry, jnp.asarray(weight))(x), weight @ np.asarray(geometry(x)), rtol=1e-6)
    # One particle and many are the same.
    np.testing.assert_allclose(geometry(x[:, 3]), np.asarray(geometry(x))[:, 3], rtol=1e-6)
