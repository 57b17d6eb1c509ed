"""The demo: a puck between soft bumpers, seen through noisy positions that are often hidden.

Fit a model without labels, fit a guide to it on well-lit logs, then filter dark logs with the same model, the same
guide and the same random numbers, differing only in how much of the carrier the gate mixes in.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import Episode, channel_groups, visible
from vhydro.filter import Filtered, FilterSettings, filter_episodes
from vhydro.flow import PortHamiltonianFlow
from vhydro.library import polynomial
from vhydro.model import HybridModel, axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.network import Network, network
from vhydro.proposal import ConditionedProposal, Proposal, amortized_proposal, conditioned_proposal
from vhydro.report.demo import demo_page, demo_table, demo_words
from vhydro.report.files import staged, version, write_json, write_text
from vhydro.storage import save
from vhydro.systems import Puck, Simulation, simulate, to_episodes
from vhydro.training import Fit, Parts, TrainingConfig, fit

# Bumpers soft enough that a contact lasts about nine samples.
PUCK = Puck(
    mass=1.0, wall=0.5, stiffness=12.0, damping=0.5, friction=0.05, drive=0.8, hold=0.5, noise=0.1,
    start_position=0.4, start_momentum=1.5,
)  # fmt: skip
DT, STEPS, SENSOR_NOISE = 0.1, 100, 0.03
MODES, NOISE_FLOOR = 3, 0.005
LOST_MARGIN = 3 * SENSOR_NOISE
# What a position sensor cannot tell: it reads q itself, and the scale of p is arbitrary.
GIVEN = ("model.emission.matrix", "model.emission.offset", "model.flow.interconnection")


@dataclass(frozen=True)
class DemoConfig:
    """A puck that bounces between soft bumpers: fit, filter in the dark, show adaptive against no-support."""

    out: Path = Path("demo")  # folder for index.html, summary.json and model.safetensors
    seed: int = 0  # of the data, the fits and the filters
    model_steps: int = 150  # training steps of the model
    guide_steps: int = 300  # training steps of the guide
    train: int = 48  # episodes to learn from; a third as many validate
    test: int = 16  # episodes to filter
    occlusion: float = 0.75  # share of the test positions that is hidden
    burst: int = 15  # samples over which hiding is smoothed: longer means longer dark spans
    particles: int = 64  # of every compared filter
    repeats: int = 5  # keys of the filter's randomness

    def __post_init__(self):
        for name in ("model_steps", "guide_steps", "test", "burst", "particles", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")
        if self.train < 3:
            raise ValueError(f"train is {self.train}; expected at least 3 episodes, one third of them to validate.")
        if not 0 < self.occlusion < 1:
            raise ValueError(f"occlusion is {self.occlusion}; expected a share strictly between 0 and 1.")


# --- data -------------------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Episodes by purpose, and the simulation they came from."""

    train: list[Episode]
    validation: list[Episode]
    test: list[Episode]
    truth: Simulation


def puck_episodes(*, key: PRNGKeyArray, train: int = 48, validation: int = 16, test: int = 16) -> Split:
    """Noisy positions of simulated pucks, split by episode."""
    simulated, sensed = jax.random.split(key)
    truth = simulate(PUCK, train + validation + test, STEPS, DT, key=simulated)
    episodes = to_episodes(truth, SENSOR_NOISE, key=sensed)
    return Split(episodes[:train], episodes[train : train + validation], episodes[train + validation :], truth)


def hidden_in_bursts(
    episodes: Sequence[Episode], level: float, burst: int, *, key: PRNGKeyArray
) -> list[Episode]:
    """The episodes with a share `level` of their positions hidden; every first position stays."""
    valid = jnp.ones((len(episodes), STEPS + 1), bool)
    shown = visible(valid, level, groups=channel_groups(episodes[0]), burst=burst, keep_first=True, key=key)
    return [
        replace(e, observations=np.where(s, e.observations, np.nan))
        for e, s in zip(episodes, np.asarray(shown), strict=True)
    ]


# --- where the fits start ---------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Clusters of positions, and the acceleration in each as a line in (1, place, velocity, action)."""

    centres: np.ndarray  # (modes,)
    variance: float  # within a cluster
    lines: np.ndarray  # (modes, 4)


