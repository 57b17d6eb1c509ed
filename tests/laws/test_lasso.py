"""The paper's estimator where it works: a motion that is exact; and where it has too little to go by."""

import numpy as np
import pytest
from law_logs import CUBE, KINETIC, LINE, SQUARE, swing_problem, swinging

from oracles.oscillator import FRICTION, MASS, STIFFNESS
from vhydro.laws.form import Guard, form_of
from vhydro.laws.guards import Sorted
from vhydro.laws.lasso import LassoConfig, derivative_rows, lasso_law
from vhydro.laws.tracks import Tracks, prepared

ALONE = Sorted({}, {}, ())


@pytest.fixture(scope="module")
def tracks() -> Tracks:
    return prepared(swinging(), swing_problem())


def test_rows_hold_the_equation_of_motion(tracks):
    form = form_of(swing_problem(), 0, {}, (), additive=False)
    indices = [i for i, e in enumerate(form.entries) if not e.is_kinetic]
    design, target, episode = derivative_rows(form, tracks, 0, indices, np.zeros(len(form.entries)))
    assert design.shape == (4 * 400, 5)  # the last sample of an episode has no input
    assert np.bincount(episode).tolist() == [400] * 4
    kinds = [form.entries[i].term or form.entries[i].kind for i in indices]
    assert kinds == [LINE, SQUARE, CUBE, "dissipation", "port"]
    theta = np.array([0, 0.5 * STIFFNESS / MASS, 0, FRICTION / MASS, 1 / MASS])
    # A held force jumps: smoothed accelerations are off near those samples, and right elsewhere.
    assert np.median(np.abs(design @ theta - target)) < 1e-3 * np.std(target)


def test_an_exact_motion_gives_the_law(tracks):
    form, theta, support = lasso_law(tracks, swing_problem(), ALONE, 0, LassoConfig())
    kept = [e.term for e, s in zip(form.entries, support, strict=True) if s and e.kind == "energy"]
    assert kept == [KINETIC, SQUARE]
    np.testing.assert_allclose(theta, [0.5 / MASS, 0, 0.5 * STIFFNESS, 0, FRICTION, 1], rtol=0.1)


def test_the_threshold_decides_what_is_kept():
    tracks = prepared(swinging(0.02), swing_problem())
    form, _, everything = lasso_law(tracks, swing_problem(), ALONE, 0, LassoConfig(threshold=0.0))
    _, _, nothing = lasso_law(tracks, swing_problem(), ALONE, 0, LassoConfig(threshold=10.0))
    energies = np.array([e.kind == "energy" for e in form.entries])
    assert everything[energies].sum() > 2
    assert nothing[energies].tolist() == [True, False, False, False]  # the mass is never thresholded


def test_every_mode_is_fitted_for_itself(tracks):
    """Two modes with one law: both find it; the one with hardly a sample finds nothing."""
    late = np.arange(401) >= 200
    for first, second in ((late, ~late), (np.arange(401) < 399, np.arange(401) >= 399)):
        modes = np.tile(np.stack([first, second], -1) * 1.0, (4, 1, 1))
        guards = Sorted({1: Guard(0, "above")}, {1: -10.0}, ())
        form, theta, _ = lasso_law(tracks._replace(modes=modes), swing_problem(), guards, 0, LassoConfig())
        squares = [theta[i] for i, e in enumerate(form.entries) if e.term == SQUARE]
        assert squares[0] == pytest.approx(0.5 * STIFFNESS, rel=0.1)
        place = next(i for i, e in enumerate(form.entries) if e.kind == "place")
        assert theta[place] == -10.0
        own = [theta[i] for i, e in enumerate(form.entries) if e.block == 0 and e.kind == "energy"]
        assert any(own[1:]) == (second.sum() > 100)
