"""Bad input is refused in words, outliers and exploding models never become a NaN, records keep their word."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from guides import Wrong
from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, Stream, bootstrap, filter, filter_episodes, log_evidence
from vhydro.library import polynomial
from vhydro.model import (
    axis_emission,
    hybrid_model,
    linear_flow,
    mode_kernel,
    network_emission,
    port_hamiltonian,
)
from vhydro.proposal import ConditionedProposal, amortized_proposal, conditioned_proposal

KEY = jax.random.key(0)
ROWS = 8


def observations(seed=0):
    return np.random.default_rng(seed).standard_normal((ROWS, 2))


def log(values=None, **options):
    return episode(observations() if values is None else values, dt=0.1, **options)


# --- bad input --------------------------------------------------------------------------------------------------------


def with_entry(value):
    Y = observations()
    Y[1, 0] = value
    return Y


BAD_DATA = {
    "infinite value": (lambda: log(with_entry(np.inf)), "hold inf at row 1, channel 'y0'; expected finite"),
    "minus infinity": (lambda: log(with_entry(-np.inf)), "hold -inf at row 1, channel 'y0'"),
    "infinite action": (lambda: log(actions=np.full((ROWS - 1, 1), np.inf)), "actions hold inf at step 0, column 0"),
    "hidden action": (lambda: log(actions=np.full((ROWS - 1, 1), np.nan)), "actions hold nan .* must be finite"),
    "too many actions": (lambda: log(actions=np.zeros((ROWS, 1))), r"shape \(8, 1\); expected \(7, inputs\)"),
    "three axes": (lambda: log(np.zeros((2, 3, 4))), r"shape \(2, 3, 4\); expected \(steps \+ 1, channels\)"),
    "no axis": (lambda: log(np.float64(3.0)), r"shape \(\); expected \(steps \+ 1, channels\)"),
    "empty": (lambda: log(np.zeros((0, 2))), r"shape \(0, 2\); expected .* at least one"),
    "no channels": (lambda: log(np.zeros((3, 0))), r"shape \(3, 0\); expected .* at least one"),
    "dt zero": (lambda: episode(observations(), dt=0.0), "dt is 0.0; expected the positive time"),
    "dt negative": (lambda: episode(observations(), dt=-0.1), "dt is -0.1; expected the positive time"),
    "dt NaN": (lambda: episode(observations(), dt=np.nan), "dt is nan; expected the positive time"),
    "unnamed column": (lambda: log(channels=["x"]), "1 channel names for 2 observed columns"),
    "name twice": (lambda: log(channels=["x", "x"]), "repeat: .'x'."),
    "short label": (lambda: log(labels={"mode": np.zeros(3)}), "label 'mode' has 3 rows; expected 8"),
    "unknown channel": (lambda: log().select(["y0", "force"]), r"unknown channel \['force'\]; this episode has"),
    "no episodes": (lambda: pad([]), "no episodes given; expected at least one"),
    "other channels": (lambda: pad([log(), log(channels=["a", "b"])]), r"differ in their channels: \['a', 'b'\]"),
    "too short": (lambda: pad([log()], length=3), "length is 3; the longest episode has 8 rows"),
}


def checked(settings, **fields):
    """Settings with these fields, put there behind the type checker that only tests have."""
    for name, value in fields.items():
        object.__setattr__(settings, name, value)
    settings.__post_init__()


BAD_SETTINGS = {
    "λ below 0": (lambda: Gate(fixed=-0.1), r"λ is -0.1; expected \(0, 1\]"),
    "λ above 1": (lambda: Gate(fixed=1.1), r"λ is 1.1; expected \(0, 1\]"),
    "λ NaN": (lambda: Gate(fixed=float("nan")), r"λ is nan; expected \(0, 1\]"),
    "λ 0": (lambda: conservative(0.0), r"λ is 0.0; expected a share in \(0, 1\]"),
    "floor 0": (lambda: adaptive(floor=0.0), r"floor is 0.0; expected a share in \(0, 1\]"),
    "fallback above 1": (lambda: adaptive(fallback=2.0), r"fallback is 2.0; expected a share in \(0, 1\]"),
    "no tolerance": (lambda: adaptive(tolerance=0.0), "tolerance is 0.0; expected a positive"),
    "certain": (lambda: Gate(certificate="pilot", confidence=1.0), "confidence is 1.0; expected strictly between"),
    "one pilot": (lambda: Gate(certificate="pilot", pilots=1), "pilots is 1; .* at least 2"),
    "nothing frozen": (lambda: Gate(certificate="frozen"), "frozen_rho is None; .* at least 1"),
    "nothing to choose by": (lambda: Gate(certificate="none"), "λ cannot be chosen; pass fixed"),
    "unknown certificate": (
        lambda: checked(Gate(), certificate="gut"),
        "certificate is 'gut'; expected two-sided, guide-free",
    ),
    "no particles": (lambda: FilterSettings(particles=0), "particles is 0; expected at least 1"),
    "unknown resampler": (lambda: checked(FilterSettings(), resampler="dice"), "resampler is 'dice'; expected one of"),
    "unknown draws": (lambda: checked(FilterSettings(), draws="dice"), "draws is 'dice'; expected 'stratified' or"),
    "unknown gradient": (
        lambda: checked(FilterSettings(), gradient="dice"),
        "gradient is 'dice'; expected 'pathwise' or",
    ),
    "threshold above 1": (lambda: FilterSettings(ess_threshold=1.5), r"ess_threshold is 1.5; expected .* \[0, 1\]"),
    "soft 0": (lambda: FilterSettings(soft=0.0), r"soft is 0.0; expected a share in \(0, 1\]"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused(name):
    make, message = BAD_DATA[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_refused(name):
    make, message = BAD_SETTINGS[name]
    with pytest.raises(ValueError, match=message):
        make()


def two_modes(kernel=None, flow=None, emission=None, **options):
    kernel = mode_kernel(2) if kernel is None else kernel
    flow = linear_flow(np.stack([np.eye(2)] * 2)) if flow is None else flow
    return hybrid_model(
        kernel, flow, axis_emission(2, (0, 1), noise=0.5) if emission is None else emission, noise=0.3, **options
    )


def spoiled(where, value=np.nan):
    return lambda tree: eqx.tree_at(where, tree, replace_fn=lambda x: x.at[(0,) * x.ndim].set(value))


BAD_MODELS = {
    "no modes": (lambda: mode_kernel(0), "number of modes is 0; expected at least 1"),
    "certain to stay": (lambda: mode_kernel(2, stay=1.0), "stay is 1.0; expected a probability strictly"),
    "feasible shape": (lambda: mode_kernel(2, feasible=np.ones((3, 3))), r"shape \(3, 3\); expected \(2, 2\)"),
    "nowhere to go": (lambda: two_modes(mode_kernel(2, feasible=[[1, 1], [0, 0]])), "mode 1 has no feasible next mode"),
    "modes differ": (lambda: two_modes(mode_kernel(3)), "kernel has 3 modes and the flow has 2"),
    "start modes differ": (lambda: two_modes(start_mode=[0.2, 0.3, 0.5]), r"start_mode .*\(3,\).*expected \(?2"),
    "silent sensor": (lambda: axis_emission(2, (0, 1), noise=0.0), "noise is 0.0; expected more than the floor"),
    "no noise": (
        lambda: hybrid_model(
            mode_kernel(1), linear_flow(np.eye(2)[None]), axis_emission(2, (0,), noise=0.1), noise=0.0
        ),
        "noise is 0.0; expected more than the floor",
    ),
    "axis twice": (lambda: axis_emission(2, (0, 0), noise=0.1), r"axes are \(0, 0\); expected one coordinate"),
    "channel names": (lambda: two_modes(channels=["x"]), "1 channel names for 2 emission channels"),
    "zero scale": (lambda: two_modes(scale=[1.0, 0.0]), "scale .*0.0.*expected .*positive"),
    "integrator": (lambda: port_hamiltonian(1, 2, 0, polynomial(2, 2), integrator="euler"), "integrator is 'euler'"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models_are_refused(name):
    make, message = BAD_MODELS[name]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [lambda m: m.flow.matrix, lambda m: m.log_noise, lambda m: m.emission.matrix])
def test_a_model_that_is_not_finite_is_refused(where, value):
    model = spoiled(where, value)(two_modes())
    for run in (lambda: filter(model, log(), key=KEY), lambda: Stream(model, dt=0.1, key=KEY)):
        with pytest.raises(ValueError, match="parameter .* non-finite value; every parameter must be finite"):
            run()


def test_a_guide_that_is_not_finite_is_refused():
    model = two_modes()
    guide = spoiled(lambda p: p.network.weights[-1])(amortized_proposal(model, hidden=(4,), key=KEY))
    for run in (
        lambda: filter(model, log(), key=KEY, proposal=guide),
        lambda: Stream(model, dt=0.1, key=KEY, proposal=guide),
    ):
        with pytest.raises(ValueError, match="parameter .* non-finite value; every parameter must be finite"):
            run()


def test_a_log_that_does_not_fit_the_model_is_refused():
    model = two_modes(channels=["x", "y"])
    fits = log(channels=["x", "y"])
    for other, message in (
        (log(), r"channels \['y0', 'y1'\], the model expects \['x', 'y'\]. It lacks \['x', 'y'\]"),
        (log(channels=["y", "x"]), r"channels \['y', 'x'\], the model expects \['x', 'y'\]. Pick and order them"),
        (log(channels=["x", "y"], actions=np.zeros((ROWS - 1, 2))), "has 2 inputs, the model expects 0"),
    ):
        for run in (filter, lambda m, e, key: filter_episodes(m, [fits, e], key=key)):
            with pytest.raises(ValueError, match=message):
                run(model, other, key=KEY)


def test_a_channel_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"channel names repeat: \['x'\]"):
        two_modes(channels=["x", "x"])


@pytest.mark.parametrize("run", [filter_episodes, log_evidence])
def test_no_logs_are_refused(run):
    with pytest.raises(ValueError, match="no episodes given; expected at least one"):
        run(two_modes(), [], key=KEY)


def network_model():
    return two_modes(emission=network_emission(2, 2, noise=0.5, hidden=(4,), key=KEY))


def hamiltonian_model():
    return two_modes(flow=port_hamiltonian(2, 2, 0, polynomial(2, 2)))


MISMATCHES = {
    "closed form": (network_model, ConditionedProposal(), {}, "needs a linear emission"),
    "look-ahead": (
        network_model,
        ConditionedProposal(),
        {"lookahead": True, "gate": Gate(certificate="pilot")},
        "look-ahead needs",
    ),
    "gaussian sensor": (network_model, ConditionedProposal(), {"engine": "gaussian"}, "needs a linear emission"),
    "exact pilot": (
        two_modes,
        ConditionedProposal(),
        {"exact_modes": True, "gate": Gate(certificate="pilot")},
        "pilot certificate covers sampled modes only",
    ),
    "no guide": (two_modes, None, {}, "without a proposal every draw is the carrier's"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_settings_that_do_not_fit_the_model_are_refused(name):
    build, proposal, options, message = MISMATCHES[name]
    model, settings = build(), FilterSettings(particles=4, **options)
    with pytest.raises(ValueError, match=message):
        filter(model, log(), key=KEY, proposal=proposal, settings=settings)
    with pytest.raises(ValueError, match=message):
        Stream(model, dt=0.1, key=KEY, proposal=proposal, settings=settings)


def test_a_stream_refuses_bad_rows(switching_model):
    model = switching_model(2, inputs=1)
    for dt in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match=f"dt is {dt}; expected the positive time"):
            Stream(model, dt=dt, key=KEY)
    stream = Stream(model, dt=0.1, key=KEY, settings=FilterSettings(particles=4))
    with pytest.raises(ValueError, match="has not started; call `start"):
        stream.step([0.0], [0.0, 0.0])
    stream.start([0.0, np.nan])
    for action, row, message in (
        ([0.0], [0.0], r"observation has shape \(1,\); expected \(2,\) for channels \['y0', 'y1'\]"),
        ([0.0], [0.0, np.inf], "hold inf at row 0, channel 'y1'"),
        ([0.0, 1.0], [0.0, 0.0], r"action has shape \(2,\); expected \(1,\)"),
        ([np.nan], [0.0, 0.0], "action is .*nan.*; every entry must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.step(action, row)
    assert np.isfinite(stream.step([0.0], [0.0, 0.0]).record.log_normaliser)


# --- never NaN --------------------------------------------------------------------------------------------------------


def assert_sound(out, particles):
    """No NaN anywhere, probabilities sum to one, shares are shares."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        assert not np.isnan(leaf).any(), jax.tree_util.keystr(path)
    np.testing.assert_allclose(out.mode.sum(-1), 1.0, atol=1e-5)
    assert np.exp(out.final.log_weight).sum() == pytest.approx(1.0, abs=1e-5)
    assert (out.variance >= 0).all()
    assert (out.record.ess > 0.99 / particles).all()
    assert (out.record.ess < 1 + 1e-5).all()
    assert (out.record.mixing >= 0).all()
    assert (out.record.mixing_max <= 1).all()


