"""The hybrid model: structure no parameter can break, energy that does not grow, builders that refuse."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.emission import NetworkEmission, Observation
from vhydro.flow import LinearFlow, Reset
from vhydro.library import Cosine, Custom, Monomial, Penetration, Sine, polynomial, slope, values
from vhydro.model import (
    HybridModel,
    axis_emission,
    hybrid_model,
    linear_emission,
    linear_flow,
    mode_kernel,
    network_emission,
    port_hamiltonian,
)
from vhydro.network import network
from vhydro.proposal import ConditionedProposal, amortized_proposal, conditioned_proposal

DTYPES = [jnp.float32, jnp.float64]
DOUBLE = {"dtype": jnp.float64}


def randomised(module, seed, size=1.0):
    """The same module with every parameter replaced by noise."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(size * rng.standard_normal(x.shape), x.dtype) if eqx.is_inexact_array(x) else x,
        module,
    )


# --- structure ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latent", [1, 4])
def test_no_parameter_breaks_the_structure(latent):
    flow = port_hamiltonian(3, latent, 1, polynomial(latent, 2), **DOUBLE)
    for seed, size in enumerate((1e-3, 1.0, 1e3)):
        wild = randomised(flow, seed, size)
        skew, resistance = np.asarray(wild.skew()), np.asarray(wild.resistance())
        np.testing.assert_array_equal(skew, -np.swapaxes(skew, 1, 2))
        np.testing.assert_array_equal(resistance, np.swapaxes(resistance, 1, 2))
        smallest = np.linalg.eigvalsh(resistance).min(-1)
        assert (smallest >= -1e-12 * np.trace(resistance, axis1=1, axis2=2)).all()
        assert (resistance != 0).all()


def test_the_default_structure_is_canonical():
    """Positions move with momenta, momenta with forces: `q' = ∂H/∂p`, `p' = −∂H/∂q`."""
    flow = port_hamiltonian(1, 4, 0, polynomial(4, 2), **DOUBLE)
    np.testing.assert_array_equal(flow.skew()[0], np.kron([[0, 1], [-1, 0]], np.eye(2)))
    np.testing.assert_array_equal(flow.resistance(), 0.0)


def test_the_library_says_what_it_computes():
    z = jnp.array([0.7, -1.3])
    library = (
        Monomial((2, 1)),
        Sine(0),
        Cosine(1),
        Penetration(0, 0.2),
        Penetration(1, -1.0, "below"),
        Monomial((0, 0)),
    )
    expected = [0.7**2 * -1.3, np.sin(0.7), np.cos(-1.3), 0.5 * 0.5**2, 0.5 * 0.3**2, 1.0]
    np.testing.assert_allclose(values(library, z), expected, rtol=1e-12)
    assert [term.text(["q", "p"]) for term in library] == [
        "q^2 p",
        "sin(q)",
        "cos(p)",
        "½[q − 0.2]₊²",
        "½[−1 − p]₊²",
        "1",
    ]
    assert len(polynomial(3, 2)) == 9
    with pytest.raises(ValueError, match=r"degree is 0; .* at least 1"):
        polynomial(2, 0)


@pytest.mark.parametrize(
    "term",
    [
        Monomial((2, 1)), Monomial((0, 3)), Monomial((0, 0)), Sine(0), Cosine(1), Penetration(0, 0.2, power=1),
        Penetration(0, 0.2), Penetration(0, 1.2, "below", 3), Custom(lambda z: jnp.exp(z[0]) * z[1], "eq p"),
    ],
    ids=lambda t: t.text(("q", "p", "x", "y")),
)  # fmt: skip
def test_a_slope_is_the_gradient(term):
    points = np.random.default_rng(0).uniform(0.3, 1.1, (2, 40))  # past every surface above
    exact = np.asarray(jax.vmap(jax.grad(term.value), 1, 1)(jnp.asarray(points)))
    for axis in (0, 1):
        for z in (points, tuple(points), tuple(jnp.asarray(points)), jnp.asarray(points)):
            np.testing.assert_allclose(np.broadcast_to(slope(term, axis, z), 40), exact[axis], rtol=1e-12)
        one = [slope(term, axis, tuple(map(float, points[:, i]))) for i in range(3)]
        np.testing.assert_allclose(np.array(one, float), exact[axis, :3], rtol=1e-12)


