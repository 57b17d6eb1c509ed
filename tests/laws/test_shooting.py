"""Shooting through contacts: the path against the simulator, its derivatives against differences, the law it finds.

One form and one shape of windows for all: its programs take longer to compile than everything else takes to run.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from law_logs import puck
from scipy.stats import binom

from vhydro.laws.constants import constants
from vhydro.laws.descent import Shooter, started
from vhydro.laws.estimate import ShootingConfig
from vhydro.laws.form import Guard, form_of, momentum_degree
from vhydro.laws.law import Law
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.shooting import CHUNK, LANES, crossing, followed, sensed
from vhydro.laws.tracks import Tracks, prepared
from vhydro.laws.windows import MARGIN, SHORTEST, TRIM, cut, phases, runs
from vhydro.library import Monomial, Penetration
from vhydro_audits.laws_truth import problem_of, true_law

pytestmark = pytest.mark.computes
PROBLEM, TRUTH = problem_of("puck"), true_law("puck")
FORM, THETA = TRUTH.form, TRUTH.theta
ACTIVE = TRUTH.support & FORM.free  # mass, friction; spring, damping and place of each wall
SUBSTEPS = 1
CONFIG = LawsConfig(shooting=ShootingConfig(lengths=(60, 240)))


class Stretch(NamedTuple):
    """Exact states of every lane over one chunk, and what is needed to follow them."""

    states: np.ndarray  # (lanes, CHUNK + 1, coordinates)
    actions: np.ndarray
    touching: np.ndarray  # (lanes,): whether a wall is met

    @property
    def arguments(self):
        return self.states[:, 0], self.actions, np.zeros((LANES, 2)), 0.005


@pytest.fixture(scope="module")
def stretch() -> Stretch:
    truth = puck().truth
    firsts = [(e, t) for t in range(0, 360, CHUNK) for e in range(6)][:LANES]
    states = np.stack([truth.states[e, t : t + CHUNK + 1] for e, t in firsts])
    actions = np.stack([truth.actions[e, t : t + CHUNK] for e, t in firsts])
    touching = np.array([(truth.modes[e, t : t + CHUNK + 1] > 0).any() for e, t in firsts])
    assert 5 < touching.sum() < LANES
    return Stretch(states, actions, touching)


@pytest.fixture(scope="module")
def tracks() -> Tracks:
    return prepared(puck().recording, PROBLEM)


@pytest.fixture(scope="module")
def law() -> Law:
    return recover(puck().recording, PROBLEM, CONFIG)


# --- form ---------------------------------------------------------------------------------------------------


def test_a_form_names_its_parameters():
    kinds = [(e.block, e.kind) for e in FORM.entries]
    base = [(-1, "energy")] * 7 + [(-1, "dissipation"), (-1, "port")]
    wall = [*[(0, "energy")] * 3, (0, "dissipation"), (0, "port"), (0, "place")]
    assert kinds == base + wall + [(1, kind) for _, kind in wall]
    assert FORM.places == {0: 14, 1: 20}
    assert FORM.known[8] == 1
    assert FORM.known[[13, 19]].tolist() == [0, 0]
    assert FORM.free.sum() == 18
    assert FORM.blocks[1].terms == tuple(Penetration(0, 0.0, "above", k) for k in (1, 2, 3))
    assert [e.term for e in FORM.entries if e.is_kinetic] == [Monomial((0, 2))]
    assert [momentum_degree(t) for t in FORM.library] == [2, 0, 0, 0, 0, 2, 4]


def test_modes_without_a_surface_have_the_terms_of_positions():
    form = form_of(PROBLEM, 1, {0: None, 2: None}, (0,))
    assert form.resting == (0,)
    assert [b.mode for b in form.blocks] == [2]
    assert form.blocks[0].terms == tuple(t for t in PROBLEM.library if momentum_degree(t) == 0)
    alone = form_of(PROBLEM, 0, {1: Guard(0, "above")}, (), additive=False)
    assert alone.blocks[0].terms[:7] == PROBLEM.library
    assert [alone.known[i] for i, e in enumerate(alone.entries) if e.kind == "port"] == [1, 1]


# --- windows ------------------------------------------------------------------------------------------------


def test_windows_keep_away_from_what_labels_may_get_wrong():
    phase = np.array([0] * 20 + [1] * 15 + [-2] * 10 + [0] * 9)
    # The last is too short once its doubtful samples are left out.
    assert runs(phase) == [(0, 20 - TRIM, 0), (20 + TRIM, 35 - TRIM, 1)]
    form = form_of(PROBLEM, 0, {1: None, 2: Guard(0, "above")}, ())
    modes = np.eye(3)[np.repeat([[0, 1, 2]], 10, 1)]
    modes[0, 27:] = 0
    assert phases(form, modes)[0].tolist() == [-1] * 10 + [0] * 10 + [-1] * 7 + [-2] * 3


def test_windows_hold_every_sample_once_and_begin_in_calm(tracks):
    windows, where = cut(FORM, tracks, 60)
    seen = windows.weights[..., 0] > 0
    assert windows.positions.shape[0] % LANES == 0
    assert windows.positions.shape[1] % CHUNK == 0
    assert seen.sum() == np.isfinite(tracks.positions).sum()
    modes = puck().truth.modes
    for (episode, first), lane in zip(where, seen, strict=True):
        if lane.any():
            assert lane.sum() >= SHORTEST
            assert first == 0 or not modes[episode, first - MARGIN + 2 : first + MARGIN - 2].any()
    np.testing.assert_allclose(windows.weights[seen], 1 / tracks.noise[0])
    episode, first = where[0]
    np.testing.assert_array_equal(windows.positions[0, :SHORTEST], tracks.positions[episode, first : first + SHORTEST])


def test_hidden_samples_weigh_nothing(tracks):
    hidden = tracks.positions.copy()
    hidden[2], hidden[3, 100:180] = np.nan, np.nan
    windows, where = cut(FORM, tracks._replace(positions=hidden), 60)
    assert (windows.weights > 0).sum() == np.isfinite(hidden).sum()
    used = (windows.weights > 0).any((1, 2))
    assert 2 not in where[used, 0]
    assert np.isfinite(windows.positions).all()


# --- paths and their derivatives ----------------------------------------------------------------------------


def test_a_path_follows_the_simulator_through_contacts(stretch):
    path, last = followed(FORM, SUBSTEPS, THETA, *stretch.arguments)
    off = np.abs(np.concatenate([path, last[:, None]], 1) - stretch.states)
    spread = stretch.states.std((0, 1))
    assert (off.max((0, 1)) < 1e-4 * spread).all()


def test_a_crossing_is_where_a_cubic_is_zero():
    for at in (0.1, 0.5, 0.93):
        # (s − at)(s² + 1) over a step of 2: depths and rates at its ends
        ends = -at, 1 / 2, 2 * (1 - at), (2 + 2 * (1 - at)) / 2
        before, before_rate, after, after_rate = map(jnp.asarray, ends)
        assert float(crossing(before, before_rate, after, after_rate, 2.0)) == pytest.approx(2 * at, abs=2 / 2**12)
    assert float(crossing(jnp.asarray(1.0), jnp.asarray(0.0), jnp.asarray(2.0), jnp.asarray(0.0), 0.5)) == 0.5


def difference(stretch: Stretch, index: int, step: float) -> np.ndarray:
    """∂(positions, state after)/∂θ by a central difference, as `sensed` lays them out."""
    ends = []
    for sign in (1, -1):
        theta = THETA.copy()
        theta[index] += sign * step
        path, last = followed(FORM, SUBSTEPS, theta, *stretch.arguments)
        ends.append(np.concatenate([np.asarray(path)[:, :, 0], last], 1))
    return (ends[0] - ends[1]) / (2 * step)


def test_sensitivities_are_those_of_finite_differences(stretch):
    picked = np.flatnonzero(ACTIVE)
    piece = sensed(FORM, SUBSTEPS, THETA, picked, *stretch.arguments)
    by_theta = np.asarray(piece.by_theta)
    for k, index in enumerate(picked.tolist()):
        expected = difference(stretch, index, 1e-5 * max(abs(THETA[index]), 0.1))
        size = np.abs(expected).max()
        np.testing.assert_allclose(by_theta[..., k], expected, atol=2e-3 * size)
        if FORM.entries[index].block >= 0:  # a wall is felt by those who meet it alone
            assert size > 0
            assert not by_theta[~stretch.touching][..., k].any()
    starts, *others = stretch.arguments
    for j, step in enumerate((1e-6, 1e-6)):
        ends = [followed(FORM, SUBSTEPS, THETA, starts + s * step * np.eye(2)[j], *others) for s in (1, -1)]
        ends = [np.concatenate([np.asarray(path)[:, :, 0], last], 1) for path, last in ends]
        expected = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(piece.by_start[..., j], expected, atol=2e-3 * np.abs(expected).max())


def test_normal_equations_carry_over_chunks(tracks):
    """Windows of several chunks: Gauss–Newton's equations against those of finite differences, starts eliminated."""
    windows, where = cut(FORM, tracks, 240)
    assert windows.positions.shape[1] > CHUNK
    shooter = Shooter(FORM, windows, tracks.dt, SUBSTEPS)
    starts = puck().truth.states[where[:, 0], where[:, 1]]
    picked = np.flatnonzero(ACTIVE)
    found = shooter.normal(THETA, picked, starts, np.zeros(len(starts)))

    def seen(theta, starts):
        return (windows.weights * shooter.course(theta, starts).states[..., :1]).reshape(len(starts), -1)

    columns = []
    for index in picked:
        step = 1e-5 * max(abs(THETA[index]), 0.1) * (np.arange(len(THETA)) == index)
        columns.append((seen(THETA + step, starts) - seen(THETA - step, starts)) / (2 * step[index]))
    own = [(seen(THETA, starts + s) - seen(THETA, starts - s)) / 2e-6 for s in 1e-6 * np.eye(2)]
    felt, through = np.stack(columns, -1), np.stack(own, -1)
    off = (windows.weights * windows.positions).reshape(len(starts), -1) - seen(THETA, starts)
    gram, cross = np.zeros((len(picked), len(picked))), np.zeros(len(picked))
    for window in np.flatnonzero(shooter.used):
        basis = np.linalg.qr(through[window])[0]
        rest = felt[window] - basis @ (basis.T @ felt[window])
        gram, cross = gram + rest.T @ rest, cross + rest.T @ off[window]
    size = np.sqrt(np.diag(gram))
    np.testing.assert_allclose(found.gram / np.outer(size, size), gram / np.outer(size, size), atol=0.02)
    np.testing.assert_allclose(found.cross / size, cross / size, atol=0.02 * float(np.linalg.norm(cross / size)))


