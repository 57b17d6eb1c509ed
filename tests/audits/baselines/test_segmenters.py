"""Segmenting peers: each finds the modes of an easy series, repeats itself, and makes nothing up without evidence."""

import logging
import sys
from functools import cache
from importlib import import_module

import numpy as np
import pytest

from vhydro.modes import adjusted_rand, change_points
from vhydro_audits.baselines.segmenters import ar_hmm, changes, gaussian_hmm, hdp_hmm, slds

pytest.importorskip("hmmlearn", reason="hmmlearn is not installed (extra `peers`)")
pytest.importorskip("ruptures", reason="ruptures is not installed (extra `peers`)")
switching = import_module("vhydro_audits.baselines.switching")

TRAIN = 10
LENGTHS = (60, 45, 80, 52, 71, 66, 90, 48, 75, 63, 55, 84, 40, 70)  # of all episodes, the last four for testing
TURNS = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in (0.3, -0.7, 1.6)])


def ruptures_with_counts(train, test, modes, *, seed):
    return changes(train, test, modes, [0 if len(x) == 1 else 2 for x in test], seed=seed)


PEERS = (gaussian_hmm, ar_hmm, slds, ruptures_with_counts)


def mode_paths(rng: np.random.Generator, modes: int) -> list[np.ndarray]:
    """Paths of two or three runs, none shorter than 10 rows."""
    out = []
    for rows in LENGTHS:
        ends = np.sort(rng.choice(np.arange(10, rows - 10, 12), size=2, replace=False))
        runs = (rng.integers(modes) + np.cumsum(rng.integers(1, modes, size=3))) % modes
        out.append(np.repeat(runs, np.diff(ends, prepend=0, append=rows)))
    return out


@cache
def levels() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Modes that differ in the mean of noisy features, one of which is constant."""
    rng = np.random.default_rng(1)
    paths, means = mode_paths(rng, 3), 3 * rng.normal(size=(3, 4))
    means[:, 3] = 7.0
    return [means[z] + 0.5 * rng.normal(size=(len(z), 4)) * [1, 1, 1, 0] for z in paths], paths


def turning(obscured: float = 0.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Modes that differ only in how fast the state turns: the levels are the same in all."""
    rng = np.random.default_rng(2)
    paths, out = mode_paths(rng, 3), []
    for z in paths:
        x = [rng.normal(size=2)]
        for mode in z[1:]:
            x.append(TURNS[mode] @ x[-1] / max(1.0, float(np.linalg.norm(x[-1]))) + 0.1 * rng.normal(size=2))
        out.append(np.array(x) + obscured * rng.normal(size=(len(z), 2)))
    return out, paths


def agreement(found: list[np.ndarray], paths: list[np.ndarray]) -> float:
    assert [len(z) for z in found] == [len(z) for z in paths[TRAIN:]]
    return adjusted_rand(np.concatenate(found), np.concatenate(paths[TRAIN:]))


def test_gaussian_hmm_finds_levels():
    features, paths = levels()
    assert agreement(gaussian_hmm(features[:TRAIN], features[TRAIN:], 3, seed=0), paths) > 0.95


def test_ruptures_finds_levels_with_just_the_changes_asked_for():
    features, paths = levels()
    found = changes(features[:TRAIN], features[TRAIN:], 3, [len(change_points(z)) for z in paths[TRAIN:]], seed=0)
    assert agreement(found, paths) > 0.95
    counts = [3, 0, 9, 1]
    found = changes(features[:TRAIN], features[TRAIN:], 3, counts, seed=0)
    assert [len(change_points(z)) for z in found] == counts


def test_ruptures_finds_levels_with_a_penalty():
    features, paths = levels()
    assert agreement(changes(features[:TRAIN], features[TRAIN:], 3, None, seed=0, penalty=2.0), paths) > 0.95


def test_ruptures_makes_up_no_modes_where_nothing_changes():
    features, _ = levels()
    (found,) = changes(features[:TRAIN], [np.ones((12, 4))], 3, [3], seed=0)
    assert np.array_equal(found, np.zeros(12))


@pytest.mark.parametrize(("peer", "noise"), [(ar_hmm, 0.0), (slds, 0.0), (slds, 0.05)])
def test_dynamics_are_told_apart_where_levels_are_the_same(peer, noise):
    features, paths = turning(noise)
    assert agreement(peer(features[:TRAIN], features[TRAIN:], 3, seed=0), paths) > 0.95


def test_levels_alone_do_not_tell_dynamics_apart():
    features, paths = turning()
    assert agreement(gaussian_hmm(features[:3], features[TRAIN:], 3, seed=0), paths) < 0.5


