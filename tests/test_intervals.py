"""Intervals of a real filter's belief: Gaussian ones by hand, calibrated ones that cover, and clear refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from vhydro.calibration import LEVELS, Calibration
from vhydro.emission import NetworkEmission
from vhydro.episodes import Channel, episode
from vhydro.filter import bootstrap, filter_episodes
from vhydro.intervals import calibrated, intervals, reading_moments
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel
from vhydro.network import Network

CHANNELS = (Channel("cube.x", "object"), Channel("hand.x", "end_effector"))
SHIFT, SCALE = np.array([5.0, -1.0]), np.array([2.0, 0.5])


def walking(emission):
    """Two coordinates that wander on their own; the model takes their steps for a third of what they are."""
    flow = linear_flow(np.eye(2)[None] * 0.9, dtype=jnp.float64)
    names = [c.name for c in CHANNELS]
    kernel = mode_kernel(1, dtype=jnp.float64)
    return hybrid_model(kernel, flow, emission, noise=0.1, shift=SHIFT, scale=SCALE, channels=names)


@pytest.fixture(scope="module")
def model():
    return walking(axis_emission(2, (1, 0), noise=0.1, dtype=jnp.float64))


def walks(count, seed, rows=30):
    rng, out = np.random.default_rng(seed), []
    for _ in range(count):
        z = [rng.normal(size=2)]
        for _ in range(rows - 1):
            z.append(0.9 * z[-1] + 0.3 * rng.normal(size=2))
        reading = np.array(z)[:, ::-1] + 0.1 * rng.normal(size=(rows, 2))
        out.append(episode(SHIFT + SCALE * reading, dt=0.1, channels=CHANNELS))
    return out


def believed(model, logs, seed=0):
    return filter_episodes(model, logs, key=jax.random.key(seed), proposal=None, settings=bootstrap(particles=16))


def hidden_in_bursts(logs):
    """The logs with bursts of 5 rows hidden, channel by channel: half of every other log, a third of the rest."""
    block = (np.arange(30)[:, None] // 5 + np.arange(2)) % 6
    gone = [block % (2 + i % 2) == 1 for i in range(len(logs))]
    return [replace(log, observations=np.where(g, np.nan, log.observations)) for log, g in zip(logs, gone, strict=True)]


@pytest.fixture(scope="module")
def validation(model):
    truth = walks(20, 0)
    seen = hidden_in_bursts(truth)
    return truth, seen, believed(model, seen)


@pytest.fixture(scope="module")
def fitted(model, validation):
    return calibrated(model, *validation)


def inside(truth, ends):
    return (ends[0] <= truth.observations) & (truth.observations <= ends[1])


def test_the_readings_moments_by_hand(model, validation):
    belief = validation[2][0].moments
    mean, sd = reading_moments(model, validation[2][0])
    np.testing.assert_allclose(mean, belief.mean[:, ::-1], rtol=1e-12)  # channel 0 reads coordinate 1
    np.testing.assert_allclose(sd, np.sqrt(belief.variance[:, ::-1] + 0.01), rtol=1e-12)
    mixing = walking(linear_emission([[3.0, 4.0], [0.0, 1.0]], noise=0.1, offset=[1.0, 0.0], dtype=jnp.float64))
    mean, sd = reading_moments(mixing, validation[2][0])
    np.testing.assert_allclose(mean[:, 0], 3 * belief.mean[:, 0] + 4 * belief.mean[:, 1] + 1, rtol=1e-12)
    np.testing.assert_allclose(sd[:, 0] ** 2, 9 * belief.variance[:, 0] + 16 * belief.variance[:, 1] + 0.01)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.99])
def test_the_beliefs_own_interval_is_gaussian(model, validation, level):
    low, high = intervals(model, validation[1][0], validation[2][0], level)
    mean, sd = reading_moments(model, validation[2][0])
    np.testing.assert_allclose((low + high) / 2, mean * SCALE + SHIFT)
    np.testing.assert_allclose((high - low) / 2, norm.ppf((1 + level) / 2) * sd * SCALE)


def test_calibration_turns_an_overconfident_belief_into_one_that_covers(model, fitted):
    truth = walks(20, 1)
    seen = hidden_in_bursts(truth)
    out = believed(model, seen, seed=4)

    def coverage(asked):
        hits = [inside(t, intervals(fitted, s, o, calibrated=asked)) for t, s, o in zip(truth, seen, out, strict=True)]
        return np.array([h[~s.observed].mean() for h, s in zip(hits, seen, strict=True)])  # of each episode

    before, after = coverage(False), coverage(True)
    assert before.mean() < 0.6
    # Episodes are the independent draws, in the calibration as in the test: two samples of 20.
    assert abs(after.mean() - 0.9) < 4 * np.sqrt(2) * after.std(ddof=1) / np.sqrt(20)


def test_the_calibration_says_how_many_episodes_each_cell_rests_on(fitted):
    """Half of the 20 logs are hidden by a third and half by a half: 10 of each band, in both groups and states."""
    episodes = np.zeros((2, 5, 2), int)
    episodes[:, 1:3] = 10
    np.testing.assert_array_equal(fitted.calibration.episodes, episodes)
    np.testing.assert_allclose(fitted.calibration.ranked_up_to(), np.where(episodes > 0, 10 / 11, 0))


def test_an_episode_that_comes_twice_is_one(model, fitted, validation):
    again = calibrated(model, *(list(part) * 2 for part in validation)).calibration
    np.testing.assert_array_equal(again.episodes, fitted.calibration.episodes)
    np.testing.assert_allclose(again.factors, fitted.calibration.factors, rtol=1e-12)


def test_only_intervals_that_are_asked_for_are_calibrated(model, fitted, validation):
    log, out = validation[1][0], validation[2][0]
    np.testing.assert_array_equal(intervals(model, log, out), intervals(fitted, log, out))
    assert (np.diff([intervals(fitted, log, out, calibrated=c) for c in (False, True)], axis=0) != 0).all()


def test_levels_between_are_interpolated(fitted, validation):
    log, out = validation[1][0], validation[2][0]

    def width(level):
        low, high = intervals(fitted, log, out, level, calibrated=True)
        return high - low

    np.testing.assert_allclose(width(0.8125), 0.75 * width(0.8) + 0.25 * width(0.85), rtol=1e-9)
    group = np.asarray(fitted.calibration.groups)
    _, sd = reading_moments(fitted, out)
    hidden = ~log.observed
    band = np.searchsorted(fitted.calibration.edges, hidden.mean(0), "right")
    factors = np.asarray(fitted.calibration.factors)[group, band, hidden.astype(int)]
    for level, column in ((LEVELS[0], 0), (0.9, 17), (LEVELS[-1], 18)):
        np.testing.assert_allclose(width(float(level)), 2 * factors[..., column] * sd * SCALE)


def test_a_reading_the_log_never_held_has_no_score(model, fitted, validation):
    truth, seen, out = validation
    factors = calibrated(model, seen, seen, out).calibration.factors
    np.testing.assert_allclose(factors[:, :, 1], np.broadcast_to(norm.ppf((1 + LEVELS) / 2), (2, 5, 19)))
    np.testing.assert_array_equal(factors[:, :, 0], fitted.calibration.factors[:, :, 0])
    nothing = [replace(t, observations=np.full_like(t.observations, np.nan)) for t in truth]
    with pytest.raises(ValueError, match="hold no reading"):
        calibrated(model, nothing, nothing, out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, s, o: ([], [], []), "0 episodes before occlusion, 0 after it and 0 filtered"),
        (lambda t, s, o: (t, s[:-1], o), "20 episodes before occlusion, 19 after it"),
        (lambda t, s, o: (s, t, o), "episode 0 shows readings after occlusion"),
        (lambda t, s, o: (t[1:], s[:-1], o[:-1]), "episode 0 shows readings"),
        (lambda t, s, o: (walks(1, 0, rows=9), s[:1], o[:1]), "8 steps before occlusion and 29 after"),
        (lambda t, s, o: (t[:1], s[:1], [shortened(o[0])]), r"rows \(9,\), the episode 30"),
        (lambda t, s, o: ([t[0].select(["hand.x", "cube.x"])], s[:1], o[:1]), "Pick and order"),
        (lambda t, s, o: ([regrouped(t[0])], s[:1], o[:1]), "other groups"),
    ],
)
def test_what_does_not_belong_together_is_refused(model, validation, change, words):
    with pytest.raises(ValueError, match=words):
        calibrated(model, *change(*validation))


def shortened(out):
    return out._replace(moments=jax.tree.map(lambda x: x[:9], out.moments))


def regrouped(log):
    return replace(log, channels=tuple(replace(c, group="scene") for c in log.channels))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, float("nan")])
def test_a_level_that_is_no_share_is_refused(model, validation, level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        intervals(model, validation[1][0], validation[2][0], level)


def test_what_cannot_be_calibrated_is_refused(model, fitted, validation):
    truth, seen, out = validation
    with pytest.raises(ValueError, match="holds no calibration"):
        intervals(model, seen[0], out[0], calibrated=True)
    for level in (0.04, 0.96):
        with pytest.raises(ValueError, match=r"go from 0.05 to 0.95"):
            intervals(fitted, seen[0], out[0], level, calibrated=True)
    other = replace(model, calibration=Calibration(fitted.calibration.factors, (0, 1, 0)))
    with pytest.raises(ValueError, match="of 3 channels, the model has 2"):
        intervals(other, seen[0], out[0], calibrated=True)
    with pytest.raises(ValueError, match=r"rows \(30,\), the episode 9"):
        intervals(model, walks(1, 0, rows=9)[0], out[0])
    images = walking(NetworkEmission(Network((jnp.eye(2),), (jnp.zeros(2),)), jnp.zeros(2), 1e-4))
    with pytest.raises(ValueError, match=r"NetworkEmission; expected a LinearEmission.*history=True"):
        calibrated(images, truth, seen, out)
