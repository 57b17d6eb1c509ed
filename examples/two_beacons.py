"""A point in the plane followed from the ranges and bearings of two beacons, some of them missing.

The point drifts at a nearly constant velocity and nobody measures that. Printed: how far off the filter is, beside the
place that each row's readings of one beacon give alone.

    python examples/two_beacons.py
"""

from dataclasses import dataclass

import jax
import numpy as np
import tyro

from vhydro.certificate import Gate
from vhydro.episodes import episode
from vhydro.filter import FilterSettings, bootstrap, filter
from vhydro.model import HybridModel, hybrid_model, linear_flow, mode_kernel
from vhydro.sensors import range_bearing_emission

BEACONS = np.array([[0.0, 0.0], [10.0, 0.0]])  # metres
RANGE_NOISE, BEARING_NOISE = 0.1, 0.02  # metres, radians
DRIFT = (0.3, 0.3, 0.02, 0.02)  # noise of one step: metres, and metres per step


@dataclass(frozen=True)
class Options:
    steps: int = 120
    hidden: float = 0.4  # share of the readings that are missing
    particles: int = 512
    seed: int = 0


def drifting() -> np.ndarray:
    """The matrix of a point that keeps its velocity."""
    return np.eye(4) + np.eye(4, k=2)


def model_of() -> HybridModel:
    sensor = range_bearing_emission(4, beacons=BEACONS, range_noise=RANGE_NOISE, bearing_noise=BEARING_NOISE)
    return hybrid_model(
        mode_kernel(1),
        linear_flow(drifting()[None]),
        sensor,
        noise=np.array([DRIFT]),
        start_mean=[[5.0, 5.0, 0.0, 0.0]],
        start_scale=np.array([[3.0, 3.0, 0.2, 0.2]]),
        channels=["range 1", "range 2", "bearing 1", "bearing 2"],
    )


def simulated(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Places and readings: all ranges, then all bearings, NaN where one is missing."""
    rng = np.random.default_rng(options.seed)
    z, places = np.array([4.0, 6.0, 0.05, -0.02]), []
    for _ in range(options.steps):
        places.append(z[:2])
        z = drifting() @ z + np.array(DRIFT) * rng.standard_normal(4)
    way = BEACONS - np.array(places)[:, None]
    ranges = np.hypot(*np.moveaxis(way, -1, 0)) + RANGE_NOISE * rng.standard_normal(way.shape[:2])
    bearings = np.arctan2(way[..., 1], way[..., 0]) + BEARING_NOISE * rng.standard_normal(way.shape[:2])
    readings = np.concatenate([ranges, (bearings + np.pi) % (2 * np.pi) - np.pi], axis=1)
    return np.array(places), np.where(rng.random(readings.shape) < options.hidden, np.nan, readings)


def main(options: Options) -> None:
    places, readings = simulated(options)
    log = episode(readings, dt=1.0, channels=["range 1", "range 2", "bearing 1", "bearing 2"])
    model, key = model_of(), jax.random.key(options.seed)
    gate = Gate(certificate="pilot", pilots=8)
    guided = filter(model, log, key=key, settings=FilterSettings(particles=options.particles, gate=gate))
    plain = filter(model, log, key=key, proposal=None, settings=bootstrap(particles=options.particles))
    one = BEACONS[0] - readings[:, :1] * np.stack([np.cos(readings[:, 2]), np.sin(readings[:, 2])], axis=1)
    for name, guess in (("guided", guided.mean), ("bootstrap", plain.mean), ("beacon 1 alone", one)):
        error = np.hypot(*(guess[:, :2] - places).T)
        known = ~np.isnan(error)
        print(f"{name:15} off by {np.sqrt(np.mean(error[known] ** 2)):.2f} m in {known.sum()} of {len(error)} rows")
    for name, out in (("guided", guided), ("bootstrap", plain)):
        print(f"{name:15} log evidence {out.log_evidence:.1f}, mean ESS {100 * out.record.step_ess.mean():.0f} %")
    print(f"certified rows: {guided.record.certified.sum()} of {len(places)}; mean λ {guided.record.mixing.mean():.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