@pytest.mark.parametrize("peer", [ar_hmm, slds])
def test_modes_that_differ_in_their_response_to_inputs(peer):
    rng = np.random.default_rng(3)
    paths = mode_paths(rng, 2)
    inputs = [rng.normal(size=(len(z) - 1, 1)) for z in paths]
    steps = [np.vstack([[[0.0]], u * (1 - 2 * z[1:, None])]) for u, z in zip(inputs, paths, strict=True)]
    features = [x.cumsum(0) + 0.1 * rng.normal(size=x.shape) for x in steps]
    given = (inputs[:TRAIN], inputs[TRAIN:])
    assert agreement(peer(features[:TRAIN], features[TRAIN:], 2, seed=0, inputs=given), paths) > 0.95
    assert agreement(peer(features[:3], features[TRAIN:], 2, seed=0), paths) < 0.5


@pytest.mark.parametrize("peer", PEERS)
def test_the_same_seed_gives_the_same_paths_and_leaves_logging_alone(peer):
    features, _ = levels()
    before = logging.getLogger("hmmlearn").level
    first, again = (peer(features[:4], features[TRAIN:], 3, seed=5) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert logging.getLogger("hmmlearn").level == before


@pytest.mark.parametrize("peer", [gaussian_hmm, ruptures_with_counts])
def test_units_do_not_matter(peer):
    features, _ = levels()
    scaled = [x * [1e-3, 1.0, 1e4, 1.0] + 5.0 for x in features]
    first, other = (peer(x[:TRAIN], x[TRAIN:], 3, seed=0) for x in (features, scaled))
    assert adjusted_rand(np.concatenate(first), np.concatenate(other)) > 0.999


@pytest.mark.parametrize("peer", PEERS)
def test_constant_features_give_one_mode(peer):
    same = [np.full((rows, 3), 0.1) for rows in LENGTHS]
    found = peer(same[:TRAIN], same[TRAIN:], 3, seed=0)
    assert all(np.array_equal(z, np.zeros(len(x))) for z, x in zip(found, same[TRAIN:], strict=True))


@pytest.mark.parametrize("peer", PEERS)
def test_episodes_of_one_row_and_rows_of_few_values(peer):
    features, _ = levels()
    test = [features[-1][:1], features[-2], features[-1][:1]]
    found = peer([features[0][:1], *features[1:4]], test, 3, seed=0)
    assert [len(z) for z in found] == [len(x) for x in test]
    switch = [np.repeat([[0.0], [1.0]], 20, axis=0), np.zeros((9, 1))]
    assert set(np.concatenate(peer(switch, switch, 3, seed=0))) <= {0, 1, 2}


@pytest.mark.parametrize("peer", [ar_hmm, slds])
def test_only_episodes_of_one_row(peer):
    features, _ = levels()
    single = [x[:1] for x in features]
    assert [len(z) for z in peer(features[:4], single[TRAIN:], 3, seed=0)] == [1] * 4
    assert all(np.array_equal(z, [0]) for z in peer(single[:TRAIN], single[TRAIN:], 3, seed=0))


def small_system():
    """A switching system of two modes and two latent coordinates, with rows and inputs that it did not make."""
    rng = np.random.default_rng(4)
    noise = np.stack([np.diag([0.3, 0.5]), [[0.4, 0.1], [0.1, 0.2]]])
    regression = switching.Regression(0.3 * rng.normal(size=(2, 4, 2)), noise)
    start = np.array([0.5, -1.0]), np.array([1.0, 2.0])
    chain, emission = switching.Chain(2), rng.normal(size=(3, 3))
    model = switching.Switching(chain, regression, emission, np.array([0.1, 0.2, 0.3]), start)
    return model, rng.normal(size=(5, 3)), rng.normal(size=(4, 1))


def test_with_uncertain_modes_the_state_is_where_the_average_log_density_is_highest():
    model, seen, inputs = small_system()
    shares = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    mean = switching.smoothed(model, switching.padded([seen], [inputs]), shares).means[0]

    def average(x: np.ndarray) -> float:
        missed, first = seen - x @ model.emission[:-1] - model.emission[-1], x[0] - model.start[0]
        seen_cost = np.sum(missed**2 / model.noise) + np.sum(first**2 / model.start[1])
        return float(np.sum(shares * model.regression(switching.pairs(x, inputs))) - 0.5 * seen_cost)

    for move in np.random.default_rng(5).normal(size=(6, *mean.shape)):
        up, down = average(mean + move), average(mean - move)
        assert up < average(mean)
        np.testing.assert_allclose(up, down, rtol=1e-9)  # quadratic, so even about its peak


def test_what_uncertain_rows_cost_is_the_average_over_them():
    """Against points one spread to either side along each axis: exact for what is quadratic."""
    regression, rng = small_system()[0].regression, np.random.default_rng(6)
    row, root = rng.normal(size=6), rng.normal(size=(6, 6))
    points = row + np.sqrt(6) * np.concatenate([root.T, -root.T])
    cost = regression.spread_cost((root @ root.T)[None])
    np.testing.assert_allclose(regression(row[None]) - cost, regression(points).mean(0, keepdims=True))


def test_the_state_of_a_switching_system_is_smoothed_as_by_conditioning_all_rows_at_once():
    """Against the dense joint Gaussian, where every pair of rows has one mode for certain."""
    model, seen, inputs = small_system()
    rows, latent, path = len(seen), 2, np.array([0, 1, 1, 0])
    data = switching.padded([seen[:1], seen], [inputs[:0], inputs])
    found = switching.smoothed(model, data, np.eye(2)[path])
    mean, spread = dense(model, seen, inputs, path)
    blocks = spread.reshape(rows, latent, rows, latent)
    np.testing.assert_allclose(found.means[1], mean.reshape(rows, latent), atol=1e-9)
    np.testing.assert_allclose(found.spreads[1], [blocks[t, :, t] for t in range(rows)], atol=1e-9)
    np.testing.assert_allclose(found.cross[1], [blocks[t, :, t + 1] for t in range(rows - 1)], atol=1e-9)
    alone, certain = dense(model, seen[:1], inputs[:0], path[:0])
    np.testing.assert_allclose(found.means[0, 0], alone, atol=1e-9)
    np.testing.assert_allclose(found.spreads[0, 0], certain, atol=1e-9)


def dense(model, seen: np.ndarray, inputs: np.ndarray, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of all states, flat, given all rows: the prior built step by step, then conditioned."""
    latent, rows = len(model.start[0]), len(seen)
    mean, spread = model.start[0], np.diag(model.start[1])
    for t, mode in enumerate(path):
        weights = model.regression.weights[mode]
        step = np.zeros((latent, len(mean)))
        step[:, -latent:] = np.eye(latent) + weights[:latent].T
        mean = np.concatenate([mean, step @ mean + weights[latent] + inputs[t] @ weights[latent + 1 :]])
        across = spread @ step.T
        spread = np.block([[spread, across], [across.T, step @ across + model.regression.noise[mode]]])
    look = np.kron(np.eye(rows), model.emission[:-1].T)
    gain = spread @ look.T @ np.linalg.inv(look @ spread @ look.T + np.kron(np.eye(rows), np.diag(model.noise)))
    return mean + gain @ ((seen - model.emission[-1]).ravel() - look @ mean), spread - gain @ look @ spread


@pytest.mark.parametrize(
    ("peer", "package"), [(gaussian_hmm, "hmmlearn"), (ar_hmm, "hmmlearn"), (ruptures_with_counts, "ruptures")]
)
def test_a_missing_package_is_named(peer, package, monkeypatch):
    for name in [n for n in sys.modules if n.startswith((package + ".", "vhydro_audits.baselines.switching"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    features, _ = levels()
    with pytest.raises(ValueError, match=rf"{package} is not installed.*vhydro\[peers\]"):
        peer(features[:TRAIN], features[TRAIN:], 3, seed=0)


def test_bad_arguments_are_named():
    x = np.arange(8.0).reshape(4, 2)
    hidden = np.where(x == 3, np.nan, x)
    for problem, call in {
        "^0 modes": lambda: gaussian_hmm([x], [x], 0, seed=0),
        "0 test episodes": lambda: gaussian_hmm([x], [], 2, seed=0),
        "test episode 0 have 1 values that are not finite": lambda: gaussian_hmm([x], [hidden], 2, seed=0),
        r"training episode 1 have shape \(4, 1\)": lambda: ar_hmm([x, x[:, :1]], [x], 2, seed=0),
        "4 rows; expected at least 5": lambda: gaussian_hmm([x], [x], 5, seed=0),
        "3 pairs of rows; expected at least 4": lambda: slds([x], [x], 4, seed=0),
        r"training episodes have \[4\] rows; expected \[3\]": lambda: ar_hmm([x], [x], 2, seed=0, inputs=([x], [x])),
        "both or neither": lambda: changes([x], [x], 2, [1], seed=0, penalty=1.0),
        "penalty is -1.0": lambda: changes([x], [x], 2, None, seed=0, penalty=-1.0),
        "2 counts": lambda: changes([x], [x], 2, [1, 1], seed=0),
        "4 changes were asked for in test episode 0; expected 0 to 3": lambda: changes([x], [x], 2, [4], seed=0),
    }.items():
        with pytest.raises(ValueError, match=problem):
            call()


def test_the_bayesian_segmenter_finds_dynamics_and_their_number():
    features, paths = turning()
    found = hdp_hmm(features[:TRAIN], features[TRAIN:], seed=0)
    assert agreement(found, paths) > 0.9
    assert (np.bincount(np.concatenate(found)) > 20).sum() == 3
    again = hdp_hmm(features[:TRAIN], features[TRAIN:], seed=0)
    assert all((a == b).all() for a, b in zip(found, again, strict=True))


def test_the_bayesian_segmenter_makes_nothing_up():
    still = [np.ones((30, 2)) for _ in range(4)]
    assert not np.concatenate(hdp_hmm(still, still, seed=0)).any()
    short = [np.zeros((1, 2)), np.arange(40.0).reshape(20, 2)]
    assert [len(x) for x in hdp_hmm(short, short, seed=0)] == [1, 20]
