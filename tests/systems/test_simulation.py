"""What every system must keep: the law it states, energy, order of accuracy, labels, keys, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from vhydro.systems import Block, Pendulum, Puck, Pushing, law, simulate, to_episodes
from vhydro.systems.port_hamiltonian import fastest
from vhydro.systems.simulation import LARGEST_TURN, MOST_CHANGES, Track, _refuse_unreached, flow

SYSTEMS = (Puck(), Block(), Pendulum(), Pushing())
# Long enough for RK4's error to stand above rounding: the block is slow, the others have stiff contacts.
COARSE = {Puck: 0.005, Block: 0.05, Pendulum: 0.005, Pushing: 0.005}
FORCES = {Puck: [3.0], Block: [6.0], Pendulum: [1.0], Pushing: [0.5, 0.3]}

every_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)


def case(system, seed=0):
    """Random starts and one constant action per episode."""
    rng = np.random.default_rng(seed)
    width = len(law(system).coordinates)
    starts = rng.uniform(-1, 1, (16, width)) * ([0.9, 1.0] if width == 2 else [0.02, 0.2, 0.1, 0.1])
    return starts, rng.uniform(-1, 1, (16, len(FORCES[type(system)]))) * FORCES[type(system)]


def points_by_mode(system, count=50):
    """Random (z, action) that settle in each mode."""
    rng = np.random.default_rng(1)
    size = len(law(system).coordinates)
    z = rng.uniform(-2, 2, (20_000, size))
    z[::2, size // 2 :] = 0  # half of them at rest: a block only sticks there
    a = rng.uniform(-5, 5, (20_000, len(law(system).inputs)))
    with jax.enable_x64(True):
        modes = np.asarray(system.settle(tuple(jnp.asarray(z.T)), tuple(jnp.asarray(a.T))))
    return [(z[modes == s][:count], a[modes == s][:count]) for s in range(len(law(system).modes))]


@every_system
def test_simulated_field_is_the_stated_law(system):
    truth = law(system)
    for mode, (zs, actions) in enumerate(points_by_mode(system)):
        assert len(zs) == 50

        def hamiltonian(z, mode=mode):
            return sum((c * t.value(z) for t, c in truth.energies[mode].items()), start=0.0 * z[0])

        with jax.enable_x64(True):
            gradient = np.asarray(jax.vmap(jax.grad(hamiltonian))(jnp.asarray(zs)))
            field = np.asarray(flow(system, tuple(jnp.asarray(zs.T)), tuple(jnp.asarray(actions.T)), mode))
        stated = gradient @ (truth.interconnection[mode] - truth.dissipation[mode]).T + actions @ truth.port[mode].T
        np.testing.assert_allclose(field.T, stated, rtol=1e-12, atol=1e-12)


@every_system
def test_structure_is_port_hamiltonian(system):
    truth = law(system)
    assert np.array_equal(truth.interconnection, -truth.interconnection.swapaxes(1, 2))
    assert np.array_equal(truth.dissipation, truth.dissipation.swapaxes(1, 2))
    assert (np.linalg.eigvalsh(truth.dissipation) >= 0).all()
    assert all(len(energy) <= 3 for energy in truth.energies)
    assert len(truth.modes) == len(truth.energies) == len(truth.noise)
    assert {name: getattr(system, name) for name in system.constants} == {
        name: value for name, (value, _) in system.constants.items()
    }


def balance_error(simulation):
    """ΔH − ∫(∇HᵀGa − ∇HᵀR∇H) dt over every four steps, and whether they lie inside one mode."""
    truth = law(simulation.system)
    states, modes, h = simulation.states, simulation.modes, simulation.dt
    energy = truth.energy(modes, states)
    power = np.zeros_like(energy)
    for s, terms in enumerate(truth.energies):
        with jax.enable_x64(True):
            gradient = sum(
                (c * jax.vmap(jax.vmap(jax.grad(t.value)))(jnp.asarray(states)) for t, c in terms.items()),
                start=np.zeros_like(states),
            )
        gradient = np.asarray(gradient)
        lost = np.einsum("bti,ij,btj->bt", gradient, truth.dissipation[s], gradient)
        given = np.einsum("bti,ia,ba->bt", gradient, truth.port[s], simulation.actions[:, 0])
        power = np.where(modes == s, given - lost, power)
    steps = simulation.changes.shape[1]
    at = np.arange(0, steps - 3)[:, None] + np.arange(5)  # Boole's rule: two orders above RK4
    work = power[:, at] @ np.array([7, 32, 12, 32, 7]) * 2 * h / 45
    same = (modes[:, at] == modes[:, at[:, :1]]).all(-1) & (simulation.changes[:, at[:, :4]] == 0).all(-1)
    return energy[:, at[:, 4]] - energy[:, at[:, 0]] - work, same


@every_system
def test_energy_balance_to_integrator_order_between_events(system, played):
    starts, actions = case(system)
    h = COARSE[type(system)]
    coarse_run = played(system, starts, actions, dt=h, substeps=1)
    coarse, coarse_same = balance_error(coarse_run)
    fine, fine_same = balance_error(played(system, starts, actions, dt=h / 2, substeps=1))
    first, second = 2 * np.arange(97), 2 * np.arange(97) + 4  # the same stretches of time in twice the steps
    same = coarse_same[:, :97] & fine_same[:, first] & fine_same[:, second]
    assert set(np.unique(coarse_run.modes[:, :97][same])) == set(range(len(law(system).modes)))
    worst, halved = np.abs(coarse[:, :97][same]).max(), np.abs((fine[:, first] + fine[:, second])[same]).max()
    assert worst > 1e-9  # well above rounding, or the ratio would say nothing
    assert worst / halved > 2**4 * 0.75


@every_system
def test_fourth_order_through_every_event(system, played):
    starts, actions = case(system)
    runs = [played(system, starts, actions, dt=COARSE[type(system)], substeps=n) for n in (4, 8, 64)]
    coarse, fine = (np.abs(run.states - runs[-1].states).max() for run in runs[:-1])
    assert runs[0].changes.sum() > 16
    assert coarse < 1e-4
    assert coarse / fine > 2**4 * 0.75


def newton_puck(s, z, a):
    q, p = z
    depth = max(abs(q) - s.wall, 0.0)
    damping = s.friction + s.damping * (depth > 0)
    return [p / s.mass, a[0] - damping * p / s.mass - s.stiffness * depth * np.sign(q)]


def newton_pendulum(s, z, a):
    angle, momentum = z
    rate = momentum / (s.mass * s.length**2)
    depth = max(abs(angle) - s.stop, 0.0)
    damping = s.friction + s.damping * (depth > 0)
    weight = s.mass * s.gravity * s.length * np.sin(angle)
    return [rate, a[0] - weight - damping * rate - s.stiffness * depth * np.sign(angle)]


def newton_pushing(s, z, a):
    gap, _, px, py = z
    vx, vy = px / s.mass, py / s.mass
    touching = gap < 0
    along = touching * (s.stiffness * -gap + s.damping * (a[0] - vx)) - s.friction * vx
    across = touching * s.grip * (a[1] - vy) - s.friction * vy
    return [vx - a[0], vy, along, across]


@pytest.mark.parametrize(
    ("system", "newton"),
    [(Puck(), newton_puck), (Pendulum(), newton_pendulum), (Pushing(), newton_pushing)],
    ids=["Puck", "Pendulum", "Pushing"],
)
def test_agrees_with_newton_and_an_adaptive_integrator_through_contacts(system, newton, played):
    starts, actions = case(system, seed=2)
    run = played(system, starts, actions, substeps=64)
    times = np.arange(run.states.shape[1]) * run.dt
    for i in np.argsort(-run.changes.sum(1))[:2]:  # the two episodes with the most contacts
        assert run.changes[i].sum() >= 2
        truth = solve_ivp(
            lambda _, z, i=i: newton(system, z, actions[i]),
            (0, times[-1]),
            starts[i],
            t_eval=times,
            method="RK45",
            rtol=1e-9,
            atol=1e-11,
        )
        np.testing.assert_allclose(run.states[i], truth.y.T, atol=1e-6)


@every_system
def test_modes_are_those_of_the_states(system, drawn):
    run = drawn(system)
    states, actions = (np.moveaxis(x, -1, 0) for x in (run.states[:, 1:], run.actions))
    assert np.array_equal(run.modes[:, 1:], system.settle(tuple(states), tuple(actions)))
    assert np.issubdtype(run.modes.dtype, np.integer)
    assert set(np.unique(run.modes)) == set(range(len(law(system).modes)))


@every_system
def test_same_key_same_result(system, drawn):
    one, again, other = drawn(system, 3), drawn(system, 3), drawn(system, 4)
    assert np.array_equal(one.states, again.states)
    assert np.array_equal(one.actions, again.actions)
    assert not np.allclose(one.states, other.states)


def test_float64_even_where_the_user_has_not_asked_for_it(drawn):
    with jax.enable_x64(False):
        run = drawn(Puck())
        seen = to_episodes(run, 0.1, key=jax.random.key(0))[0].observations
        energy = law(Puck()).energy(run.modes, run.states)
        assert jnp.ones(1).dtype == np.float32
    assert run.states.dtype == run.actions.dtype == seen.dtype == energy.dtype == np.float64
    np.testing.assert_allclose(run.states, drawn(Puck()).states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("system", [Puck(), Pushing()], ids=lambda s: type(s).__name__)
def test_batch_is_one_by_one(system, drawn):
    run = drawn(system)
    for i in (0, 7):
        alone = simulate(
            system,
            1,
            200,
            0.005,
            key=jax.random.key(9),
            starts=run.states[i : i + 1, 0],
            actions=run.actions[i : i + 1],
        )
        np.testing.assert_allclose(alone.states[0], run.states[i], rtol=0, atol=1e-11)
        assert np.array_equal(alone.modes[0], run.modes[i])
        assert np.array_equal(alone.changes[0], run.changes[i])


def test_the_first_episodes_do_not_depend_on_how_many_follow(drawn):
    first = simulate(Puck(), 1, 200, 0.005, key=jax.random.key(0))
    np.testing.assert_allclose(first.states, drawn(Puck()).states[:1], rtol=0, atol=1e-11)


def test_process_noise_has_the_stated_size(drawn):
    free = Puck(drive=0.0, friction=0.0, start_momentum=0.0, start_position=0.5, noise=0.02)
    run = drawn(free)
    assert (run.modes == 0).all()
    kicks = np.diff(run.states[..., 1], axis=1) / (free.noise * np.sqrt(run.dt))
    assert abs(kicks.std() - 1) < 4 / np.sqrt(2 * kicks.size)  # standard error of a standard deviation
    assert abs(kicks.mean()) < 4 / np.sqrt(kicks.size)


@every_system
def test_episodes_show_noisy_positions_only(system, drawn):
    run, truth = drawn(system), law(system)
    episodes = to_episodes(run, 0.01, key=jax.random.key(1))
    seen = np.array([e.observations for e in episodes])
    error = seen - run.states[..., : truth.positions]
    assert abs(error.std() / 0.01 - 1) < 4 / np.sqrt(2 * error.size)
    assert [c.name for c in episodes[0].channels] == list(truth.coordinates[: truth.positions])
    assert all(np.array_equal(e.labels["mode"], m) for e, m in zip(episodes, run.modes, strict=True))
    assert all(np.array_equal(e.actions, a) for e, a in zip(episodes, run.actions, strict=True))
    perfect = to_episodes(run, 0.0, key=jax.random.key(1))
    assert np.array_equal(perfect[0].observations, run.states[0, :, : truth.positions])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 0}, "episodes is 0; expected at least 1"),
        ({"steps": -3}, "steps is -3; expected at least 1"),
        ({"substeps": 0}, "substeps is 0; expected at least 1"),
        ({"dt": 0.0}, "dt is 0.0; expected the positive time"),
        ({"dt": -0.1}, "dt is -0.1; expected the positive time"),
        ({"dt": float("nan")}, "dt is nan; expected the positive time"),
        ({"dt": 0.1}, "Use a smaller dt, or substeps=10"),
        ({"starts": np.zeros((2, 3))}, r"starts have shape \(2, 3\); expected \(2, 2\)"),
        ({"actions": np.zeros((2, 5))}, r"actions have shape \(2, 5\); expected \(2, 10, 1\)"),
        ({"starts": np.full((2, 2), np.nan)}, "starts hold a value that is not finite"),
    ],
)
def test_misuse_is_refused(change, message):
    call = {"episodes": 2, "steps": 10, "dt": 0.005} | change
    with pytest.raises(ValueError, match=message):
        simulate(Puck(), key=jax.random.key(0), **call)


@pytest.mark.parametrize("noise", [-0.1, np.inf, np.array([0.1, 0.1])])
def test_impossible_sensor_noise_is_refused(noise, drawn):
    with pytest.raises(ValueError, match="expected one standard deviation"):
        to_episodes(drawn(Puck()), noise, key=jax.random.key(0))


def test_a_sample_that_was_not_reached_is_refused():
    reached = np.array([[True, True], [True, False]])
    way = Track(np.zeros((2, 3, 2)), np.zeros((2, 3), int), np.zeros((2, 2), int), reached)
    with pytest.raises(ValueError, match=f"episode 1 could not be followed past sample 1 .*{MOST_CHANGES} changes"):
        _refuse_unreached(way, 0.1)


def test_fastest_motion_is_the_contact_oscillation():
    puck = Puck(damping=0.0, friction=0.0)
    assert fastest(law(puck)) == pytest.approx(np.sqrt(puck.stiffness / puck.mass), rel=1e-6)
    assert fastest(law(Puck())) * 0.005 < LARGEST_TURN  # 200 Hz is fine even without substeps
