"""Fits that rise, resume, stop when they diverge, and never see a label."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro import training
from vhydro.certificate import Gate
from vhydro.episodes import episode
from vhydro.filter import FilterSettings, bootstrap
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, linear_flow, mode_kernel, port_hamiltonian
from vhydro.proposal import amortized_proposal, conditioned_proposal
from vhydro.training import DivergedError, Parts, TrainingConfig, fit

KEY = jax.random.key(0)
# What the loop does is tested on the smallest models that learn: nearly all the time of a test is compiling its fit.
CONFIG = TrainingConfig(
    steps=60,
    batch=4,
    validate_every=4,
    burst=3,
    seeds=2,
    frozen=("model.emission",),
    learning_rate=0.05,
    settings=FilterSettings(particles=8, gate=Gate(fixed=0.3)),
)
FROZEN = ("model.emission.matrix", "model.emission.offset", "model.flow.interconnection")


def start(key, modes=2):
    """A linear model of one coordinate, and its own conditional as the guide."""
    flow = linear_flow(
        np.full((modes, 1, 1), 0.5), jax.random.normal(key, (modes, 1)), np.ones((modes, 1, 1)), dtype=jnp.float64
    )
    emission = axis_emission(1, [0], noise=0.2, dtype=jnp.float64)
    model = hybrid_model(mode_kernel(modes, dtype=jnp.float64), flow, emission, noise=0.2)
    return Parts(model, conditioned_proposal(model))


def physical_start(key):
    """A port-Hamiltonian model and a network as its guide."""
    energy, network = jax.random.split(key)
    coefficients = 0.2 * np.asarray(jax.random.normal(energy, (2, 5))) + [0, 0, 0, 0, 0.5]
    flow = port_hamiltonian(
        2, 2, 1, polynomial(2, 2), coefficients=coefficients, port=[[0.0], [1.0]], dtype=jnp.float64
    )
    model = hybrid_model(
        mode_kernel(2, dtype=jnp.float64), flow, axis_emission(2, [0], noise=0.2, dtype=jnp.float64), noise=0.2
    )
    return Parts(model, amortized_proposal(model, hidden=(8,), key=network))


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


ROWS = 21  # of the longest log


def fitted(logs, config=CONFIG, begin=start, **options):
    return fit(begin, logs[:4], logs[4:], key=KEY, config=config, length=ROWS, progress=False, **options)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture(scope="module")
def plain(logs):
    """Two seeds with fixed samples and the exact guide."""
    return fitted(logs)


@pytest.fixture(scope="module")
def windowed(logs):
    """A fit to crops of the logs, with the exact estimator."""
    return fitted(logs, replace(CONFIG, estimator="exact", window=8, seeds=1, validate_every=1))


@pytest.fixture(scope="module")
def physical(logs):
    """A fit of a port-Hamiltonian model, an amortised guide and the certified gate."""
    config = replace(CONFIG, frozen=FROZEN, seeds=1, validate_every=1, settings=FilterSettings(particles=8))
    return fitted(logs, config, physical_start)


@pytest.fixture(scope="module")
def resumed(logs, tmp_path_factory):
    """The run of `plain` with other labels, killed at its second checkpoint and called again; and that checkpoint."""
    path, saves = tmp_path_factory.mktemp("run") / "run.safetensors", []
    relabelled = [replace(e, labels={"mode": 1 - e.labels["mode"]}) for e in logs]

    def killed(*arguments):
        saves.append(keep(*arguments))
        if len(saves) == 2:
            raise KeyboardInterrupt

    keep = training.save_tree
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "save_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            fitted(relabelled, checkpoint=path)
    return fitted(relabelled, checkpoint=path), path


@pytest.mark.parametrize("name", ["plain", "windowed", "physical"])
def test_a_fit_raises_the_validation_evidence(request, name):
    after = request.getfixturevalue(name)
    assert (after.score > after.validation[0] + 0.1).all()
    assert np.isfinite(after.validation).all()
    assert not after.diverged.any()


def test_the_structure_survives_training(physical):
    flow = physical.model.flow
    np.testing.assert_array_equal(flow.skew(), -np.swapaxes(flow.skew(), 1, 2))
    assert (np.linalg.eigvalsh(flow.resistance()) >= -1e-12).all()


def test_frozen_parameters_stay_and_others_move(physical):
    begin = training._starts(physical_start, 1, KEY)[0].model
    for where in (lambda m: m.emission.matrix, lambda m: m.flow.interconnection, lambda m: m.scale):
        np.testing.assert_array_equal(where(physical.model), where(begin))
    assert np.abs(physical.model.flow.coefficients - begin.flow.coefficients).max() > 1e-3


def test_the_best_of_different_seeds_is_chosen(plain):
    assert plain.score[0] != plain.score[1]
    assert plain.seed == np.argmax(plain.score)
    assert_same(jax.tree.leaves(plain.model), jax.tree.leaves(plain.every[plain.seed].model))


def in_units(parts, shift, scale):
    """The same parts for a log in other units."""
    where = lambda m: (m.shift, m.scale)  # noqa: E731
    return parts._replace(model=eqx.tree_at(where, parts.model, (jnp.array([shift]), jnp.array([scale]))))


def test_seeds_have_their_own_start_and_episodes_and_do_not_touch_each_other(logs, plain):
    """The first seed is that of `plain` in other units and goes the same way, beside another second one."""
    moved = [replace(e, observations=3 * e.observations + 1) for e in logs]
    turned = [replace(e, observations=-2 * e.observations) for e in logs]
    starts = [
        in_units(s, *units) for s, units in zip(training._starts(start, 2, KEY), [(1.0, 3.0), (0.5, 2.0)], strict=True)
    ]
    longer = [turned[3], turned[1]]  # than the first seed's validation episodes, which are padded alike all the same
    lists = [moved[:4], turned[:4]], [moved[4:], longer]
    own = fit(starts, *lists, key=KEY, config=CONFIG, length=ROWS, progress=False)
    np.testing.assert_allclose(own.score[0], plain.score[0] - np.log(3), rtol=1e-9)
    first, second = ((a.model.flow.offset, b.model.flow.offset) for a, b in zip(own.every, plain.every, strict=True))
    np.testing.assert_allclose(*first, rtol=1e-7)
    assert np.abs(second[0] - second[1]).max() > 1e-2
    for after, before in zip(own.every, starts, strict=True):
        assert_same((after.model.shift, after.model.scale), (before.model.shift, before.model.scale))


def test_starts_and_episodes_that_are_not_one_for_every_seed_are_refused(logs):
    with pytest.raises(ValueError, match="3 starts for 2 seeds; give one for each, or a function of a key"):
        fitted(logs, begin=[start(KEY)] * 3)
    for train, message in (
        ([logs] * 3, r"3 lists of \[6\] episodes for 2 seeds; expected a list for every seed"),
        ([logs[:4], logs[:3]], r"2 lists of \[3, 4\] episodes for 2 seeds; .* all of one length"),
        ([[], []], r"2 lists of \[0\] episodes"),
    ):
        for given in ((train, logs), (logs, train)):
            with pytest.raises(ValueError, match=message):
                fit(start, *given, key=KEY, config=CONFIG)


def test_a_killed_run_goes_on_where_it_was_whatever_the_labels(plain, resumed):
    after, _ = resumed
    assert_same(eqx.filter(after.every, eqx.is_array), eqx.filter(plain.every, eqx.is_array))
    np.testing.assert_array_equal(after.validation, plain.validation)


def test_a_checkpoint_of_other_settings_is_refused(logs, resumed):
    with pytest.raises(ValueError, match="learning_rate differ"):
        fitted(logs, replace(CONFIG, learning_rate=0.5), checkpoint=resumed[1])


def test_a_checkpoint_of_other_episodes_is_refused(logs, resumed):
    moved = [replace(e, observations=3 * e.observations + 1) for e in logs]
    with pytest.raises(ValueError, match="other episodes, another start or another key. Delete it"):
        fitted(moved, checkpoint=resumed[1])


def test_a_diverged_run_stops_and_keeps_the_last_good(logs, tmp_path):
    path = tmp_path / "run.safetensors"
    config = replace(
        CONFIG, steps=12, seeds=1, learning_rate=1e200, validate_every=1, settings=bootstrap(particles=4), frozen=()
    )
    with pytest.raises(DivergedError, match=r"all 1 seeds diverged .* by step \d+ of 12.*Lower learning_rate") as error:
        fitted(logs, config, lambda key: start(key, modes=1)._replace(proposal=None), checkpoint=path)
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