def test_starts_are_found_with_the_law_held(tracks):
    windows, where = cut(FORM, tracks, 60)
    shooter = Shooter(FORM, windows, tracks.dt, SUBSTEPS)
    true = puck().truth.states[where[:, 0], where[:, 1]]
    off = true + [0.01, 0.05] * np.random.default_rng(0).standard_normal(true.shape)
    better = started(shooter, THETA, off, steps=8)
    misfit = shooter.course(THETA, better).misfit
    assert (misfit[shooter.used] <= shooter.course(THETA, off).misfit[shooter.used]).all()
    # With its starts fitted a window's misfit is χ² with the freedom it states.
    ratio = misfit[shooter.used].sum() / shooter.freedom.sum()
    assert abs(ratio - 1) < 4 * np.sqrt(2 / shooter.freedom.sum()) + 0.12  # the noise itself is estimated
    dropped = np.arange(len(where)) < 5
    fewer = shooter.without(dropped)
    assert not fewer.used[:5].any()
    assert fewer.used[5:].tolist() == shooter.used[5:].tolist()


# --- the law it finds ---------------------------------------------------------------------------------------


def test_the_law_of_the_puck_is_found(law):
    assert law.form == FORM
    assert (law.support & FORM.free).tolist() == ACTIVE.tolist()
    assert [law.status(m) for m in range(3)] == ["identified"] * 3
    assert law.chi_square == pytest.approx(1, abs=0.15)
    found, true = constants(law), constants(TRUTH)
    assert found.keys() == true.keys()
    for name, c in found.items():
        assert abs(c.value - true[name].value) < 5 * c.error, name
    assert found["mass"].error < 1e-3 * 0.5
    assert found["stiffness of left wall"].error < 0.01 * 1200


def test_intervals_cover_as_often_as_they_say():
    outside = count = 0
    for seed in (1, 2, 3):
        found, true = constants(recover(puck(seed).recording, PROBLEM, CONFIG)), constants(TRUTH)
        for name in ("mass", "friction", "stiffness of left wall", "stiffness of right wall"):
            low, high = found[name].interval
            outside += not low < true[name].value < high
            count += 1
    assert outside <= binom.isf(1e-3, count, 0.05)
