"""Fits that rise, resume, stop when they diverge, and never see a label."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro import training
from vhydro.episodes import episode
from vhydro.filter import FilterSettings
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.proposal import amortized_proposal, conditioned_proposal
from vhydro.training import DivergedError, Parts, TrainingConfig, fit

KEY = jax.random.key(0)
FROZEN = ("model.emission.matrix", "model.emission.offset", "model.flow.interconnection")
CONFIG = TrainingConfig(
    steps=12,
    batch=4,
    validate_every=4,
    burst=3,
    frozen=FROZEN,
    learning_rate=0.02,
    settings=FilterSettings(particles=8),
)


def start(key, guide="conditioned"):
    energy, network = jax.random.split(key)
    coefficients = 0.2 * np.asarray(jax.random.normal(energy, (2, 5))) + [0, 0, 0, 0, 0.5]
    flow = port_hamiltonian(
        2, 2, 1, polynomial(2, 2), coefficients=coefficients, port=[[0.0], [1.0]], dtype=jnp.float64
    )
    model = hybrid_model(
        mode_kernel(2, dtype=jnp.float64), flow, axis_emission(2, [0], noise=0.2, dtype=jnp.float64), noise=0.2
    )
    if guide == "amortized":
        return Parts(model, amortized_proposal(model, hidden=(8,), key=network))
    return Parts(model, conditioned_proposal(model))


@pytest.fixture(scope="module")
def logs():
    """Noisy oscillations of different lengths with a changing force."""
    rng, out = np.random.default_rng(0), []
    for n in (14, 19, 16, 20, 12, 18):
        q, p, path, force = rng.normal(), rng.normal(), [], rng.normal(size=n)
        for a in [*force, 0.0]:
            path.append(q + 0.05 * rng.normal())
            q, p = q + 0.2 * p, p + 0.2 * (a - 2 * q)
        out.append(episode(path, force, dt=0.2, labels={"mode": rng.integers(0, 2, n + 1)}))
    return out


def fitted(logs, config=CONFIG, begin=start, **options):
    return fit(begin, logs[:4], logs[4:], key=KEY, config=config, progress=False, **options)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture(scope="module")
def plain(logs):
    return fitted(logs)


@pytest.mark.parametrize(
    ("estimator", "guide"), [("exact", "conditioned"), ("fixed", "conditioned"), ("fixed", "amortized")]
)
def test_a_fit_raises_the_validation_evidence(logs, estimator, guide):
    config = replace(CONFIG, estimator=estimator, steps=60, validate_every=1, learning_rate=0.05)
    after = fitted(logs, config, lambda k: start(k, guide))
    assert after.score[0] > after.validation[0, 0] + 0.1
    assert not after.diverged.any()


def test_the_structure_survives_training(plain):
    flow = plain.model.flow
    np.testing.assert_array_equal(flow.skew(), -np.swapaxes(flow.skew(), 1, 2))
    assert (np.linalg.eigvalsh(flow.resistance()) >= -1e-12).all()


def test_frozen_parameters_stay_and_others_move(plain):
    begin = training._starts(start, 1, KEY)[0].model
    for where in (lambda m: m.emission.matrix, lambda m: m.flow.interconnection, lambda m: m.scale):
        np.testing.assert_array_equal(where(plain.model), where(begin))
    assert np.abs(plain.model.flow.coefficients - begin.flow.coefficients).max() > 1e-3


def test_labels_never_reach_training(logs, plain):
    shuffled = [replace(e, labels={"mode": 1 - e.labels["mode"]}) for e in logs]
    assert_same(eqx.filter(fitted(shuffled).model, eqx.is_array), eqx.filter(plain.model, eqx.is_array))


def test_seeds_are_an_axis_and_do_not_touch_each_other(logs, plain):
    both = fitted(logs, replace(CONFIG, seeds=2))
    np.testing.assert_allclose(both.score[0], plain.score[0], rtol=1e-9)
    assert both.score[0] != both.score[1]
    assert both.seed == np.argmax(both.score)
    assert_same(jax.tree.leaves(both.model), jax.tree.leaves(both.every[both.seed].model))


def test_a_killed_run_goes_on_where_it_was(logs, plain, tmp_path, monkeypatch):
    path, saves = tmp_path / "run.safetensors", []

    def killed(*arguments):
        saves.append(keep(*arguments))
        if len(saves) == 2:
            raise KeyboardInterrupt

    keep = training.save_tree
    with monkeypatch.context() as patch:
        patch.setattr(training, "save_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            fitted(logs, checkpoint=path)
    resumed = fitted(logs, checkpoint=path)
    assert_same(eqx.filter(resumed.model, eqx.is_array), eqx.filter(plain.model, eqx.is_array))
    np.testing.assert_array_equal(resumed.validation, plain.validation)


def test_a_checkpoint_of_other_settings_is_refused(logs, plain, tmp_path):
    path = tmp_path / "run.safetensors"
    fitted(logs, checkpoint=path)
    with pytest.raises(ValueError, match="learning_rate differ"):
        fitted(logs, replace(CONFIG, learning_rate=0.5), checkpoint=path)


def test_a_checkpoint_of_other_episodes_is_refused(logs, plain, tmp_path):
    path = tmp_path / "run.safetensors"
    fitted(logs, checkpoint=path)
    moved = [replace(e, observations=3 * e.observations + 1) for e in logs]
    with pytest.raises(ValueError, match="other episodes, another start or another key. Delete it"):
        fitted(moved, checkpoint=path)


def test_a_diverged_run_stops_and_keeps_the_last_good(logs, tmp_path):
    path = tmp_path / "run.safetensors"
    with pytest.raises(DivergedError, match=r"all 1 seeds diverged .* by step \d+ of 12.*Lower learning_rate") as error:
        fitted(logs, replace(CONFIG, learning_rate=1e200, validate_every=1), checkpoint=path)
    assert error.value.last_good is not None
    error.value.last_good.model.validate()
    assert path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"occlusion": (1.0,)}, r"occlusion is \(1.0,\); expected one or more shares in \[0, 1\)"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; expected a positive"),
        ({"window": 1}, "window is 1; expected at least 2 rows"),
    ],
)
def test_a_bad_config_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **options)


def test_bad_calls_are_refused(logs):
    with pytest.raises(ValueError, match="match no parameter"):
        fitted(logs, replace(CONFIG, frozen=("model.flwo",)))
    with pytest.raises(ValueError, match="0 validation episodes"):
        fit(start, logs, [], key=KEY, config=CONFIG)
    with pytest.raises(ValueError, match="3 equal fits"):
        fitted(logs, replace(CONFIG, seeds=3), start(KEY))
    renamed = [episode(e.observations, e.actions, dt=e.dt, channels=["other"]) for e in logs]
    with pytest.raises(ValueError, match="the model expects"):
        fitted(renamed)


def test_windows_crop_long_logs(logs):
    assert np.isfinite(fitted(logs, replace(CONFIG, window=8, steps=4)).score).all()
