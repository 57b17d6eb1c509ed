"""Backward simulation against the exact smoothing law, summed over all mode paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import linear
from vhydro.episodes import episode
from vhydro.filter import FilterSettings, filter
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.smoother import smooth

pytestmark = pytest.mark.computes
F = np.array([[[0.9, 0.3], [-0.3, 0.9]], [[0.5, 0.0], [0.2, 0.6]]])
OFFSET = np.array([[0.3, 0.0], [-0.6, 0.2]])
NOISE = np.array([[0.4, 0.3], [0.3, 0.5]])
START = np.array([0.7, 0.3])
SENSOR = 0.5


def switching(modes=2, feasible=None):
    """A model of two coordinates of which one is seen, and the same system in the oracle's words."""
    start = START[:modes] / START[:modes].sum()
    model = hybrid_model(
        mode_kernel(modes, stay=0.8, feasible=feasible, dtype=jnp.float64),
        linear_flow(F[:modes], OFFSET[:modes], dtype=jnp.float64),
        axis_emission(2, (1,), noise=SENSOR, dtype=jnp.float64),
        noise=NOISE[:modes],
        start_mode=start,
        start_scale=0.8,
    )
    table = jax.nn.softmax(jnp.where(model.kernel.feasible, model.kernel.logits, -jnp.inf), axis=-1)
    begin = np.asarray(model.start().scale)
    system = linear.System(
        *(start, np.zeros((modes, 2)), begin[..., None] ** 2 * np.eye(2)),
        *(np.asarray(table), F[:modes], OFFSET[:modes], NOISE[:modes, :, None] ** 2 * np.eye(2)),
        *(np.eye(2)[[1]], np.zeros(1), np.array([[SENSOR**2]])),
    )
    return model, system


def seen(system, rows, seed):
    """A log of the system with hidden rows."""
    rng = np.random.default_rng(seed)
    Y = linear.hide(linear.simulate(system, rows - 1, rng)[2], 0.2, rng)
    Y[rows // 2] = np.nan
    return Y


def smoothed_runs(model, log, settings, runs, trajectories):
    """Independent runs of filter and smoother, stacked."""

    def one(key):
        a, b = jax.random.split(key)
        forward = filter(model, log, key=a, settings=settings)
        return smooth(model, log, forward, key=b, trajectories=trajectories)

    return jax.tree.map(lambda *xs: np.stack(xs), *(one(k) for k in jax.random.split(jax.random.key(0), runs)))


def assert_exact(got, expected):
    """The mean over runs is within 4 standard errors; the bias, of order 1/N, is far below them."""
    error = got.std(0, ddof=1) / np.sqrt(len(got))
    assert error.max() < 0.06, "too noisy to show anything"
    np.testing.assert_array_less(np.abs(got.mean(0) - expected), 4 * error + 1e-12)


@pytest.mark.parametrize(
    "options",
    [{"engine": "mixture"}, {"exact_modes": True, "ess_threshold": 1.0}, {"engine": "gaussian"}],
    ids=["sampled", "exact-modes", "gaussian"],
)
def test_smoothed_beliefs_are_the_exact_ones(options):
    model, system = switching()
    Y = seen(system, 8, seed=2)
    exact = linear.switching_posterior(*system, Y)
    assert np.abs(exact.smoothed_mode - exact.filtered_mode).max() > 0.1  # or smoothing would show nothing
    out = smoothed_runs(model, episode(Y, dt=0.1), FilterSettings(particles=256, history=True, **options), 40, 128)
    assert_exact(out.mode, exact.smoothed_mode)
    assert_exact(out.mean, exact.smoothed_mean)
    assert out.trajectories.mode.shape == (40, 8, 128)
    assert out.trajectories.z.shape == (40, 8, 2, 128)
    filtered = out.moments.mode.mean(0)  # what the filter alone says is kept beside it
    assert np.abs(filtered - exact.filtered_mode).max() < np.abs(filtered - exact.smoothed_mode).max()


def test_a_log_without_padding_is_smoothed_to_its_end():
    """Sixty-four rows are what logs are padded to; one mode is the Rauch–Tung–Striebel smoother."""
    model, system = switching(modes=1)
    Y = seen(system, 64, seed=4)
    out = smoothed_runs(model, episode(Y, dt=0.1), FilterSettings(particles=256, history=True), 40, 128)
    assert_exact(out.mean, linear.switching_posterior(*system, Y).smoothed_mean)


def test_forbidden_moves_are_never_made():
    model, system = switching(feasible=[[True, True], [False, True]])
    Y = seen(system, 12, seed=3)
    out = smoothed_runs(model, episode(Y, dt=0.1), FilterSettings(particles=256, history=True), 40, 128)
    assert (np.diff(out.trajectories.mode, axis=1) >= 0).all()
    assert_exact(out.mode, linear.switching_posterior(*system, Y).smoothed_mode)


def test_the_last_row_is_the_filters():
    model, system = switching()
    log = episode(seen(system, 8, seed=2), dt=0.1)
    settings = FilterSettings(particles=256, history=True, engine="mixture")
    forward = filter(model, log, key=jax.random.key(1), settings=settings)
    out = smooth(model, log, forward, key=jax.random.key(2), trajectories=4000)
    drawn = {tuple(point) for point in out.trajectories.z[-1].T.tolist()}
    assert drawn <= {tuple(point) for point in forward.final.z.T.tolist()}
    believed = forward.moments
    error = np.sqrt(believed.mode[-1].prod() / 4000)
    np.testing.assert_allclose(out.mode[-1], believed.mode[-1], atol=4 * error)
    np.testing.assert_allclose(out.mean[-1], believed.mean[-1], atol=4 * np.sqrt(believed.variance[-1].max() / 4000))


def test_misuse_is_refused():
    model, system = switching()
    log = episode(seen(system, 8, seed=2), dt=0.1)
    key = jax.random.key(0)
    kept = filter(model, log, key=key, settings=FilterSettings(particles=8, history=True))
    for given, forward, options, message in (
        (log, kept._replace(history=None), {}, r"kept no history; run it with FilterSettings\(history=True\)"),
        (log, kept, {"trajectories": 0}, "trajectories is 0; expected at least 1"),
        (episode(np.zeros((5, 1)), dt=0.1), kept, {}, "history has 8 rows, the episode 5"),
        (episode(np.zeros((8, 1)), dt=0.1, channels=["x"]), kept, {}, r"channels \['x'\], the model expects \['y0'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            smooth(model, given, forward, key=key, **options)
