"""Where noise washes the mass out of the weak form, masses are tried."""

from dataclasses import replace

import numpy as np
import pytest

from vhydro.laws.estimate import ShootingConfig, first_guess, shooting, weak_law
from vhydro.laws.first_masses import anchors, offered, with_mass
from vhydro.laws.tracks import prepared
from vhydro_audits.laws_truth import problem_of, trial

BUMP = ShootingConfig().bump


@pytest.fixture(scope="module")
def washed_out():
    """Pushing at 5 % noise: what slows the thing beside the pusher is not seen, for it hardly moves."""
    log, problem = trial("pushing", 15, 0.05, 0.2, 0.02, episodes=20, steps=1000, dt=0.005), problem_of("pushing")
    return prepared(log.recording, problem), problem


def test_a_mass_below_zero_is_replaced_by_the_one_that_windows_follow(washed_out):
    tracks, problem = washed_out
    law = weak_law(tracks, problem, BUMP, momenta=False)
    kinetic = [i for i, e in enumerate(law.form.entries) if e.is_kinetic]
    assert first_guess(law, tracks)[0][kinetic].min() < 0  # as the weak form has it
    found = shooting(tracks, problem, ShootingConfig())
    np.testing.assert_allclose(found.theta[kinetic], 1.25, rtol=0.02)  # 1 / 2m of .4 kg


def test_masses_are_offered_over_all_that_could_be_seen(washed_out):
    tracks, problem = washed_out
    law = weak_law(tracks, problem, BUMP, momenta=False)
    [(axis, anchor)] = anchors(law.form, law.rows, law.choice.theta, law.choice.support)
    assert axis == 1
    masses = offered(law.form, tracks, anchor)
    assert masses[0] < 0.4 < masses[-1]
    # At the value that the rows themselves ask for nothing else changes.
    free = law.choice.theta
    held = with_mass(law.rows, free, law.choice.support, anchor, free[anchor])
    np.testing.assert_allclose(held, free, atol=1e-8 * np.abs(free).max())


def test_of_an_input_masses_begin_at_the_acceleration_seen(washed_out):
    tracks, problem = washed_out
    port = problem.port.copy()
    port[2, 0] = 2.0
    law = weak_law(tracks, replace(problem, port=port), BUMP, momenta=False)
    entry = next(i for i, e in enumerate(law.form.entries) if e.kind == "port" and law.form.known[i] == 2.0)
    masses = offered(law.form, tracks, entry)
    seen = np.sqrt(np.nanmean(tracks.smooth.acceleration[..., 0] ** 2))
    np.testing.assert_allclose(masses[0], 2.0 * np.std(tracks.actions[..., 0]) / seen)
    assert (np.diff(masses) > 0).all()
    still = tracks._replace(actions=np.ones_like(tracks.actions))
    assert not offered(law.form, still, entry).size
