"""The demo: a puck between soft bumpers, seen through noisy positions that are often hidden.

Fit a model without labels, fit a guide to it on well-lit logs, then filter dark logs with the same model, the
same guide and the same random numbers, differing only in how much of the carrier the gate mixes in.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from rich.console import Console
from scipy.cluster.vq import kmeans2

from vhydro.certificate import Gate, adaptive, conservative, no_support
from vhydro.episodes import Episode
from vhydro.filter import Belief, FilterSettings, Particles, filter_episodes
from vhydro.filter.path import ISLANDS
from vhydro.flow import PortHamiltonianFlow
from vhydro.library import polynomial
from vhydro.model import HybridModel, axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.network import Network, network
from vhydro.occlusion import channel_groups, visible
from vhydro.proposal import ConditionedProposal, Proposal, amortized_proposal, conditioned_proposal
from vhydro.report.comparison import Runs, Truth, definitions, difference, film, matching, row
from vhydro.report.demo import demo_page, demo_table, demo_words
from vhydro.report.files import plain, staged, version, write_json
from vhydro.storage import save
from vhydro.systems import Puck, Simulation, simulate, to_episodes
from vhydro.training import Fit, Parts, TrainingConfig, fit
from vhydro.usage import UsageError, at_least, share

# Bumpers soft enough that a contact lasts about nine samples.
PUCK = Puck(
    mass=1.0, wall=0.5, stiffness=12.0, damping=0.5, friction=0.05, drive=0.8, hold=0.5, noise=0.1,
    start_position=0.4, start_momentum=1.5,
)  # fmt: skip
DT, STEPS, SENSOR_NOISE = 0.1, 100, 0.03
MODES, NOISE_FLOOR = 3, 0.005
LOST_MARGIN = 3 * SENSOR_NOISE
RECORDED = ("mixing", "certified", "bound", "step_ess", "relative_variance", "redrawn")
# What a position sensor cannot tell: it reads q itself, and the scale of p is arbitrary.
GIVEN = ("model.emission.matrix", "model.emission.offset", "model.flow.interconnection")


@dataclass(frozen=True)
class DemoConfig:
    """A puck that bounces between soft bumpers: fit, filter in the dark, show adaptive against no-support."""

    out: Path = Path("demo")  # folder for index.html, summary.json and model.safetensors
    seed: int = 0  # of the data, the fits and the filters
    model_steps: int = 150  # training steps of the model
    guide_steps: int = 150  # training steps of the guide
    guide_occlusion: float = 0.0  # largest share of positions hidden while the guide learns
    train: int = 48  # episodes to learn from; a third as many validate
    test: int = 16  # episodes to filter
    occlusion: float = 0.75  # share of the test positions that is hidden
    burst: int = 15  # samples over which hiding is smoothed: longer means longer dark spans
    particles: int = 256  # of every compared filter
    promise: float = 0.5  # ESS/N that a certified step guarantees; sets the gate's tolerance
    repeats: int = 5  # keys of the filter's randomness

    def __post_init__(self):
        for name in ("model_steps", "guide_steps", "test", "burst", "particles", "repeats"):
            at_least(name.replace("_", "-"), getattr(self, name), 1)
        at_least("train", self.train, 3)  # one third of them validate
        for name in ("occlusion", "promise"):
            share(name, getattr(self, name))
        if not 0 <= self.guide_occlusion < 1:
            raise UsageError(f"--guide-occlusion {self.guide_occlusion:g}; expected a share in [0, 1), such as 0.")

    @property
    def tolerance(self) -> float:
        """τ such that `ESS/N ≥ 1/(1 + Nτ²)`, which every certified step has, is the promise."""
        return ((1 / self.promise - 1) / self.particles) ** 0.5


# --- data ---------------------------------------------------------------------------------------------------


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


def hidden_in_bursts(episodes: Sequence[Episode], level: float, burst: int, *, key: PRNGKeyArray) -> list[Episode]:
    """The episodes with a share `level` of their positions hidden; every first position stays."""
    valid = jnp.ones((len(episodes), STEPS + 1), bool)
    shown = visible(valid, level, groups=channel_groups(episodes[0]), burst=burst, keep_first=True, key=key)
    return [
        replace(e, observations=np.where(s, e.observations, np.nan))
        for e, s in zip(episodes, np.asarray(shown), strict=True)
    ]


# --- where the fits start -----------------------------------------------------------------------------------


class Places(NamedTuple):
    """Clusters of positions, and the acceleration in each as a line in (1, place, velocity, action)."""

    centres: np.ndarray  # (modes,)
    variance: float  # within a cluster
    lines: np.ndarray  # (modes, 4)


def places(episodes: Sequence[Episode]) -> Places:
    """Where the puck dwells and how it accelerates there, from noisy positions alone and without labels.

    Accelerations come from samples t − 2, t and t + 2, place and velocity from t ± 1, so that no sensor error
    is on both sides of the regression: shared, one would enter the acceleration as −e/2dt² and pass for a
    spring. (Noise within place and velocity still flattens the lines a little; the fit mends that.)
    """
    rows, accelerations = [], []
    for e in episodes:
        q, a = e.observations[:, 0], e.actions[:, 0]
        accelerations.append((q[4:] - 2 * q[2:-2] + q[:-4]) / (2 * e.dt) ** 2)
        place, velocity = (q[1:-3] + q[3:-1]) / 2, (q[3:-1] - q[1:-3]) / (2 * e.dt)
        rows.append(np.stack([np.ones_like(place), place, velocity, (a[1:-2] + a[2:-1]) / 2], 1))
    x, y = np.concatenate(rows), np.concatenate(accelerations)
    place, middles = x[:, 1], (np.arange(MODES) + 0.5) / MODES
    centres, mine = kmeans2(place, np.quantile(place, middles), minit="matrix", iter=100)
    lines = np.stack([np.linalg.lstsq(x[mine == m], y[mine == m], rcond=None)[0] for m in range(MODES)])
    return Places(centres, float(np.mean((place - centres[mine]) ** 2)), lines)


def placed_model(found: Places) -> HybridModel:
    """The model that `places` suggests: a line is a spring, a damper and a port; the mode is the nearest centre."""
    constant, slope, drag, gain = found.lines.T
    nearness = 1 / found.variance
    weights = np.concatenate([nearness * found.centres[:, None], np.zeros((MODES, 2))], 1)  # of (q, p, a)
    biases = -nearness * found.centres**2 / 2
    coefficients = np.zeros((MODES, 5))  # of q, p, q², q p, p²
    coefficients[:, 0], coefficients[:, 2], coefficients[:, 4] = -constant, -slope / 2, 0.5
    friction = np.maximum(-drag, 0.01)
    return _puck_model(
        Network((jnp.asarray(weights, jnp.float32),), (jnp.asarray(biases, jnp.float32),)),
        stay=0.6,
        coefficients=coefficients,
        dissipation=np.stack([np.diag([1e-4, f]) for f in friction]),
        port=np.stack([[[0.0], [g]] for g in gain]),
        sensor_noise=0.05,
        noise=[0.03, 0.1],
    )


def puck_start(key: PRNGKeyArray, *, guide: Literal["conditioned", "amortized"] = "amortized") -> Parts:
    """One seed's untrained model, ignorant of the data: random springs, modes by lines in (q, p, a)."""
    energy_key, kernel_key, guide_key = jax.random.split(key, 3)
    coefficients = 0.3 * np.asarray(jax.random.normal(energy_key, (MODES, 5)))
    coefficients[:, 4] = 0.5  # p²/2: a unit mass to begin with
    model = _puck_model(
        network(3, (), MODES, key=kernel_key, dtype=jnp.float32),
        stay=0.9,
        coefficients=coefficients,
        dissipation=np.diag([0.01, 0.09]),
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


# --- fits ---------------------------------------------------------------------------------------------------


def fitted_model(data: Split, config: DemoConfig, *, key: PRNGKeyArray, progress: bool) -> Fit:
    """The model, learned with its own exact conditional as the guide."""
    training = TrainingConfig(
        steps=config.model_steps,
        batch=12,
        window=40,
        learning_rate=0.03,
        occlusion=(0.0, 0.3),
        burst=4,
        frozen=GIVEN,
        settings=FilterSettings(particles=32, lookahead=True),
    )
    start = Parts(placed_model(places(data.train)), ConditionedProposal())
    return fit(start, data.train, data.validation, key=key, config=training, progress=progress)


def fitted_guide(model: HybridModel, data: Split, config: DemoConfig, *, key: PRNGKeyArray, progress: bool) -> Fit:
    """The paper's amortised guide for this model, learned with at most `config.guide_occlusion` hidden."""
    fresh, fitting = jax.random.split(key)
    training = TrainingConfig(
        steps=config.guide_steps,
        batch=12,
        window=40,
        learning_rate=0.01,
        occlusion=tuple(sorted({0.0, config.guide_occlusion})),
        estimator="fixed",
        frozen=("model",),
        settings=FilterSettings(particles=32, lookahead=True),
    )
    start = Parts(model, amortized_proposal(model, hidden=(32, 32), key=fresh))
    return fit(start, data.train, data.validation, key=fitting, config=training, progress=progress)


# --- the comparison -----------------------------------------------------------------------------------------


class Method(NamedTuple):
    """One way to filter, all else equal."""

    name: str
    gate: Gate
    proposal: Proposal


def methods(guide: Proposal, tolerance: float) -> list[Method]:
    """The gate's three operating points on one learned guide, and the exact conditional as a reference."""
    return [
        Method("adaptive", adaptive(tolerance=tolerance), guide),
        Method("conservative", conservative(0.5, tolerance=tolerance), guide),
        Method("no-support", no_support(tolerance=tolerance), guide),
        Method("exact guide", adaptive(tolerance=tolerance), ConditionedProposal()),
    ]


def dark_truth(data: Split, episodes: Sequence[Episode]) -> Truth:
    """What was true in the test episodes, of which `episodes` show a part."""
    first = len(data.train) + len(data.validation)
    seen = np.stack([e.observations[:, 0] for e in episodes])
    return Truth(data.truth.states[first:, :, 0], data.truth.modes[first:], seen)


def drawing(method: Method, config: DemoConfig) -> FilterSettings:
    """Settings that draw modes and z from the method's mixture, which is what its gate is about."""
    return FilterSettings(particles=config.particles, engine="mixture", outliers=None, gate=method.gate, lookahead=True)


def runs(model: HybridModel, method: Method, episodes: list[Episode], config: DemoConfig, *, key: PRNGKeyArray) -> Runs:
    """Every episode filtered `config.repeats` times, all at once; the key alone decides what is random."""
    settings = replace(drawing(method, config), history=True)
    out = filter_episodes(model, episodes * config.repeats, key=key, proposal=method.proposal, settings=settings)

    def stacked(of: Callable[[Belief], Any]) -> np.ndarray:
        values = np.stack([np.asarray(of(o)) for o in out])
        return values.reshape(config.repeats, len(episodes), *values.shape[1:])

    def history(o: Belief) -> Particles:
        assert isinstance(o.history, Particles)
        return o.history

    return Runs(
        log_evidence=stacked(lambda o: o.log_evidence),
        record={name: stacked(lambda o, name=name: getattr(o.record, name)) for name in RECORDED},
        mode=stacked(lambda o: o.mode),
        mean=stacked(lambda o: o.mean[:, 0]),
        position=stacked(lambda o: history(o).z[:, 0]),
        weight=stacked(lambda o: np.exp(history(o).log_weight)),
    )


def compared(fitted: Fit, episodes: list[Episode], config: DemoConfig, *, key: PRNGKeyArray) -> dict[str, Runs]:
    """The runs of every method, by name."""
    assert fitted.proposal is not None
    ways = methods(fitted.proposal, config.tolerance)
    with ThreadPoolExecutor(2) as pool:  # compiling takes longer than filtering, and leaves a core idle
        outs = pool.map(lambda way: runs(fitted.model, way, episodes, config, key=key), ways)
        return dict(zip((way.name for way in ways), outs, strict=True))


def paths(fitted: Fit, log: Episode, config: DemoConfig, *, key: PRNGKeyArray) -> list[dict]:
    """What can be said of one whole log, by independent islands: of the adaptive filter and of the default engine."""
    assert fitted.proposal is not None
    way = methods(fitted.proposal, config.tolerance)[0]
    ways = {
        "adaptive, drawn": (drawing(way, config), way.proposal),
        "Gaussian branches": (FilterSettings(particles=config.particles), ConditionedProposal()),
    }

    def said(settings: FilterSettings, proposal: Proposal) -> dict:
        settings = replace(settings, islands=ISLANDS)
        out = filter_episodes(fitted.model, [log], key=key, proposal=proposal, settings=settings)[0]
        assert out.statement is not None
        numbers = {
            k: getattr(out.statement, k) for k in ("log_evidence", "half_width", "lower", "confidence", "engine")
        }
        return numbers | {
            "certified": float(np.mean(out.record.certified)),
            "spread": float(out.statement.spread.max()),
        }

    with ThreadPoolExecutor(2) as pool:
        return [{"method": n, **s} for n, s in zip(ways, pool.map(lambda w: said(*w), ways.values()), strict=True)]


# --- what was learned ---------------------------------------------------------------------------------------


class Motion(NamedTuple):
    """`q̈ = push − stiffness q − damping q̇ + gain a`: a mode's law as seen in positions, per unit mass.

    The momentum's scale is arbitrary, so of H, R and G only these four numbers can be identified.
    """

    stiffness: float
    damping: float
    gain: float
    push: float


def motion(flow: PortHamiltonianFlow, mode: int) -> Motion:
    """The law of motion of one mode with a quadratic energy in (q, p): momentum eliminated."""
    linear_q, linear_p, qq, qp, pp = (float(c) for c in flow.coefficients[mode])
    structure = np.asarray(flow.skew() - flow.resistance(), np.float64)[mode]
    f = structure @ np.array([[2 * qq, qp], [qp, 2 * pp]])
    constant, port = structure @ [linear_q, linear_p], np.asarray(flow.port, np.float64)[mode, :, 0]
    push, gain = (f[0, 1] * v[1] - f[1, 1] * v[0] for v in (constant, port))
    return Motion(float(np.linalg.det(f)), -float(np.trace(f)), float(gain), float(push))


def true_motion(mode: int) -> Motion:
    """The same of the simulated puck; mode 0 is free, 1 the left wall, 2 the right one."""
    side = (0, -1, 1)[mode]
    stiffness, damping = abs(side) * PUCK.stiffness, PUCK.friction + abs(side) * PUCK.damping
    return Motion(*(v / PUCK.mass for v in (stiffness, damping, 1.0, side * stiffness * PUCK.wall)))


def law(model: HybridModel, match: np.ndarray) -> list[dict]:
    """Every mode's learned H, R and G, and its motion beside the true one, in the order of the true modes."""
    flow = model.flow
    assert isinstance(flow, PortHamiltonianFlow)
    terms = [t.text(("q", "p")) for t in flow.library]
    return [
        {
            "mode": PUCK.law().modes[true],
            "energy": dict(zip(terms, map(float, flow.coefficients[mine]), strict=True)),
            "resistance": np.asarray(flow.resistance()[mine], np.float64).tolist(),
            "port": np.asarray(flow.port[mine, :, 0], np.float64).tolist(),
            "motion": motion(flow, mine)._asdict(),
            "true_motion": true_motion(true)._asdict(),
        }
        for true, mine in enumerate(int(m) for m in match)
    ]


# --- the whole demo -----------------------------------------------------------------------------------------


def run_demo(config: DemoConfig = DemoConfig(), *, quiet: bool = False) -> dict:
    """The demo's summary, also written to `config.out` with a page and the model: all of it or nothing."""
    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal:
        console.width = 100
    with staged(config.out, ("index.html", "summary.json", "model.safetensors")) as folder:
        summary, scene, parts = demonstrated(config, console)
        save(folder / "model.safetensors", notes=plain(summary["meta"]), **parts._asdict())
        (folder / "index.html").write_text(demo_page(summary, scene), "utf-8")
        write_json(folder / "summary.json", summary)
    console.print("", demo_table(summary), *demo_words(summary, config.out), sep="\n")
    return summary


def demonstrated(config: DemoConfig, console: Console) -> tuple[dict, dict, Parts]:
    """The summary, one run to look at, and what was fitted."""
    begun = time.perf_counter()
    show = not console.quiet
    data_key, model_key, guide_key, dark_key, filter_key = jax.random.split(jax.random.key(config.seed), 5)
    data = puck_episodes(key=data_key, train=config.train, validation=config.train // 3, test=config.test)
    console.print(f"Learning a puck's three modes from {config.train} logs of noisy positions, without labels.")
    first = fitted_model(data, config, key=model_key, progress=show)
    light = f"at most {config.guide_occlusion:.0%}" if config.guide_occlusion else "nothing"
    console.print(f"Learning a guide from the same logs, with {light} hidden.")
    second = fitted_guide(first.model, data, config, key=guide_key, progress=show)
    assert second.proposal is not None
    console.print(f"Filtering {config.test} new logs with {config.occlusion:.0%} hidden, {config.repeats} keys each.")
    episodes = hidden_in_bursts(data.test, config.occlusion, config.burst, key=dark_key)
    outs, truth = compared(second, episodes, config, key=filter_key), dark_truth(data, episodes)
    match = matching(outs["exact guide"].mode, truth.mode)
    pair = {name: outs[name] for name in ("adaptive", "no-support")}
    scene = film(pair, truth, match, LOST_MARGIN) | {"dt": DT, "wall": PUCK.wall, "modes": PUCK.law().modes}
    summary = {
        "rows": [{"method": name, **row(out, truth, match, LOST_MARGIN)} for name, out in outs.items()],
        "adaptive_over_no_support": difference(outs["adaptive"], outs["no-support"], truth),
        "paths": paths(second, episodes[scene["episode"]], config, key=filter_key),
        "law": law(second.model, match),
        "fit": {"model": fit_notes(first), "guide": fit_notes(second)},
        "definitions": definitions(LOST_MARGIN),
        "meta": meta(config, time.perf_counter() - begun),
    }
    return summary, scene, Parts(second.model, second.proposal)


def meta(config: DemoConfig, seconds: float) -> dict:
    """Who made a result, from what and in how long."""
    return {
        "version": version(),
        "seconds": round(seconds, 1),
        "device": jax.devices()[0].device_kind,
        "config": asdict(config) | {"tolerance": config.tolerance},
        "puck": asdict(PUCK) | {"dt": DT, "steps": STEPS, "sensor_noise": SENSOR_NOISE},
    }


def fit_notes(fitted: Fit) -> dict:
    """How a fit went: validation log evidence per observed position, the best and at every check."""
    return {"score": float(fitted.score.max()), "validation": [float(v) for v in fitted.validation.max(1)]}
