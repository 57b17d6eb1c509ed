"""Bodies that move by themselves: told from those that are held, and not made up where a push is steady."""

from dataclasses import replace

import numpy as np
import pytest

from known_logs import hand_log, rolled_log
from vhydro.episodes import Episode
from vhydro.fitted import Fitted, load
from vhydro.fitting import fit
from vhydro.learning import coasting
from vhydro.learning.coasting import BACK, LET_GO, RARELY, coasting_bodies, last_steps, twins_of, with_twins
from vhydro.learning.contact import scales_of
from vhydro.learning.contact_em import ContactLaw
from vhydro.modes import adjusted_rand
from vhydro.storage import ModelFileError, save
from vhydro.storage import load as load_parts
from vhydro.views import contact_view

NOISE = 0.002  # m of a camera


@pytest.fixture(scope="module")
def logs() -> list[Episode]:
    return [rolled_log(seed) for seed in range(12)]


def seen_by_camera(log: Episode, seed: int) -> Episode:
    noise = NOISE * np.random.default_rng(seed).normal(size=log.observations.shape)
    noise[:, :3] = 0.0  # the hand's own places are exact
    return replace(log, observations=log.observations + noise)


def fitted(logs: list[Episode]) -> Fitted:
    return fit(logs[:6], modes=2, validation=logs[6:8], refine=False, calibrate=False)


@pytest.fixture(scope="module")
def model(logs) -> Fitted:
    return fitted(logs)


def agreement(model: Fitted, logs: list[Episode]) -> float:
    found = [model.contacts(log).contact for log in logs]
    return adjusted_rand(np.concatenate(found), np.concatenate([log.labels["configuration"] for log in logs]))


def test_what_rolls_on_is_not_held(logs, model, monkeypatch):
    assert agreement(model, logs[8:]) > 0.95
    assert any("moves on by itself" in line for line in model.report)
    monkeypatch.setattr(coasting, "OFTEN", 1.0)  # no body coasts in all of its rows: as without such modes
    without = fitted(logs)
    assert without.coasting is None
    assert agreement(without, logs[8:]) < 0.9


def test_it_is_told_through_a_camera(logs):
    noisy = [seen_by_camera(log, seed) for seed, log in enumerate(logs)]
    assert agreement(fitted(noisy), noisy[8:]) > 0.9


def test_beliefs_have_the_modes_of_the_filter(logs, model):
    belief = model.smooth(logs[8])
    assert belief.mode.shape == (len(logs[8].observations), len(model.names))
    np.testing.assert_allclose(belief.mode.sum(1), 1, atol=1e-5)
    assert set(belief.path.tolist()) <= set(range(len(model.names)))
    assert model.filter(logs[8]).mode.shape == belief.mode.shape


def test_the_file_keeps_it(logs, model, tmp_path):
    model.save(tmp_path / "ball.vhydro")
    again = load(tmp_path / "ball.vhydro")
    assert again.coasting == model.coasting
    np.testing.assert_array_equal(again.smooth(logs[9]).mode, model.smooth(logs[9]).mode)


def test_a_file_whose_twins_do_not_fit_is_refused(model, tmp_path):
    path = tmp_path / "ball.vhydro"
    model.save(path)
    held = load_parts(path)
    held.notes["coasting"]["told_as"] = [0, 1, 7]
    save(path, notes=held.notes, **held.parts)
    with pytest.raises(ModelFileError, match="do not fit the model"):
        load(path)


def test_a_model_that_reads_modes_of_another_kind_is_refused(model, tmp_path):
    path = tmp_path / "ball.vhydro"
    model.save(path)
    held = load_parts(path)
    save(path, notes={**held.notes, "coasting": None}, **held.parts)
    with pytest.raises(ModelFileError, match="does not fit the one that filters"):
        load(path)


def test_a_steady_push_is_no_coasting(logs):
    steady = [hand_log(seed) for seed in range(4)]
    view = contact_view(steady)
    seen = [view(log) for log in steady]
    assert coasting_bodies(seen, scales_of(seen)) == ()
    view = contact_view(logs)
    seen = [view(log) for log in logs]
    assert coasting_bodies(seen, scales_of(seen)) == ("ball",)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_twin_begins_and_ends_as_often_whatever_the_level_of_logits(logs, model, shift):
    stay = np.log([[0.95, 0.05], [0.1, 0.9]]) + shift
    law = ContactLaw(np.array([[0.0], [1.0]]), np.ones(1), stay, np.zeros((0, 2)), np.log([0.5, 0.5]), np.zeros(1))
    couples = np.array([[False], [True]])
    view = contact_view(logs)
    twins = twins_of(["ball"], couples, np.array([0.8, 0.2]), ["ball"], view(logs[0]), 0.0)
    chance = np.exp(with_twins(law, twins).logits - shift)
    np.testing.assert_allclose(chance[:, 2], [RARELY * 0.95, LET_GO * 0.1, 0.95 * (1 - BACK)])
    np.testing.assert_allclose(chance[2, :2], [BACK * 0.95, 0.05])


def test_the_last_step_is_kept_in_the_dark():
    values = np.array([0.0, 1.0, 3.0, np.nan, np.nan, 10.0, 11.0])[:, None]
    assert last_steps(values)[:, 0].tolist() == [0, 1, 2, 2, 2, 2]
    assert last_steps(values[:4], 2)[:, 0].tolist() == [0, 0, 1.5]
    assert last_steps(values[:2], 3)[:, 0].tolist() == [0]