def test_a_slope_stays_on_the_side_of_its_mode_and_moves_with_its_place():
    z = np.array([[0.0, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(slope(Penetration(0, 0.4), 0, z), [-0.4, 0.6])  # not cut off at the surface
    np.testing.assert_allclose(slope(Penetration(0, 0.0), 0, z, 0.4), [-0.4, 0.6])
    np.testing.assert_allclose(slope(Penetration(0, 0.0, "below"), 0, z, 0.4), [-0.4, 0.6])
    np.testing.assert_array_equal(slope(Penetration(0, 0.0, "below", 1), 0, z, 0.4), [-1, -1])


def test_a_term_of_ones_own_is_a_term_like_any_other():
    term = Custom(lambda z: z[0] ** 2 * z[1], "mine")
    z = jnp.array([[0.7, 1.0], [-1.3, 2.0]])
    np.testing.assert_allclose(values((term, Sine(0)), z)[0], values((Monomial((2, 1)),), z)[0])
    assert term.text(["q", "p"]) == "mine"


@pytest.mark.parametrize("term", [Sine(0), Custom(lambda z: jnp.sin(z[0]), "my sine")], ids=["sine", "custom"])
def test_a_slope_keeps_the_precision_of_numpy(term):
    with jax.enable_x64(False):
        found = slope(term, 0, np.array([[0.3], [0.0]]))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.cos(0.3), rtol=1e-14)


# --- energy -------------------------------------------------------------------------------------------------

MODES, CASES = 2, 12
ENERGY = (*polynomial(2, 2)[2:], Cosine(0), Sine(0))  # q², qp, p², cos q, sin q


def random_energy(seed, *, dissipation=None, **options):
    """A flow with a random convex quadratic plus a pendulum's terms in every mode."""
    rng = np.random.default_rng(seed)
    root = np.eye(2) + 0.3 * rng.standard_normal((MODES, 2, 2))
    convex = root @ np.swapaxes(root, 1, 2)
    quadratic = np.stack([0.5 * convex[:, 0, 0], convex[:, 0, 1], 0.5 * convex[:, 1, 1]], 1)
    coefficients = np.concatenate([quadratic, 0.5 * rng.standard_normal((MODES, 2))], 1)
    factor = None if dissipation is None else np.tril(dissipation * rng.standard_normal((MODES, 2, 2)))
    resistance = None if factor is None else factor @ np.swapaxes(factor, 1, 2)
    return port_hamiltonian(MODES, 2, 0, ENERGY, coefficients=coefficients, dissipation=resistance, **options, **DOUBLE)


def test_the_resistance_is_the_one_given():
    given = np.array([[[0.0, 0.0], [0.0, 0.3]], [[2.0, 0.5], [0.5, 0.25]]])
    flow = port_hamiltonian(2, 2, 0, ENERGY, dissipation=given, **DOUBLE)
    np.testing.assert_allclose(flow.resistance(), given, atol=1e-12)


@pytest.mark.parametrize("given", [np.diag([0.0, -0.3]), [[0.1, 0.2], [0.0, 0.1]], [[0.1, 0.5], [0.5, 0.1]]])
def test_a_resistance_that_gives_energy_is_refused(given):
    with pytest.raises(ValueError, match="expected R symmetric and positive semidefinite.*Check the sign"):
        port_hamiltonian(2, 2, 0, ENERGY, dissipation=given)


def energies(flow, dt, duration=2.0):
    """The energy of every mode along its own path from many starts: (steps + 1, starts, modes)."""
    starts = jnp.asarray(np.random.default_rng(0).standard_normal((CASES, MODES, 2)))

    @jax.jit
    def run(starts):
        def step(z, _):
            energy = jnp.diagonal(jax.vmap(jax.vmap(flow.energy))(z), axis1=1, axis2=2)
            return jax.vmap(lambda each: flow.step(each, jnp.zeros(0), jnp.asarray(dt)))(z), energy

        return jax.lax.scan(step, starts, None, length=round(duration / dt) + 1)[1]

    return np.asarray(run(starts))


@pytest.mark.parametrize(("integrator", "order"), [("midpoint", 2), ("rk4", 4)])
def test_energy_is_kept_to_the_integrators_order(integrator, order):
    """Without dissipation the drift shrinks by 2^order at least when the step is halved."""
    flow = random_energy(1, integrator=integrator)
    drift = [np.abs(e[-1] - e[0]).mean() for e in (energies(flow, dt) for dt in (0.1, 0.05))]
    assert order - 0.3 < np.log2(drift[0] / drift[1]) < order + 1.5


@pytest.mark.parametrize(("integrator", "order"), [("midpoint", 2), ("rk4", 4)])
def test_the_integrator_has_its_order(integrator, order):
    flow = random_energy(5, dissipation=0.3, integrator=integrator)
    start = jnp.asarray(np.random.default_rng(0).standard_normal((MODES, 2)))

    @jax.jit
    def end(steps):
        return jax.lax.fori_loop(0, steps, lambda _, z: flow.step(z, jnp.zeros(0), 1.0 / steps), start)

    exact, coarse, fine = end(256), end(8), end(16)
    assert np.log2(jnp.linalg.norm(coarse - exact) / jnp.linalg.norm(fine - exact)) == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize(("integrator", "order"), [("midpoint", 2), ("rk4", 4)])
def test_energy_never_grows_to_the_integrators_order(integrator, order):
    """With dissipation any growth is the integrator's: it vanishes by 2^order when the step is halved."""
    growth = []
    for dt in (0.2, 0.1):
        steps = np.diff(energies(random_energy(2, dissipation=0.2, integrator=integrator), dt), axis=0)
        growth.append(np.maximum(steps, 0.0).sum(0).max())
        assert steps.sum(0).max() < 0  # on the whole every path loses energy
    assert growth[1] <= growth[0] / 2 ** (order - 0.8)


def test_strong_dissipation_stops_all_growth():
    for integrator in ("midpoint", "rk4"):
        assert np.diff(energies(random_energy(3, dissipation=1.0, integrator=integrator), 0.02), axis=0).max() <= 0


def test_substeps_are_steps():
    whole, parts = random_energy(4, substeps=1), random_energy(4, substeps=2)
    z, none = jnp.asarray(np.random.default_rng(0).standard_normal((MODES, 2))), jnp.zeros(0)
    half = jax.jit(lambda z: whole.step(z, none, jnp.asarray(0.05)))
    both = jax.jit(lambda z: parts.step(z, none, jnp.asarray(0.1)))
    np.testing.assert_allclose(both(z), half(half(z)), rtol=1e-13)


def test_the_port_does_work_and_modes_do_not_mix():
    flow = randomised(port_hamiltonian(2, 2, 1, polynomial(2, 2), **DOUBLE), 5, 0.3)
    z, dt = jnp.array([[0.3, -0.2], [1.0, 0.5]]), jnp.asarray(1e-4)
    moved = (flow.step(z, jnp.array([0.7]), dt) - z) / dt
    gradient = jnp.stack([jax.grad(lambda x, s=s: flow.energy(x)[s])(z[s]) for s in range(2)])
    rate = jnp.einsum("sij,sj->si", flow.skew() - flow.resistance(), gradient) + flow.port[..., 0] * 0.7
    np.testing.assert_allclose(moved, rate, rtol=1e-3)
    other = flow.step(z.at[1].set(9.0), jnp.array([0.7]), dt)
    np.testing.assert_array_equal(other[0], flow.step(z, jnp.array([0.7]), dt)[0])


def test_the_smooth_term_adds_its_energy():
    extra = network(2, (5,), MODES, key=jax.random.key(0), dtype=jnp.float64)
    flow = random_energy(6)
    z = jnp.array([0.4, -0.3])
    smooth = eqx.tree_at(lambda f: f.smooth, flow, extra, is_leaf=lambda x: x is None)
    np.testing.assert_allclose(smooth.energy(z), flow.energy(z) + extra(z))
    drift = np.diff(energies(smooth, 0.02), axis=0)
    assert np.abs(drift.sum(0)).max() < 1e-5  # still a Hamiltonian flow


# --- resets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_a_reset_never_adds_kinetic_energy(size):
    """Positions stay, momenta shrink or turn, and staying in the mode changes nothing."""
    rng = np.random.default_rng(0)
    reset = Reset(jnp.asarray(size * rng.standard_normal((3, 3, 2))), (1, 3))
    z = jnp.asarray(rng.standard_normal((50, 4)))
    mode = jnp.asarray(rng.integers(3, size=50))
    after = np.asarray(jax.vmap(reset.starts)(mode, z))
    np.testing.assert_array_equal(after[..., [0, 2]], np.broadcast_to(z[:, None, [0, 2]], (50, 3, 2)))
    momenta = np.asarray(z)[:, None, [1, 3]]
    assert (np.abs(after[..., [1, 3]]) <= np.abs(momenta)).all()
    same = np.arange(3) == np.asarray(mode)[:, None]
    np.testing.assert_array_equal(after[same], z)
    assert (after[~same] != np.repeat(z, 2, axis=0)).any()


def test_a_reset_is_the_restitution_of_its_pair_of_modes():
    raw = np.arctanh(np.array([[[0.0], [-0.8]], [[0.5], [0.0]]]))
    reset = Reset(jnp.asarray(raw), (1,))
    z = jnp.array([2.0, 3.0])
    np.testing.assert_allclose(reset.starts(jnp.asarray(0), z), [[2.0, 3.0], [2.0, -2.4]])
    np.testing.assert_allclose(reset.starts(jnp.asarray(1), z), [[2.0, 1.5], [2.0, 3.0]])


# --- kernel -------------------------------------------------------------------------------------------------

FEASIBLE = np.array([[True, True, False], [False, True, True], [True, False, False]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("driven", [False, True])
def test_forbidden_moves_have_exactly_no_probability(driven, dtype):
    drive = network(3, (4,), 3, key=jax.random.key(0), dtype=dtype) if driven else None
    kernel = mode_kernel(3, feasible=FEASIBLE, drive=drive, dtype=dtype)
    kernel = randomised(kernel, 1, 5.0)
    z = jnp.asarray(np.random.default_rng(0).standard_normal((20, 2)), dtype)
    log_prob = jax.vmap(lambda z: jax.vmap(lambda m: kernel.log_probability(m, z, jnp.zeros(1, dtype)))(jnp.arange(3)))(
        z
    )
    assert log_prob.dtype == dtype
    prob = np.exp(np.asarray(log_prob, np.float64))
    np.testing.assert_array_equal(prob[:, ~FEASIBLE], 0.0)
    assert (prob[:, FEASIBLE] > 0).all()
    np.testing.assert_allclose(prob.sum(-1), 1.0, rtol=10 * jnp.finfo(dtype).eps)
    assert (np.ptp(prob, axis=0).max() > 1e-3) == driven  # only a drive reads z


def test_an_unlearned_kernel_stays():
    kernel = mode_kernel(3, stay=0.7, **DOUBLE)
    rows = [np.exp(kernel.log_probability(jnp.asarray(m), jnp.zeros(1), jnp.zeros(0))) for m in range(3)]
    np.testing.assert_allclose(rows, 0.55 * np.eye(3) + 0.15)
    np.testing.assert_allclose(mode_kernel(1).log_probability(jnp.asarray(0), jnp.zeros(1), jnp.zeros(0)), [0.0])


# --- the whole model ----------------------------------------------------------------------------------------


def small_model(dtype=jnp.float64, *, modes=2, latent=2, inputs=1, flow=None, emission=None, **options):
    rng = np.random.default_rng(0)
    if flow is None:
        flow = linear_flow(
            0.5 * rng.standard_normal((modes, latent, latent)),
            rng.standard_normal((modes, latent)),
            rng.standard_normal((modes, latent, inputs)),
            dtype=dtype,
        )
    emission = axis_emission(latent, (0,), noise=0.3, dtype=dtype) if emission is None else emission
    return hybrid_model(mode_kernel(modes, dtype=dtype), flow, emission, **({"noise": 0.2} | options))


def test_the_shared_path_is_the_general_one():
    """Linear flows without reset take one matrix product; a reset that changes nothing takes the long way."""
    model = small_model(modes=3)
    idle = Reset(jnp.full((3, 3, 1), 50.0), (1,))  # tanh 50 = 1 in double precision
    general = eqx.tree_at(lambda m: m.reset, model, idle, is_leaf=lambda x: x is None)
    at = jnp.asarray(1), jnp.array([0.3, -0.8]), jnp.array([0.6]), jnp.asarray(0.1)
    np.testing.assert_allclose(model.next_means(*at), general.next_means(*at), rtol=1e-14)
    flow = model.flow
    expected = [f @ at[1] + o + p @ at[2] for f, o, p in zip(flow.matrix, flow.offset, flow.port, strict=True)]
    np.testing.assert_allclose(model.next_means(*at), np.stack(expected), rtol=1e-14)
    np.testing.assert_array_equal(model.next_means(*at), model.transition(*at).mean)


def test_a_reset_acts_before_the_flow():
    reset = Reset(jnp.asarray(np.random.default_rng(1).standard_normal((2, 2, 1))), (1,))
    model = small_model(reset=reset)
    at = jnp.asarray(0), jnp.array([0.3, -0.8]), jnp.array([0.6]), jnp.asarray(0.1)
    expected = model.flow.step(reset.starts(at[0], at[1]), at[2], at[3])
    np.testing.assert_array_equal(model.next_means(*at), expected)


@pytest.mark.parametrize("linear", [True, False], ids=["linear", "with networks"])
def test_many_particles_are_one_after_another(linear):
    """Everything a model or a guide says of one particle, along a last axis."""
    key, n, modes = jax.random.key(0), 5, 3
    reset, flow, emission, drive = None, None, None, None
    if not linear:
        reset = Reset(jnp.asarray(np.random.default_rng(2).standard_normal((modes, modes, 1))), (1,))
        smooth = network(2, (3,), modes, key=key, **DOUBLE)
        flow = port_hamiltonian(modes, 2, 1, ENERGY, smooth=smooth, substeps=2, **DOUBLE)
        flow = randomised(flow, 3, 0.4)
        emission = network_emission(2, 2, noise=0.3, key=key, **DOUBLE)
        drive = network(3, (4,), modes, key=key, **DOUBLE)
    model = small_model(modes=modes, flow=flow, emission=emission, reset=reset)
    kernel = randomised(mode_kernel(modes, feasible=FEASIBLE, drive=drive, **DOUBLE), 4)
    model = eqx.tree_at(lambda m: m.kernel, model, kernel)
    channels = len(model.channels)
    guides = [
        ConditionedProposal(),
        randomised(conditioned_proposal(model, residual=(4,), key=key), 5, 0.3),
        randomised(amortized_proposal(model, hidden=(4,), key=key), 6, 0.3),
    ]
    seen = Observation(jnp.full(channels, 0.4), jnp.arange(channels) == 0)

    def everything(mode, z):
        carrier = model.transition(mode, z, jnp.array([0.6]), jnp.asarray(0.1))
        after = jax.vmap(model.emission.condition, (0, 0, None))(carrier.mean, carrier.scale, seen)
        said = [guide.guide(model, carrier, after, mode, z, jnp.array([0.6]), seen) for guide in guides]
        return carrier, after, said, model.emission.log_likelihood(z, seen), model.emission.mean(z)

    rng = np.random.default_rng(7)
    at = jnp.asarray(rng.integers(modes, size=n)), jnp.asarray(rng.standard_normal((2, n)))
    many, alone = jax.jit(everything)(*at), jax.jit(jax.vmap(everything, -1, -1))(*at)
    for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(jnp.broadcast_to(a, b.shape), b, rtol=1e-9, atol=1e-11)


def test_what_was_given_is_what_the_model_holds():
    """Standard deviations and probabilities come back as they were given, floors included."""
    model = small_model(
        noise=[[0.2, 0.3], [0.4, 0.5]],
        start_mode=[0.25, 0.75],
        start_mean=[1.0, 2.0],
        start_scale=[[0.5, 0.6], [0.7, 0.8]],
        emission=linear_emission([[1.0, 2.0]], noise=0.07, offset=[0.5], noise_floor=0.01, **DOUBLE),
        noise_floor=0.05,
    )
    np.testing.assert_allclose(model.noise, [[0.2, 0.3], [0.4, 0.5]], rtol=1e-12)
    np.testing.assert_allclose(model.emission.noise, [0.07], rtol=1e-12)
    np.testing.assert_allclose(model.emission.mean(jnp.array([1.0, 1.0])), [3.5])
    start = model.start()
    np.testing.assert_allclose(np.exp(start.log_mode), [0.25, 0.75], rtol=1e-12)
    np.testing.assert_array_equal(start.mean, [[1.0, 2.0]] * 2)
    np.testing.assert_allclose(start.scale, [[0.5, 0.6], [0.7, 0.8]], rtol=1e-12)


def test_no_parameter_takes_the_noise_below_its_floor():
    wild = randomised(small_model(noise_floor=0.05), 0, 1e3)
    for scale in (wild.noise, wild.start().scale):
        assert (scale >= 0.05).all()
    assert (wild.emission.noise >= wild.emission.noise_floor).all()


def test_likelihoods_skip_hidden_channels():
    emission = linear_emission([[1.0, 2.0], [0.5, 0.0]], noise=[0.3, 0.4], **DOUBLE)
    z, value = jnp.array([0.2, 0.1]), jnp.array([0.5, 77.0])
    seen = emission.log_likelihood(z, Observation(value, jnp.array([True, False])))
    expected = -0.5 * (0.1 / 0.3) ** 2 - np.log(0.3) - 0.5 * np.log(2 * np.pi)
    assert float(seen) == pytest.approx(expected, rel=1e-12)
    assert emission.log_likelihood(z, Observation(value, jnp.zeros(2, bool))) == 0


def test_a_network_emission_is_conditioned_as_its_linearisation():
    emission = network_emission(2, 3, noise=0.3, key=jax.random.key(0), **DOUBLE)
    assert isinstance(emission, NetworkEmission)
    mean, scale = jnp.array([0.2, -0.4]), jnp.array([0.5, 0.6])
    slope = jax.jacobian(emission.mean)(mean)
    same = linear_emission(slope, noise=0.3, offset=emission.mean(mean) - slope @ mean, **DOUBLE)
    seen = Observation(jnp.array([0.1, 0.2, 0.3]), jnp.array([True, False, True]))
    updates = [jax.jit(lambda m, each=each: each.condition(m, scale, seen))(mean) for each in (emission, same)]
    for a, b in zip(*updates, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["linear", "port-Hamiltonian"])
def test_dtypes_go_through(kind, dtype):
    flow = None if kind == "linear" else port_hamiltonian(2, 2, 1, polynomial(2, 2), dtype=dtype)
    reset = None if kind == "linear" else Reset(jnp.zeros((2, 2, 1), dtype), (1,))
    model = small_model(dtype, flow=flow, reset=reset)
    assert model.dtype == dtype
    at = jnp.asarray(0), jnp.zeros(2, dtype), jnp.zeros(1, dtype), jnp.asarray(0.1, dtype)
    seen = Observation(jnp.zeros(1, dtype), jnp.ones(1, bool))

    def outputs(*at):
        carrier = model.transition(*at)
        return model.start(), carrier, model.emission.condition(carrier.mean[0], carrier.scale[0], seen)

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(outputs, *at))} == {jnp.dtype(dtype)}


# --- misuse -------------------------------------------------------------------------------------------------


def unfit(**options):
    return lambda: small_model(**options)


REFUSED = {
    "no modes": (lambda: mode_kernel(0), r"number of modes is 0; expected at least 1"),
    "no modes of a flow": (
        lambda: port_hamiltonian(0, 2, 0, ()),
        r"number of modes is 0; expected at least 1",
    ),
    "no latent": (lambda: port_hamiltonian(1, 0, 0, ()), r"latent size is 0; expected at least 1"),
    "no substeps": (lambda: port_hamiltonian(1, 2, 0, (), substeps=0), r"substeps is 0; expected at least 1"),
    "integrator": (
        lambda: port_hamiltonian(1, 2, 0, (), integrator="euler"),
        r"'euler'; expected 'midpoint' or 'rk4'",
    ),
    "certain stay": (lambda: mode_kernel(2, stay=1.0), r"stay is 1\.0; expected .* between 0 and 1"),
    "feasible shape": (lambda: mode_kernel(2, feasible=np.ones((3, 3))), r"\(3, 3\); expected \(2, 2\)"),
    "coefficients": (
        lambda: port_hamiltonian(2, 2, 0, polynomial(2, 1), coefficients=np.zeros(3)),
        r"coefficients has shape \(3,\); expected \(2, 2\)",
    ),
    "port": (lambda: port_hamiltonian(2, 2, 1, (), port=np.zeros((2, 2, 3))), r"\(2, 2, 3\); expected \(2, 2, 1\)"),
    "flow rank": (lambda: linear_flow(np.zeros((2, 2))), r"\(2, 2\).*expected"),
    "flow not square": (lambda: linear_flow(np.zeros((2, 3, 2))), r"\(2, 3, 2\).*expected"),
    "flow offset": (lambda: linear_flow(np.zeros((2, 3, 3)), np.zeros(4)), r"\(4,\).*\(2, 3\)"),
    "flow port": (
        lambda: linear_flow(np.zeros((2, 3, 3)), port=np.zeros((2, 2, 1))),
        r"\(2, 2, 1\).*expected",
    ),
    "sensor noise": (
        lambda: linear_emission(np.eye(2), noise=1e-5),
        r"noise is 1e-05; expected more than the floor",
    ),
    "network noise": (
        lambda: network_emission(2, 2, noise=1e-5, key=jax.random.key(0)),
        r"noise is 1e-05; expected more than the floor",
    ),
    "sensor rank": (lambda: linear_emission(np.zeros(3), noise=0.1), r"\(3,\).*expected"),
    "axes twice": (lambda: axis_emission(2, (0, 0), noise=0.1), r"axes are \(0, 0\); expected .* once"),
    "axes too few": (
        lambda: linear_emission(np.eye(2), noise=0.1, axes=(0,)),
        r"axes are \(0,\); expected .* 2 channels",
    ),
    "axes beyond": (lambda: axis_emission(2, (5,), noise=0.1), r"\(5,\).*expected"),
    "axes of a full sensor": (
        lambda: linear_emission(np.ones((1, 2)), noise=0.1, axes=(0,)),
        r"axes.*expected",
    ),
    "noise at the floor": (unfit(noise=1e-4), r"noise is 0\.0001; expected more than the floor"),
    "noise shape": (unfit(noise=np.ones(3)), r"\(3,\).*expected"),
    "modes of the kernel": (
        lambda: hybrid_model(
            mode_kernel(3), linear_flow(np.zeros((2, 2, 2))), axis_emission(2, (0,), noise=0.1), noise=1.0
        ),
        r"kernel has 3 modes and the flow has 2",
    ),
    "latent of the sensor": (unfit(emission=axis_emission(3, (2,), noise=0.1, **DOUBLE)), r"3.*2|2.*3"),
    "channel names": (unfit(channels=["a", "b"]), r"2 channel names for 1 emission channels; name every"),
    "start modes": (unfit(start_mode=[0.2, 0.3, 0.5]), r"start_mode.*\(3,\).*expected"),
    "start scale": (unfit(start_scale=-1.0), r"start_scale.*-1\.0.*expected"),
    "channel scale": (unfit(scale=0.0), r"scale.*0\.0.*expected"),
    "action scale": (unfit(action_scale=0.0), r"action_scale.*0\.0.*expected"),
    "non-finite start": (
        unfit(start_mean=np.nan),
        r"start_mean holds a non-finite value; .* must be finite\. Use",
    ),
    "non-finite noise": (unfit(noise=np.inf), r"log_noise holds a non-finite value"),
}


@pytest.mark.parametrize(("build", "words"), REFUSED.values(), ids=REFUSED)
def test_a_builder_refuses(build, words):
    """What was found and what was expected, before anything is built."""
    with pytest.raises(ValueError, match=words):
        build()


def test_validation_finds_what_training_broke():
    model = small_model()
    assert model.validate() is model
    broken = eqx.tree_at(lambda m: m.flow.matrix, model, model.flow.matrix.at[0, 0, 1].set(jnp.nan))
    with pytest.raises(ValueError, match=r"flow\.matrix holds a non-finite value; every parameter must be finite"):
        broken.validate()
    stuck = eqx.tree_at(lambda m: m.kernel.feasible, model, model.kernel.feasible.at[1].set(False))
    with pytest.raises(ValueError, match=r"mode 1 has no feasible next mode; allow at least one"):
        stuck.validate()
    assert isinstance(model.flow, LinearFlow)


def two_channels() -> HybridModel:
    flow = linear_flow(np.stack([np.eye(2), 0.5 * np.eye(2)]))
    return hybrid_model(mode_kernel(2), flow, axis_emission(2, [0, 1], noise=1.0), noise=1.0, channels=["a", "b"])


# What a file made by hand could hold: each would be spread over all modes or channels, without a word.
CRAFTED = {
    "names of fewer channels": (lambda m: replace(m, channels=("a",)), "shift has the shape"),
    "a name twice": (lambda m: replace(m, channels=("a", "a")), r"channel names repeat: \['a'\]"),
    "one shift for all": (lambda m: changed(m, "shift", m.shift[:1]), r"shift has the shape \(1,\); expected"),
    "one scale for all": (lambda m: changed(m, "scale", m.scale[:1]), r"scale has the shape \(1,\); expected"),
    "one start for all": (lambda m: changed(m, "start_mean", m.start_mean[:1]), "start_mean has the shape"),
    "other inputs": (lambda m: changed(m, "action_scale", jnp.ones(7)), "flow.port has the shape"),
    "a kernel of one mode": (lambda m: changed(m, "kernel", mode_kernel(1)), "kernel.logits has the shape"),
    "sensors of one channel": (
        lambda m: changed(m, "emission", axis_emission(2, [0], noise=1.0)),
        "the emission has 1 channels; expected 2",
    ),
}


def changed(model: HybridModel, name: str, value) -> HybridModel:
    return eqx.tree_at(lambda m: getattr(m, name), model, value)


@pytest.mark.parametrize(("craft", "words"), CRAFTED.values(), ids=CRAFTED)
def test_validation_finds_what_would_be_spread_without_a_word(craft, words):
    with pytest.raises(ValueError, match=words):
        craft(two_channels()).validate()