def places(episodes: Sequence[Episode], *, seed: int = 0) -> Places:
    """Where the puck dwells and how it accelerates there, from noisy positions alone and without labels.

    Accelerations come from samples t − 2, t, t + 2; place and velocity from t ± 1. No sensor error is on both sides:
    one that were would enter the acceleration as −e/2dt² and pass for a spring.
    """
    from sklearn.cluster import KMeans  # takes longer to import than to run

    rows, accelerations = [], []
    for e in episodes:
        q, a = e.observations[:, 0], e.actions[:, 0]
        accelerations.append((q[4:] - 2 * q[2:-2] + q[:-4]) / (2 * e.dt) ** 2)
        place, velocity = (q[1:-3] + q[3:-1]) / 2, (q[3:-1] - q[1:-3]) / (2 * e.dt)
        rows.append(np.stack([np.ones_like(place), place, velocity, (a[1:-2] + a[2:-1]) / 2], 1))
    x, y = np.concatenate(rows), np.concatenate(accelerations)
    clusters = KMeans(MODES, n_init=4, random_state=seed).fit(x[:, 1:2])
    mine = [clusters.labels_ == m for m in range(MODES)]
    lines = np.stack([np.linalg.lstsq(x[i], y[i], rcond=None)[0] for i in mine])
    return Places(clusters.cluster_centers_[:, 0], clusters.inertia_ / len(x), lines)


def placed_model(found: Places) -> HybridModel:
    """The model that `places` suggests: each mode's line as a spring, a damper and a port, chosen by the nearest centre."""
    constant, slope, drag, gain = found.lines.T
    nearness = 1 / found.variance
    weights = np.concatenate([nearness * found.centres[:, None], np.zeros((MODES, 2))], 1)  # of (q, p, a)
    biases = -nearness * found.centres**2 / 2
    coefficients = np.zeros((MODES, 5))  # of q, p, q², q p, p²
    coefficients[:, 0], coefficients[:, 2], coefficients[:, 4] = -constant, -slope / 2, 0.5
    friction = np.sqrt(np.maximum(-drag, 0.01))
    return _puck_model(
        Network((jnp.asarray(weights, jnp.float32),), (jnp.asarray(biases, jnp.float32),)),
        stay=0.6,
        coefficients=coefficients,
        dissipation=np.stack([np.diag([0.01, f]) for f in friction]),
        port=np.stack([[[0.0], [g]] for g in gain]),
        sensor_noise=0.05,
        noise=[0.03, 0.1],
    )


def puck_start(key: PRNGKeyArray, *, guide: Literal["conditioned", "amortized"] = "amortized") -> Parts:
    """One seed's untrained model, which knows nothing of the data: random springs, modes by a random line in (q, p, a)."""
    energy_key, kernel_key, guide_key = jax.random.split(key, 3)
    coefficients = 0.3 * np.asarray(jax.random.normal(energy_key, (MODES, 5)))
    coefficients[:, 4] = 0.5  # p²/2: a unit mass to begin with
    model = _puck_model(
        network(3, (), MODES, key=kernel_key, dtype=jnp.float32),
        stay=0.9,
        coefficients=coefficients,
        dissipation=np.diag([0.1, 0.3]),
        port=[[0.0], [1.0]],
        sensor_noise=0.03,
        noise=0.1,
    )
    if guide == "conditioned":
        return Parts(model, conditioned_proposal(model))
    return Parts(model, amortized_proposal(model, hidden=(32, 32), key=guide_key))


def _puck_model(drive: Network, *, stay, coefficients, dissipation, port, sensor_noise, noise) -> HybridModel:
    """Three modes with a quadratic energy each; the sensor reads q."""
    flow = port_hamiltonian(
        MODES, 2, 1, polynomial(2, 2), coefficients=coefficients, dissipation=dissipation, port=port,
        integrator="midpoint", substeps=2,
    )  # fmt: skip
    emission = axis_emission(2, [0], noise=sensor_noise, noise_floor=NOISE_FLOOR)
    kernel = mode_kernel(MODES, stay=stay, drive=drive)
    return hybrid_model(kernel, flow, emission, noise=noise, noise_floor=NOISE_FLOOR, channels=["q"])