def exploding(model, modes):
    """The model with flows in these modes that leave float32 in one or two steps."""
    burst = 1e25 * jnp.array([[1.0, -1.0], [1.0, 1.0]], model.dtype)
    return eqx.tree_at(lambda m: m.flow.matrix, model, model.flow.matrix.at[jnp.array(modes)].set(burst))


def outlier(size):
    Y = observations()
    Y[3, 0], Y[4], Y[6, 1] = size, np.nan, -size
    return Y


# name: (what the model becomes, what is seen, whether the evidence is a number)
TROUBLES = {
    "nothing seen": (lambda m: m, np.full((ROWS, 2), np.nan), True),
    "a glitch": (lambda m: m, outlier(1e4), True),
    "huge outliers": (lambda m: m, outlier(1e15), True),
    "larger than float32 squares": (lambda m: m, outlier(1e25), False),
    "one mode explodes": (lambda m: exploding(m, [1]), outlier(0.0), True),
    "both modes explode": (lambda m: exploding(m, [0, 1]), outlier(0.0), False),
}

VARIANTS = {
    "default": (True, "conditioned", FilterSettings(particles=32)),
    "amortized": (False, "amortized", FilterSettings(particles=32)),
    "residual": (True, "residual", FilterSettings(particles=32, draws="bernoulli")),
    "look-ahead": (True, "conditioned", FilterSettings(particles=32, lookahead=True)),
    "exact-modes": (False, "conditioned", FilterSettings(particles=16, exact_modes=True)),
    "gaussian": (True, "conditioned", FilterSettings(particles=16, engine="gaussian")),
    "pilot": (False, "conditioned", FilterSettings(particles=32, gate=Gate(certificate="pilot"))),
    "bootstrap": (True, None, bootstrap(particles=32)),
    "one-particle": (False, "conditioned", FilterSettings(particles=1, ess_threshold=1.0)),
    "one-exact": (False, "conditioned", FilterSettings(particles=1, exact_modes=True, lookahead=True)),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("name", VARIANTS)
def test_never_a_nan(switching_model, name, trouble):
    dense, guide, settings = VARIANTS[name]
    spoil, seen, finite = TROUBLES[trouble]
    model = spoil(switching_model(2, dense=dense, dtype=jnp.float32))
    proposal = {
        None: lambda: None,
        "conditioned": ConditionedProposal,
        "amortized": lambda: amortized_proposal(model, hidden=(4,), key=KEY),
        "residual": lambda: conditioned_proposal(model, residual=(4,), key=KEY),
    }[guide]()
    out = filter(model, log(seen), key=KEY, proposal=proposal, settings=settings)
    assert_sound(out, out.final.mode.shape[0])
    assert np.isfinite(out.log_evidence) or not finite or settings.particles == 1
    if trouble == "nothing seen" and guide != "amortized":
        assert out.log_evidence == pytest.approx(0.0, abs=1e-4)


def test_an_exploding_hamiltonian_is_never_a_nan():
    flow = port_hamiltonian(2, 2, 0, polynomial(2, 4), coefficients=np.array([[0.5], [1e6]]), substeps=2)
    model = two_modes(flow=flow)
    for options in ({"lookahead": True}, {"exact_modes": True}):
        settings = FilterSettings(particles=16, **options)
        out = filter(model, log(), key=KEY, settings=settings)
        assert_sound(out, settings.particles * (2 if settings.exact_modes else 1))


def test_a_step_whose_every_weight_is_zero_is_redrawn_from_the_carrier(switching_model):
    """Mode 1 can never be entered: every move of the guide is impossible."""
    model = switching_model(2, feasible=[[True, False], [True, False]])
    out = filter(
        model, log(), key=KEY, proposal=Wrong(), settings=FilterSettings(particles=64, gate=no_support(), history=True)
    )
    assert_sound(out, 64)
    assert not out.record.redrawn[0]  # a first mode may be 1
    assert out.record.redrawn[1:].all()
    assert out.log_evidence == -np.inf  # what was drawn instead serves the belief, not the evidence
    assert (out.history.mode[1:] == 0).all()
    assert not out.record.certified.any()
    held = filter(model, log(), key=KEY, proposal=Wrong(), settings=FilterSettings(particles=64, engine="mixture"))
    assert not held.record.redrawn.any()


@pytest.mark.parametrize("gate", [Gate(certificate="frozen", frozen_rho=2.0), Gate(certificate="none", fixed=0.3)])
def test_exact_modes_work_with_every_gate_that_is_not_refused(gate):
    """A network emission leaves only these gates, and learning by exact sums needs one of them."""
    settings = FilterSettings(particles=8, gate=gate, exact_modes=True)
    assert_sound(filter(network_model(), log(), key=KEY, settings=settings), 16)


# --- records keep their word ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 0.6, 1.0])
def test_records_describe_the_step(switching_model, threshold):
    model, rows = switching_model(2, sharp=2.0), 12
    values = np.random.default_rng(1).standard_normal((rows, 2))
    settings = FilterSettings(particles=64, ess_threshold=threshold, gate=Gate(fixed=0.3))
    out = filter(model, log(values), key=KEY, settings=settings)
    record = out.record
    assert (record.step_ess > 0).all()
    assert (record.step_ess <= 1).all()
    np.testing.assert_allclose(record.relative_variance, 1 / record.step_ess - 1, rtol=1e-9)
    wanted = record.ess[:-1] < threshold if threshold < 1 else np.ones(rows - 1, bool)
    assert not record.resampled[0]
    np.testing.assert_array_equal(record.resampled[1:], wanted)
    if threshold == 0.6:
        assert 0 < wanted.sum() < rows - 1  # or the rule was never put to the question
    if threshold == 1:
        np.testing.assert_allclose(record.ess, record.step_ess, rtol=1e-9)
    np.testing.assert_allclose(record.mixing, 0.3)
    assert out.log_evidence == pytest.approx(record.log_normaliser.sum(), rel=1e-12)
    weight = np.exp(out.final.log_weight)
    assert record.ess[-1] == pytest.approx(weight.sum() ** 2 / (64 * (weight**2).sum()), rel=1e-9)
    np.testing.assert_allclose(out.mean[-1], out.final.z @ weight, rtol=1e-9)
    assert out.history is None
    assert record.pareto_k is None


def test_history_and_pareto_come_on_request(switching_model):
    settings = FilterSettings(particles=32, history=True, pareto=True)
    full = filter(switching_model(2), log(), key=KEY, settings=settings)
    assert full.history.mode.shape == (ROWS, 32)
    assert full.history.z.shape == (ROWS, 2, 32)
    assert full.history.log_weight.shape == (ROWS, 32)
    assert full.record.pareto_k.shape == (ROWS,)
    np.testing.assert_allclose(full.history.z[-1], full.final.z)


def test_units_change_the_evidence_by_their_jacobian(switching_model):
    shift, scale = np.array([3.0, -40.0]), np.array([100.0, 1e-3])
    raw, standard = switching_model(2, shift=shift, scale=scale), switching_model(2)
    Y = outlier(np.nan)
    settings = FilterSettings(particles=32)
    one = filter(raw, log(shift + scale * Y), key=KEY, settings=settings)
    other = filter(standard, log(Y), key=KEY, settings=settings)
    jacobian = -np.where(np.isnan(Y), 0.0, np.log(scale)).sum(-1)
    expected = other.record.log_normaliser + jacobian
    np.testing.assert_allclose(one.record.log_normaliser, expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-8)
    assert one.log_evidence == pytest.approx(other.log_evidence + jacobian.sum(), rel=1e-9)
