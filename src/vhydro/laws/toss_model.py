"""A tossed body as a model to filter with: its flight is the law's, what touching does is learned from tosses.

The state is the body's place and its next step. In flight a step is kept and pushed by gravity; at rest none is left;
in the other modes a share is kept, with a noise of its own, by expectation maximisation over the steps of the logs.
Which mode is next depends on how high the body is and how it moves: an impact that nobody sees is then expected where
impacts are. A toss that may or may not have struck is two branches and not one wide guess.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.laws.impacts import ImpactLaw
from vhydro.laws.tosses import at_rest
from vhydro.learning.body import BodyFit, StepLaws, body_regression, body_structure, fit_body, step_noise
from vhydro.learning.start import LEAST_MOVE
from vhydro.learning.switching import Regression, Switching, SwitchingConfig, baum_welch, driven_chain, e_step
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.network import Network
from vhydro.views.body import UPRIGHT, BodyView, body_view
from vhydro.views.view import columns, looked_up

REST, FLIGHT = 0, 1
MODES = 5
ROUNDS, EACH = 6, 5  # of the chain's regression, and of Baum–Welch between two of them
REACH = (0.01, 0.99)  # quantiles of the heights at which a body touches: between them chances change …
KNOTS = 6  # … and at so many heights
RESOLUTION = 1.5e-4  # of where tosses begin: finer readings are lost in single precision
HELD_OUT = 5  # every so many-th toss chooses between starts
LEAST_NOISE = 2e-4  # of the noise floor: an axis along which nothing ever moves
CRUMB = 0.5  # of the noise floor: by how much a place is off its step


class Layer(NamedTuple):
    """What the chance of a mode depends on: tanh of these combinations of place and step."""

    weight: Float[np.ndarray, "features state"]
    bias: Float[np.ndarray, "features"]

    def __call__(self, state: np.ndarray) -> np.ndarray:
        return np.tanh(state @ self.weight.T + self.bias)


def toss_model(
    law: ImpactLaw, logs: Iterable[Episode], *, modes: int = MODES, view: BodyView | None = None, seed: int = 0
) -> HybridModel:
    """The model of a tossed body's place: a law of flight along the vertical, and what logs of tosses say of the rest.

    Channels are those of the place along x, y and z. The noise of every mode, what touching keeps of a step and the
    chances of the modes, which depend on height and speed, are learned from the logs; labels are not looked at, and
    tosses that are hidden throughout are left out.
    """
    every = list(logs)
    if modes < 3:
        raise ValueError(f"modes is {modes}; expected at least 3: at rest, in flight, and one that touches.")
    view = body_view(every) if view is None and every else view
    every = [log for log in every if view is not None and _is_seen(view, log)]
    if view is None or len(every) < HELD_OUT:
        raise ValueError(
            f"{len(every)} tosses that are seen; expected at least {HELD_OUT}, some to choose a start by. Give more."
        )
    place = BodyView(view.place, (), view.name)
    steps, floor = [place(log) for log in every], step_noise([place(log) for log in every])
    laws = _step_laws(law, steps[0], modes)
    held = [i % HELD_OUT == 0 for i in range(len(steps))]
    train, rest = ([s for s, h in zip(steps, held, strict=True) if h == which] for which in (False, True))
    fit = fit_body(train, rest, laws, floor=floor, own_noise=True, seed=seed)
    places = [columns(looked_up(place, log), place.place) for log in every]
    return _model(steps, places, laws, fit, floor, tuple(place.place))


def _is_seen(view: BodyView, log: Episode) -> bool:
    """Whether any row of a log has the whole place."""
    return bool(np.isfinite(columns(looked_up(view, log), view.place)).all(1).any())


def _step_laws(law: ImpactLaw, log: Episode, modes: int) -> StepLaws:
    """What is known: a body at rest goes nowhere, one in flight keeps its step and is pushed as the law says."""
    upright = np.array([c.group == UPRIGHT for c in log.channels])
    keep, push = np.full((modes, 3), np.nan), np.zeros((modes, 3))
    keep[REST], keep[FLIGHT] = 0.0, 1.0
    push[FLIGHT, upright], push[FLIGHT + 1 :, upright] = at_rest(law, 0)[0] * log.dt**2, np.nan
    return StepLaws(keep, push)


def _model(
    steps: Sequence[Episode], places: Sequence[np.ndarray], laws: StepLaws, fit: BodyFit, floor: np.ndarray, names
) -> HybridModel:
    """The model of place and next step, in noise floors, from the laws of steps alone."""
    unit = float(floor.max())
    config = SwitchingConfig(own_noise=True, rounds=EACH)
    data = body_regression(steps, floor, padded_length(max(s.steps for s in steps)))
    assumed = body_structure([c.group for c in steps[0].channels], laws, floor)
    chain = _started(fit, floor)
    touching = np.asarray(e_step(data, _first(chain), config).mode)[..., FLIGHT] < 0.5
    layer = _layer(places, steps, touching, unit)
    data = data._replace(inputs=jnp.asarray(_features(layer, places, steps, data, unit)))
    chain = chain._replace(drive=jnp.zeros((1, data.inputs.shape[-1], len(laws.keep)), jnp.float32))
    for _ in range(ROUNDS):
        pairs = e_step(data, _first(chain), config).pairs
        logits, drive = driven_chain(data.inputs[:, 1:], pairs, chain.logits[0], chain.drive[0], config.pseudo_moves)
        chain = baum_welch(data, assumed, chain._replace(logits=logits[None], drive=drive[None]), config)
    return _assembled(_first(chain), layer, places, floor, unit, names)


def _first(chain: Switching) -> Switching:
    return Switching(*(x[0] for x in chain))


def _started(fit: BodyFit, floor: np.ndarray) -> Switching:
    """Where the chain begins: the laws of the fit, its moves, and nothing that drives them."""
    parts = np.stack([fit.laws.keep, fit.laws.push / floor], -1), fit.noise / floor
    logits, start = np.asarray(fit.model.kernel.logits), np.asarray(fit.model.start_log_mode)
    drive = np.zeros((0, len(start)))
    return Switching(*(jnp.asarray(x, jnp.float32)[None] for x in (*parts, logits, drive, start)))


def _states(places: Sequence[np.ndarray], steps: Sequence[Episode], unit: float) -> list[np.ndarray]:
    """Place and next step at every row that has both, in noise floors: (rows, 6)."""
    return [np.concatenate([p[:-1], s.observations], 1) / unit for p, s in zip(places, steps, strict=True)]


def _layer(places, steps: Sequence[Episode], touching: np.ndarray, unit: float) -> Layer:
    """Heights after the next step against those at which bodies touch, and the fall.

    Speed along the ground is left out: it is not known when a log begins, and a chance is that of the mean.
    """
    states = _states(places, steps, unit)
    low = np.concatenate([s[: len(on)][on[: len(s)]] for s, on in zip(states, touching, strict=True)])
    every = np.concatenate(states)
    low, every = (x[np.isfinite(x).all(1)] for x in (low, every))
    if not len(low):
        raise ValueError("no toss ever touches anything; expected impacts. Give logs that last until the body lands.")
    lowest, highest = np.quantile(low[:, 2] + low[:, 5], REACH)
    knots = np.linspace(lowest, highest, KNOTS)
    width = max(float(knots[1] - knots[0]), 1.0)
    fall = max(float(np.quantile(np.abs(every[:, 5]), 0.8)), 1.0)
    rows = [([0, 0, 1, 0, 0, 1], -knot, width) for knot in knots]
    rows += [([0, 0, 1, 0, 0, 3], -knot, 2 * width) for knot in knots[1:4:2]]  # heights a few rows ahead
    rows += [([0, 0, 0, 0, 0, 1], 0.0, scale) for scale in (0.1 * fall, fall)]
    weight = np.array([np.array(w, float) / scale for w, _, scale in rows])
    return Layer(weight, np.array([shift / scale for _, shift, scale in rows]))


def _features(layer: Layer, places, steps: Sequence[Episode], data: Regression, unit: float) -> np.ndarray:
    """What the chance of every row's mode depends on: (logs, rows, features), 0 where it is not seen."""
    out = np.zeros((*data.valid.shape, len(layer.bias)), np.float32)
    for row, states in zip(out, _states(places, steps, unit), strict=True):
        found = layer(states)
        row[: len(found)] = np.where(np.isfinite(found), found, 0.0)[: len(row)]
    return out