# --- fits -------------------------------------------------------------------------------------------------------------


def fitted_model(data: Split, config: DemoConfig, *, key: PRNGKeyArray, progress: bool) -> Fit:
    """The model, learned with its own exact conditional as the guide."""
    training = TrainingConfig(
        steps=config.model_steps, batch=12, window=40, learning_rate=0.03, occlusion=(0.0, 0.3), burst=4, frozen=GIVEN,
        settings=FilterSettings(particles=32, lookahead=True),
    )  # fmt: skip
    start = Parts(placed_model(places(data.train, seed=config.seed)), ConditionedProposal())
    return fit(start, data.train, data.validation, key=key, config=training, progress=progress)


def fitted_guide(
    model: HybridModel, data: Split, config: DemoConfig, *, key: PRNGKeyArray, progress: bool
) -> Fit:
    """The paper's amortised guide for this model, learned on logs with at most a quarter hidden."""
    fresh, fitting = jax.random.split(key)
    training = TrainingConfig(
        steps=config.guide_steps, batch=12, window=40, learning_rate=0.01, occlusion=(0.0, 0.25), frozen=("model",),
        estimator="fixed", settings=FilterSettings(particles=32),
    )  # fmt: skip
    start = Parts(model, amortized_proposal(model, hidden=(32, 32), key=fresh))
    return fit(start, data.train, data.validation, key=fitting, config=training, progress=progress)


# --- the comparison ---------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """One way to filter, all else equal."""

    name: str
    guide: str
    gate: Gate
    proposal: Proposal


def methods(guide: Proposal) -> list[Method]:
    """The three operating points of the gate on one learned guide, and the best guide known as a reference."""
    return [
        Method("adaptive", "amortised", adaptive(), guide),
        Method("conservative", "amortised", conservative(0.5), guide),
        Method("no-support", "amortised", no_support(), guide),
        Method("adaptive, exact guide", "conditioned", adaptive(), ConditionedProposal()),
    ]


class Runs(NamedTuple):
    """One method on every test episode with every key; arrays lead with (repeats, episodes)."""

    log_evidence: np.ndarray
    observed: np.ndarray  # values seen
    record: dict[str, np.ndarray]  # each (…, rows)
    mode: np.ndarray  # (…, rows, modes) posterior
    mean: np.ndarray  # (…, rows) of the position
    position: np.ndarray  # (…, rows, particles)
    weight: np.ndarray  # (…, rows, particles)


RECORDED = ("mixing", "certified", "bound", "step_ess", "relative_variance", "redrawn")


def runs(
    model: HybridModel, method: Method, episodes: list[Episode], config: DemoConfig, *, key: PRNGKeyArray
) -> Runs:
    """Every episode filtered `config.repeats` times, all at once; every method gets the same random numbers."""
    settings = FilterSettings(particles=config.particles, gate=method.gate, history=True)
    out = filter_episodes(
        model, episodes * config.repeats, key=key, proposal=method.proposal, settings=settings
    )

    def stacked(of) -> np.ndarray:
        values = np.stack([np.asarray(of(o)) for o in out])
        return values.reshape(config.repeats, len(episodes), *values.shape[1:])

    def history(o: Filtered):
        assert o.history is not None
        return o.history

    return Runs(
        log_evidence=stacked(lambda o: o.log_evidence),
        observed=np.tile([e.observed.sum() for e in episodes], (config.repeats, 1)),
        record={name: stacked(lambda o, name=name: getattr(o.record, name)) for name in RECORDED},
        mode=stacked(lambda o: o.belief.mode),
        mean=stacked(lambda o: o.belief.mean[:, 0]),
        position=stacked(lambda o: history(o).z[:, 0]),
        weight=stacked(lambda o: np.exp(history(o).log_weight)),
    )


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """The smallest value with at least `level` of the weight at or below it, along the last axis."""
    order = np.argsort(values, -1)
    total = np.cumsum(np.take_along_axis(weights, order, -1), -1)
    index = (total < level * total[..., -1:]).sum(-1, keepdims=True).clip(max=values.shape[-1] - 1)
    return np.take_along_axis(np.take_along_axis(values, order, -1), index, -1)[..., 0]


