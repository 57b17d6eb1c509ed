"""Hybrid systems to hold evidence and learning against: a mass with three modes, and the four known laws."""

import jax
import numpy as np

from vhydro.episodes import Episode, episode
from vhydro.library import polynomial
from vhydro.model import HybridModel, axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.systems import Block, Pendulum, Puck, Pushing, simulate, to_episodes

DT, SPRINGS, FRICTIONS, FORCES = 0.1, (0.0, 8.0, 0.0), (0.2, 0.6, 0.2), (0.0, 0.0, 2.5)
STAY, NOISE, SENSOR, START = 0.94, (0.02, 0.05), 0.05, 0.7


def three_modes() -> HybridModel:
    """A mass that is free, on a spring or pushed; only its position is seen. Energies are quadratic: linear modes."""
    return three_mode_model(
        [[0, 0, k / 2, 0, 0.5] if not f else [f, 0, 0, 0, 0.5] for k, f in zip(SPRINGS, FORCES, strict=True)],
        np.stack([np.diag([0, c]) for c in FRICTIONS]), [[0], [1.0]], NOISE, STAY, SENSOR,
    )  # fmt: skip


def three_mode_model(coefficients, dissipation, port, noise, stay, sensor) -> HybridModel:
    flow = port_hamiltonian(
        3, 2, 1, polynomial(2, 2), coefficients=coefficients, dissipation=dissipation, port=np.array(port)
    )
    return hybrid_model(
        mode_kernel(3, stay=stay), flow, axis_emission(2, [0], noise=sensor), noise=np.array(noise), start_scale=START
    )


def three_mode_logs(count: int, rows: int, seed: int) -> list[Episode]:
    """Logs of that system, simulated apart from the package."""
    rng, table = np.random.default_rng(seed), np.where(np.eye(3, dtype=bool), STAY, (1 - STAY) / 2)

    def moved(z, mode, push, h):
        def velocity(z):
            return np.array([z[1], -SPRINGS[mode] * z[0] - FRICTIONS[mode] * z[1] - FORCES[mode] + push])

        for _ in range(4):
            k1 = velocity(z)
            k2 = velocity(z + h / 2 * k1)
            k3 = velocity(z + h / 2 * k2)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(z + h * k3))
        return z

    def log():
        mode, z, pushes, seen = rng.integers(3), rng.normal(size=2) * START, rng.normal(size=(rows - 1, 1)), []
        for t in range(rows):
            if t:
                mode = rng.choice(3, p=table[mode])
                z = moved(z, mode, pushes[t - 1, 0], DT / 4) + np.array(NOISE) * rng.normal(size=2)
            seen.append(z[0] + SENSOR * rng.normal())
        return episode(np.array(seen), pushes, dt=DT)

    return [log() for _ in range(count)]


def law_model(system, *, noise, sensor: float, start) -> HybridModel:
    """A known system as a hybrid model: its own law in every mode, modes that switch by chance."""
    law = system.law()
    coefficients = np.array([[energy.get(term, 0.0) for term in law.library] for energy in law.energies])
    size, modes = len(law.coordinates), len(law.modes)
    flow = port_hamiltonian(
        modes, size, len(law.inputs), law.library, coefficients=coefficients,
        interconnection=np.triu(law.interconnection), dissipation=law.dissipation, port=law.port, substeps=2,
    )  # fmt: skip
    emission = axis_emission(size, range(law.positions), noise=sensor)
    names = law.coordinates[: law.positions]
    return hybrid_model(mode_kernel(modes, stay=0.95), flow, emission, noise=noise, start_scale=start, channels=names)


KNOWN = {
    "pendulum": (Pendulum(noise=0.05), 0.02, {"noise": [0.001, 0.02], "sensor": 0.01, "start": [0.6, 0.5]}),
    "puck": (Puck(noise=0.1), 0.01, {"noise": [0.001, 0.03], "sensor": 0.01, "start": [0.6, 1.2]}),
    "block": (Block(noise=0.1), 0.02, {"noise": [0.001, 0.03], "sensor": 0.005, "start": [0.2, 0.6]}),
    "pushing": (
        Pushing(noise=0.02), 0.01,
        {"noise": [0.0005, 0.0005, 0.005, 0.005], "sensor": 0.002, "start": [0.1, 0.2, 0.1, 0.1]},
    ),
}  # fmt: skip


def systems(count: int, rows: int = 50, seed: int = 100) -> dict[str, tuple[HybridModel, list[Episode]]]:
    """Every system with its true model and logs of its own."""
    out = {"three modes": (three_modes(), three_mode_logs(count, rows, seed))}
    for name, (system, dt, parts) in KNOWN.items():
        simulated = simulate(system, count, 2 * rows - 1, dt, key=jax.random.key(seed))
        out[name] = law_model(system, **parts), to_episodes(simulated, parts["sensor"], key=jax.random.key(seed + 1))
    return out


def three_mode_start(key) -> HybridModel:
    """One restart: springs and forces at random, everything else somewhat wrong."""
    drawn = np.asarray(jax.random.normal(key, (3, 2))) * 2.0
    coefficients = [[f, 0, abs(k), 0, 0.5] for f, k in drawn]
    return three_mode_model(coefficients, np.stack([np.diag([0, 0.4])] * 3), [[0], [0.5]], (0.1, 0.2), 0.9, 0.1)
