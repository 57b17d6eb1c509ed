"""Modes without labels: rules against motions made by hand, modes and law of a puck from its positions alone."""

import numpy as np
import pytest
from law_logs import puck, swing_problem, swinging

from vhydro.laws.chain import ChainConfig, chain, mode_order
from vhydro.laws.constants import constants
from vhydro.laws.form import Guard, form_of
from vhydro.laws.guards import labels
from vhydro.laws.proposals import ProposalConfig, segmentation_proposals
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig
from vhydro.laws.segmenting import Segmented, at_rest_samples, price_of_untold, ruled, segmented
from vhydro.laws.smoothing import Smooth
from vhydro.laws.tracks import Tracks, prepared
from vhydro_audits.laws_truth import matched, problem_of, true_law

PROBLEM = problem_of("puck")


@pytest.fixture(scope="module")
def blind() -> Tracks:
    recording = puck().recording
    return prepared(recording._replace(modes=np.full_like(recording.modes, 1 / 3)), PROBLEM)


@pytest.fixture(scope="module")
def found(blind) -> Segmented:
    return segmented(blind, PROBLEM, ProposalConfig(), 16, seed=0)


def made(velocity: np.ndarray, position: np.ndarray) -> Tracks:
    """Tracks of one episode with the given motion and an even belief in every mode."""
    q, v = position[None, :, None], velocity[None, :, None]
    even, sensor = np.full((1, len(velocity), 3), 1 / 3), np.array([1e-3])
    actions = np.zeros((1, len(velocity) - 1, 1))
    return Tracks(q, np.zeros_like(q), Smooth(q, v, np.zeros_like(q)), sensor, 10 * sensor, actions, even, 0.01)


# --- the switching regression -------------------------------------------------------------------------------


def test_one_mode_needs_no_regression():
    recording, problem = swinging(1e-3), swing_problem()
    nothing = np.zeros(recording.positions.shape[:2], bool)
    (weights,) = segmentation_proposals(prepared(recording, problem), problem, 1, nothing, ProposalConfig(), seed=0)
    assert weights.shape == recording.modes.shape
    assert (weights == 1).all()


def test_what_one_law_explains_least_is_proposed_as_it_is(blind):
    """The likeliest regressions may all have wandered off; where the walls push nothing else explains."""
    nothing = np.zeros(blind.modes.shape[:2], bool)
    proposed = segmentation_proposals(blind, PROBLEM, 3, nothing, ProposalConfig(kept=1), seed=0)
    assert len(proposed) == 1 + 3
    for weights, share in zip(proposed[1:], (0.03, 0.08, 0.2), strict=True):
        assert set(np.unique(weights)) == {0.0, 1.0}
        np.testing.assert_allclose(weights[..., 1:].sum(-1).mean(), share, rtol=0.1)


def test_stretches_that_no_rule_tells_have_a_price():
    """Modes drawn at random say nothing a law could be simulated with; past a surface they cost nothing."""
    way = np.sin(np.linspace(0, 60, 1500))
    by_place, by_chance = np.zeros((2, 1500), int)
    by_place[way > 0.6] = 1
    by_chance[(np.arange(1500) // 50) % 2 == 1] = 1
    tracks = made(np.gradient(way), way)
    assert price_of_untold(tracks._replace(modes=np.eye(3)[by_place[None]][..., :2])) == 0
    assert price_of_untold(tracks._replace(modes=np.eye(3)[by_chance[None]][..., :2])) == 15 * np.log(1500)


# --- rules --------------------------------------------------------------------------------------------------


def test_rest_is_where_nothing_moves_for_a_while():
    """Glides, stops, goes on, turns: a turn is no rest though its velocity is 0 for a moment."""
    t = np.arange(120) * 0.01
    rng = np.random.default_rng(0)
    glide = 0.5 * np.sin(2 * np.pi * t)[:26]  # decelerates to a stop at its top
    back = 0.5 * np.cos(2 * np.pi * t)[:60]  # and falls back through its lowest point, which is a turn
    way = np.concatenate([glide, np.full(60, 0.5), back])
    tracks = prepared_alone(way + 1e-4 * rng.standard_normal(len(way)))
    found = at_rest_samples(tracks)[0]
    doubt = 6
    assert found[26 + doubt : 86 - doubt].all()
    assert not found[: 26 - doubt].any()
    assert not found[86 + doubt :].any()


def prepared_alone(way: np.ndarray) -> Tracks:
    times = len(way)
    recording = Recording(way[None, :, None], np.zeros((1, times - 1, 1)), np.full((1, times, 3), 1 / 3), 0.01)
    return prepared(recording, PROBLEM)


def test_rules_say_which_mode_is_on():
    form = form_of(PROBLEM, 0, {1: Guard(0, "below"), 2: Guard(0, "above")}, ())
    places = np.zeros(len(form.entries))
    places[[form.places[0], form.places[1]]] = -0.5, 0.7
    t = np.linspace(0, 6, 200)
    weights = ruled(form, places, made(np.cos(t), np.sin(t)), np.ones((1, 200), bool))
    expected = np.where(np.sin(t) < -0.5, 1, np.where(np.sin(t) > 0.7, 2, 0))
    assert np.argmax(weights, -1)[0].tolist() == expected.tolist()
    assert (weights.sum(-1) == 1).all()


def test_sliding_and_resting_are_ruled_by_speed():
    form = form_of(PROBLEM, 1, {2: None}, (0,))
    velocity = np.concatenate([np.full(40, 1.0), np.full(30, 1e-3), np.full(40, -1.0)])
    tracks = made(velocity, np.cumsum(velocity) * 0.01)
    believed = np.eye(3)[np.where(velocity < 0, 2, 1)][None]
    resting = np.abs(velocity)[None] < 0.1
    mode = np.argmax(ruled(form, np.zeros(len(form.entries)), tracks._replace(modes=believed), resting), -1)[0]
    assert mode.tolist() == [1] * 40 + [0] * 30 + [2] * 40


# --- modes of a puck from its positions alone ---------------------------------------------------------------


def test_the_modes_of_a_puck_are_found(found):
    _, agreement = matched(labels(found.weights), puck().truth.modes, 3)
    assert agreement >= 0.97
    assert found.score == min(found.scores)
    assert sorted(b.guard.side for b in found.law.form.blocks if b.guard) == ["above", "below"]
    np.testing.assert_allclose(sorted(found.law.places[[*found.law.form.places.values()]]), [-1, 1], atol=0.01)


def test_modes_come_in_the_order_of_what_they_are():
    assert mode_order(true_law("puck")) == [0, 1, 2]
    assert mode_order(true_law("block")) == [1, 2, 0]  # the base, the other direction, the rest


def test_the_chain_never_looks_at_labels(found):
    """With labels that are wrong everywhere it proposes what it would without any, and finds the modes."""
    config = ChainConfig(laws=LawsConfig(estimator="weak"), particles=8)
    recording = puck().recording
    chained = chain(recording._replace(modes=np.roll(recording.modes, 1, -1)), PROBLEM, config, seed=0)
    assert chained.proposals == found.scores
    _, agreement = matched(labels(chained.modes), puck().truth.modes, 3)
    assert agreement >= 0.97
    mass = constants(chained.law)["mass"].value
    assert mass == pytest.approx(0.5, rel=0.02)
    np.testing.assert_array_equal(chained.model.flow.coefficients, chained.law.as_model().flow.coefficients)
    assert chained.law.form.base == 0
    places = [chained.law.theta[i] for i in chained.law.form.places.values()]
    assert places == sorted(places)