def lost(position: np.ndarray, truth: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Where the filter lost the puck: (…, rows).

    At the first position seen after a dark span, and with that position already used, the true one is more than
    `LOST_MARGIN` outside the range of all particles.
    """
    again = shown.copy()
    again[..., 0] = False
    again[..., 1:] &= ~shown[..., :-1]
    outside = np.maximum(position.min(-1) - truth, truth - position.max(-1)) > LOST_MARGIN
    return again & outside


def matching(mode: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The learned mode of every true one, one to one, by most steps in common. Used for names and scores only."""
    likely = mode.argmax(-1)
    common = [[np.sum((likely == m) & (labels == s)) for m in range(MODES)] for s in range(MODES)]
    return linear_sum_assignment(-np.array(common))[1]


DEFINITIONS = {
    "log_evidence": "log evidence per observed position, mean over episodes",
    "log_evidence_worst": "the lowest of all runs: one episode with one key",
    "log_evidence_spread": "standard deviation of an episode's log evidence over keys, mean over episodes",
    "step_ess": "ESS/N of a step's own weights, mean over steps",
    "mixing": "mean λ",
    "certified": "share of steps whose certificate is within the tolerance",
    "relative_variance_worst": "largest relative variance of a step's weights, in any run",
    "coverage90": "share of hidden positions inside the belief's central 90 % interval",
    "rmse": "root mean square error of the belief's mean at hidden positions, in metres",
    "rmse_worst": "the largest of all runs",
    "mode_accuracy": "share of steps whose likeliest mode is the true one, modes matched one to one",
    "lost": f"runs that lost the puck: at the first position seen after a dark span the true one was more than "
    f"{LOST_MARGIN:g} m (3 sensor standard deviations) outside the range of all particles",
    "se": "`_se` is the standard error over the filter's keys, on the same episodes",
}


def row(method: Method, out: Runs, truth: np.ndarray, labels: np.ndarray, shown: np.ndarray, match) -> dict:
    """One method's metrics, as they come."""
    hidden = ~shown & np.ones_like(out.mean, bool)
    low, high = (weighted_quantile(out.position, out.weight, a) for a in (0.05, 0.95))
    inside = (truth >= low) & (truth <= high)
    square = (out.mean - truth) ** 2
    gone = lost(out.position, truth, np.broadcast_to(shown, hidden.shape)).any(-1)
    correct = match[labels] == out.mode.argmax(-1)
    each = np.sqrt(np.sum(square * hidden, -1) / np.maximum(hidden.sum(-1), 1))
    by_key = {
        "log_evidence": out.log_evidence.sum(1) / out.observed.sum(1),
        "step_ess": out.record["step_ess"].mean((1, 2)),
        "mixing": out.record["mixing"].mean((1, 2)),
        "certified": out.record["certified"].mean((1, 2)),
        "coverage90": np.array([i[h].mean() for i, h in zip(inside, hidden, strict=True)]),
        "rmse": np.array([np.sqrt(s[h].mean()) for s, h in zip(square, hidden, strict=True)]),
        "mode_accuracy": correct.mean((1, 2)),
    }
    spread = out.log_evidence.std(0, ddof=1).mean() if len(out.log_evidence) > 1 else 0.0
    return {
        "method": method.name,
        "guide": method.guide,
        **{name: float(v.mean()) for name, v in by_key.items()},
        **{f"{name}_se": standard_error(v) for name, v in by_key.items()},
        "log_evidence_worst": float((out.log_evidence / out.observed).min()),
        "log_evidence_spread": float(spread),
        "relative_variance_worst": float(out.record["relative_variance"].max()),
        "rmse_worst": float(each.max()),
        "lost": int(gone.sum()),
        "redrawn": int(out.record["redrawn"].sum()),
        "runs": int(gone.size),
    }


def standard_error(values: np.ndarray) -> float:
    """That of the mean; 0 for a single value."""
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0