def _assembled(chain: Switching, layer: Layer, places, floor: np.ndarray, unit: float, names) -> HybridModel:
    """The hybrid model whose step is the chain's, and whose place follows its step."""
    keep, push = np.moveaxis(np.asarray(chain.coefficients, np.float64), -1, 0)
    share, modes = floor / unit, len(keep)
    matrix, offset = np.tile(np.eye(6), (modes, 1, 1)), np.zeros((modes, 6))
    matrix[:, :3, 3:], matrix[:, 3:, 3:] = np.eye(3), keep[:, :, None] * np.eye(3)
    offset[:, 3:] = push * share
    noise = np.concatenate([np.full((modes, 3), CRUMB), np.asarray(chain.noise) * share], 1)
    begin = np.stack([next(row for row in p if np.isfinite(row).all()) for p in places]) / unit
    move = np.concatenate([np.diff(p, axis=0)[:5] for p in places]) / unit
    spread = np.concatenate([np.tile(begin.std(0).max(), 3), np.tile(np.sqrt(np.nanmean(move**2)), 3)])
    mean = np.concatenate([begin.mean(0), np.zeros(3)])
    sensor = np.maximum(1.0, RESOLUTION * spread[:3])
    arrays = [jnp.asarray(x, jnp.float32) for x in (layer.weight, np.asarray(chain.drive).T, layer.bias)]
    drive = Network((arrays[0], arrays[1]), (arrays[2], jnp.zeros(modes, jnp.float32)))
    logits = np.asarray(chain.logits, np.float64)
    kept = jnp.asarray(np.maximum(logits - logits.max(1, keepdims=True), np.log(LEAST_MOVE)), jnp.float32)
    return hybrid_model(
        replace(mode_kernel(modes, drive=drive), logits=kept),
        linear_flow(matrix, offset=offset),
        axis_emission(6, range(3), noise=sensor),
        noise=np.maximum(noise, LEAST_NOISE),
        start_mode=np.exp(np.asarray(chain.log_start, np.float64)),
        start_mean=np.tile(mean, (modes, 1)),
        start_scale=np.tile(np.maximum(spread, 1.0), (modes, 1)),
        scale=unit,
        channels=names,
    )
