"""The kinematic proxy: its score, its thresholds, and how its constants are chosen."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from vhydro.episodes import Channel, Episode
from vhydro.modes.metrics import rand_index
from vhydro.modes.readings import FREE, IMPACT, SUSTAINED
from vhydro_audits.labels import ProxyLabeller, fit_proxy_labeller
from vhydro_audits.labels.proxy import differences, otsu, score

ROWS = 90


def pushing(seed=0):
    """The hand moves all the time; the object rests, is struck at row 30, and is pushed to the end."""
    rng = np.random.default_rng(seed)
    speed = np.where(np.arange(ROWS) < 30, 0.0, 0.01) + np.where(
        (np.arange(ROWS) >= 30) & (np.arange(ROWS) < 34), 0.04, 0
    )
    place = np.cumsum(speed)[:, None] * np.array([[1.0, 0, 0]])
    hand = 0.01 * np.arange(ROWS)[:, None] * np.array([[1.0, 0, 0]]) + 1e-4 * rng.normal(size=(ROWS, 3))
    channels = tuple(Channel(f"{b}.{q}", g) for b, g in (("cube", "object"), ("tcp", "end_effector")) for q in "xyz")
    truth = np.where(speed == 0, FREE, np.where(speed > 0.02, IMPACT, SUSTAINED))
    actions = rng.normal(size=(ROWS - 1, 2))
    return Episode(np.concatenate([place, hand], axis=1), actions, 0.05, channels, labels={"regime": truth})


def test_the_score_is_the_papers():
    log, labeller = pushing(), ProxyLabeller(weights=(1.0, 0.5, 0.2), epsilon=1e-3, window=1)
    expected = np.zeros(ROWS)
    cube, hand = log.observations[:, :3], log.observations[:, 3:]
    for weight, values in ((1.0, cube), (0.5, hand), (0.2, np.concatenate([log.actions[:1], log.actions]))):
        step = np.linalg.norm(values[1:] - values[:-1], axis=1)
        step = np.concatenate([step[:1], step])
        expected += weight * step / (np.median(np.abs(step - np.median(step))) + 1e-3)
    np.testing.assert_allclose(score(log, labeller), expected)


def test_smoothing_is_a_centred_mean():
    log = pushing()
    raw, smooth = score(log, ProxyLabeller(window=1)), score(log, ProxyLabeller(window=5))
    assert len(smooth) == ROWS
    np.testing.assert_allclose(smooth[10], raw[8:13].mean())


def test_thresholds_cut_in_three():
    labeller = ProxyLabeller(thresholds=(1.0, 2.0), minimum_run=1)
    np.testing.assert_array_equal(labeller.regimes(np.array([0.9, 1.0, 1.9, 2.0, 5.0])), [FREE, 2, 2, IMPACT, IMPACT])


def test_constants_chosen_on_truth_agree_with_it():
    labeller = fit_proxy_labeller([pushing(s) for s in range(3)])
    assert labeller.criterion == "agreement with regime"
    held_out = pushing(9)
    found = labeller(held_out).labels["proxy"]
    assert rand_index(found, held_out.labels["regime"]) > 0.9
    plain = ProxyLabeller()(held_out).labels["proxy"]
    assert rand_index(plain, held_out.labels["regime"]) < 0.5


def test_without_truth_otsu_decides():
    bare = [replace(pushing(s), labels={}) for s in range(3)]
    labeller = fit_proxy_labeller(bare)
    assert labeller.criterion == "two-level Otsu"
    scores = np.concatenate([score(e, labeller) for e in bare])
    assert scores.min() < labeller.thresholds[0] < labeller.thresholds[1] < scores.max()


def test_otsu_finds_the_gaps():
    rng = np.random.default_rng(0)
    scores = np.exp(np.concatenate([rng.normal(m, 0.1, 300) for m in (0.0, 2.0, 5.0)]))
    low, high = np.log(otsu(scores))
    assert 0.3 < low < 1.7
    assert 2.3 < high < 4.7


def test_the_rand_index_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.integers(0, 3, 50), rng.integers(0, 4, 50)
        assert rand_index(a, b) == pytest.approx(adjusted_rand_score(a, b))
    assert rand_index(np.zeros(5), np.zeros(5)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": (2.0, 1.0)}, "expected the first not above the second"),
        ({"weights": (0.0, 0.0, 0.0)}, "expected none below 0 and one above"),
        ({"window": 0}, "window 0"),
    ],
)
def test_bad_constants_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ProxyLabeller(**options)


def test_what_cannot_be_labelled_is_refused():
    log = pushing()
    hidden = log.observations.copy()
    hidden[5, 0] = np.nan
    with pytest.raises(ValueError, match="partly hidden; label an episode before it is occluded"):
        differences(replace(log, observations=hidden))
    with pytest.raises(ValueError, match="no positions of group 'object'.*groups \\['end_effector'\\]"):
        differences(log.select(["tcp.x", "tcp.y", "tcp.z"]))
    with pytest.raises(ValueError, match="1 of 2 validation episodes have the label 'regime'"):
        fit_proxy_labeller([log, replace(log, labels={})])
    with pytest.raises(ValueError, match="no validation episodes"):
        fit_proxy_labeller([])
