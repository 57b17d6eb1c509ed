"""Switching regression: linear laws that take turns, found without labels by Baum–Welch from several starts.

In mode s, channel c of a row follows `y_c = x_c · β_sc + noise`, and a Markov chain says which mode is next. Three
things are assumed and not learned: which coefficients are one parameter in several places, which are known, and
whether modes share their noise. A mode with a noise of its own tells speeds apart, where shared noise tells laws apart.

Transitions may be input-driven (Bengio & Frasconi 1996): `π(s' | s, u) ∝ exp(A_ss' + u · B_s')`, so that the chain
knows when a mode begins and not only that it does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vhydro.learning.forward_backward import ChainPosterior, forward_backward, sticky
from vhydro.small import precise


class Regression(NamedTuple):
    """Rows of episodes side by side; what is not seen, or padding, is 0 and does not count."""

    response: Float[Array, "episodes rows channels"]
    design: Float[Array, "episodes rows channels features"]
    seen: Bool[Array, "episodes rows channels"]
    valid: Bool[Array, "episodes rows"]
    inputs: Float[Array, "episodes rows inputs"]  # what the chance of a mode in this row depends on; may have width 0


class Structure(NamedTuple):
    """What is assumed of the coefficients."""

    parameter: Int[Array, "channels features"]  # the parameter in every place; places with one number share it
    given: Float[Array, "modes parameters"]  # NaN where it is learned
    precision: Float[Array, "parameters"]  # of a normal prior around 0
    prior_rows: Float[Array, "parameters"]  # the same in imagined rows: a prior as wide as the noise
    alike: Float[Array, "channels channels"]  # 1 where two channels have one noise


class Switching(NamedTuple):
    """Laws, noise and chain of every mode."""

    coefficients: Float[Array, "*starts modes channels features"]
    noise: Float[Array, "*starts modes channels"]
    logits: Float[Array, "*starts modes modes"]  # rows are where from
    drive: Float[Array, "*starts inputs modes"]  # what an input adds to the logit of the next mode
    log_start: Float[Array, "*starts modes"]


@dataclass(frozen=True)
class SwitchingConfig:
    """How Baum–Welch runs."""

    rounds: int = 40
    stay: float = 0.95  # a mode's chance to go on, to begin with
    pseudo_moves: float = 0.1  # imagined transitions, so that none is impossible
    own_noise: bool = False  # every mode has its own; otherwise they share one
    floor: float = 1.0  # of the noise
    temper: float = 1.0  # rows that say the same, where neighbours were smoothed together


def structure(
    parameter: np.ndarray,
    modes: int,
    *,
    given=None,
    precision=1.0,
    prior_rows=0.0,
    groups=None,
    dtype: Any = np.float32,
) -> Structure:
    """The structure of coefficients (channels, features); nothing is known unless `given` says so (NaN: learned).

    `groups` has a name for every channel: those of one name share their noise. Without it each has its own.
    """
    channels, count = parameter.shape[0], int(parameter.max()) + 1
    names = np.arange(channels) if groups is None else np.asarray(groups)
    return Structure(
        jnp.asarray(parameter, jnp.int32),
        jnp.asarray(np.full((modes, count), np.nan) if given is None else given, dtype),
        jnp.asarray(np.broadcast_to(precision, count), dtype),
        jnp.asarray(np.broadcast_to(prior_rows, count), dtype),
        jnp.asarray(names[:, None] == names, dtype),
    )


def start_from_coefficients(data: Regression, coefficients: np.ndarray, config: SwitchingConfig) -> Switching:
    """Where Baum–Welch begins with these laws, (starts, modes, channels, features): a sticky chain, wide noise."""
    starts, modes, channels, _ = coefficients.shape
    dtype = data.response.dtype
    seen = np.maximum(np.asarray(data.seen).sum((0, 1)), 1)
    spread = np.sqrt((np.asarray(data.response, np.float64) ** 2).sum((0, 1)) / seen)
    noise = np.broadcast_to(np.maximum(spread, config.floor), (starts, modes, channels))
    return _sticky_start(jnp.asarray(coefficients, dtype), jnp.asarray(noise, dtype), data, config)


def _sticky_start(coefficients, noise, data: Regression, config: SwitchingConfig) -> Switching:
    starts, modes, dtype = *coefficients.shape[:2], coefficients.dtype
    return Switching(
        coefficients,
        noise,
        jnp.broadcast_to(jnp.log(jnp.asarray(sticky(modes, config.stay), dtype)), (starts, modes, modes)),
        jnp.zeros((starts, data.inputs.shape[-1], modes), dtype),
        jnp.full((starts, modes), -np.log(modes), dtype),
    )


@partial(jax.jit, static_argnames=("config",))
@precise
def start_from_labels(
    data: Regression, assumed: Structure, labels: Int[Array, "starts episodes rows"], config: SwitchingConfig
) -> Switching:
    """Where Baum–Welch begins with a mode for every row."""
    modes, dtype = assumed.given.shape[0], data.response.dtype
    width = data.design.shape[2:]
    starts = labels.shape[0]
    blank = _sticky_start(
        jnp.zeros((starts, modes, *width), dtype), jnp.ones((starts, modes, width[0]), dtype), data, config
    )

    def one(labels, blank: Switching) -> Switching:
        weight = jax.nn.one_hot(labels, modes, dtype=dtype) * data.valid[..., None]
        return _laws(data, assumed, weight, blank, config)

    return jax.vmap(one)(labels, blank)


@partial(jax.jit, static_argnames=("config",))
@precise
def baum_welch(data: Regression, assumed: Structure, starts: Switching, config: SwitchingConfig) -> Switching:
    """Every start after `config.rounds` of E and M steps; what drives transitions stays as it is."""

    moments = _moments(data)

    def one(start: Switching) -> Switching:
        return jax.lax.fori_loop(0, config.rounds, lambda _, now: _round(data, assumed, now, config, moments), start)

    return jax.vmap(one)(starts)


def _round(data: Regression, assumed: Structure, now: Switching, config: SwitchingConfig, moments) -> Switching:
    chain = e_step(data, now, config, moments)
    weight = chain.mode * data.valid[..., None]
    moves = chain.pairs.sum((0, 1)) + config.pseudo_moves
    begun = weight[:, 0].sum(0) + config.pseudo_moves
    now = now._replace(
        logits=jnp.log(moves / moves.sum(1, keepdims=True)) if not data.inputs.shape[-1] else now.logits,
        log_start=jnp.log(begun / begun.sum()),
    )
    return _laws(data, assumed, weight, now, config, moments)


@partial(jax.jit, static_argnames=("config",))
@precise
def e_step(data: Regression, now: Switching, config: SwitchingConfig, moments=None) -> ChainPosterior:
    """The modes of every episode."""
    log_density = row_log_density(data, now, moments) / config.temper
    log_move = log_transitions(now, data.inputs)
    axes = (0, 0, 0 if log_move.ndim == 4 else None, None)
    return jax.vmap(forward_backward, in_axes=axes)(log_density, data.valid, log_move, now.log_start)


def _moments(data: Regression) -> Float[Array, "episodes rows moments"] | None:
    """Products of responses and of what drives them, of which densities and sums of one regressor are linear.

    With more regressors they would cancel digits that matter, and would be too many: None.
    """
    if data.design.shape[-1] > 1:
        return None
    y, x = data.response, data.design[..., 0]
    seen = data.seen.astype(y.dtype)
    return jnp.concatenate([seen * part for part in (y * y, x * y, x * x, jnp.ones_like(y))], -1)


def row_log_density(data: Regression, now: Switching, moments=None) -> Float[Array, "episodes rows modes"]:
    """How likely every row is in every mode, but for a constant."""
    if moments is not None:
        known, gain = 1 / now.noise**2, now.coefficients[..., 0]
        parts = (-0.5 * known, gain * known, -0.5 * gain**2 * known, -jnp.log(now.noise))
        return jnp.matmul(moments, jnp.concatenate(parts, -1).T, precision="highest")  # sums that cancel
    terms = -0.5 * (_residuals(data, now) / now.noise) ** 2 - jnp.log(now.noise)
    return (terms * data.seen[:, :, None]).sum(-1)


def log_transitions(now: Switching, inputs: Float[Array, "episodes rows inputs"]) -> Float[Array, "*steps modes modes"]:
    """Log transition probabilities: one matrix, or with inputs one for every step, from each row to the next."""
    if not inputs.shape[-1]:
        return jax.nn.log_softmax(now.logits, axis=-1)
    return jax.nn.log_softmax(now.logits + (inputs[:, 1:] @ now.drive)[..., None, :], axis=-1)


def _residuals(data: Regression, now: Switching) -> Float[Array, "episodes rows modes channels"]:
    fitted = jnp.einsum("erck,mck->ermc", data.design, now.coefficients)
    return (data.response[:, :, None] - fitted) * data.seen[:, :, None]


def _laws(data: Regression, assumed: Structure, weight, now: Switching, config: SwitchingConfig, moments=None):
    """The M step of laws and noise: least squares with what is given and tied, then what they leave."""
    if moments is not None:
        square, cross, gram, count = jnp.split(
            jnp.einsum("erm,erf->mf", weight, moments, precision="highest"), 4, axis=-1
        )
        now = now._replace(coefficients=_least_squares(assumed, gram[..., None, None], cross[..., None], now.noise))
        gain = now.coefficients[..., 0]
        square = jnp.maximum(square - 2 * gain * cross + gain**2 * gram, 0.0)
    else:
        counted = data.design * data.seen[..., None]
        gram = jnp.einsum("erm,erck,ercl->mckl", weight, counted, data.design)
        cross = jnp.einsum("erm,erck,erc->mck", weight, counted, data.response)
        now = now._replace(coefficients=_least_squares(assumed, gram, cross, now.noise))
        square = jnp.einsum("erm,ermc->mc", weight, _residuals(data, now) ** 2)
        count = jnp.einsum("erm,erc->mc", weight, data.seen.astype(weight.dtype))
    square, count = square @ assumed.alike, count @ assumed.alike
    if config.own_noise:  # with one imagined row at the floor
        variance = (square + config.floor**2) / (count + 1)
    else:
        variance = jnp.broadcast_to(square.sum(0) / jnp.maximum(count.sum(0), 1), square.shape)
    return now._replace(noise=jnp.maximum(jnp.sqrt(variance), config.floor))


def _least_squares(assumed: Structure, gram, cross, noise) -> Float[Array, "modes channels features"]:
    """The coefficients of every mode from weighted sums of products of regressors, and of these with responses."""
    count, dtype = assumed.given.shape[1], gram.dtype
    place = jax.nn.one_hot(assumed.parameter, count, dtype=dtype)
    known = 1 / noise**2
    normal = jnp.einsum("mckl,mc,ckp,clq->mpq", gram, known, place, place)
    imagined = jnp.einsum("mc,ckp->mp", known, place) / jnp.maximum(place.sum((0, 1)), 1)
    prior = assumed.precision + assumed.prior_rows * imagined
    normal = normal + prior[:, :, None] * jnp.eye(count, dtype=dtype)
    free, fixed = jnp.isnan(assumed.given), jnp.nan_to_num(assumed.given)
    right = jnp.einsum("mck,mc,ckp->mp", cross, known, place) - jnp.einsum("mpq,mq->mp", normal, fixed)
    both = free[:, :, None] & free[:, None, :]
    normal = jnp.where(both, normal, jnp.eye(count, dtype=dtype))
    solved = jnp.linalg.solve(normal, jnp.where(free, right, 0.0)[..., None])[..., 0]
    return jnp.where(free, solved, fixed)[:, assumed.parameter]


class Rows(NamedTuple):
    """What the rows of every mode are like."""

    share: Float[Array, "starts modes"]  # of all rows
    told: Float[Array, "starts modes channels"]  # RMS of the first regressor
    stalled: Float[Array, "starts modes channels"]  # share in which it asks for more than `TOLD` and little comes of it


TOLD, STILL = 1.0, 0.3  # noise floors: drives below the first say nothing; responses below the second are none


@partial(jax.jit, static_argnames=("config",))
@precise
def rows_of_modes(data: Regression, found: Switching, config: SwitchingConfig) -> Rows:
    """What the rows of every mode are like, for every start."""
    drive, response = data.design[..., 0], data.response
    stalled = (jnp.abs(drive) > TOLD) & (jnp.abs(response) < STILL) & data.seen

    moments = _moments(data)

    def one(now: Switching) -> Rows:
        weight = e_step(data, now, config, moments).mode * data.valid[..., None]
        count = jnp.maximum(weight.sum((0, 1)), 1e-6)[:, None]
        square = jnp.einsum("erm,erc->mc", weight, drive**2)
        still = jnp.einsum("erm,erc->mc", weight, stalled.astype(weight.dtype))
        return Rows(weight.sum((0, 1)) / data.valid.sum(), jnp.sqrt(square / count), still / count)

    return jax.vmap(one)(found)


def mode_shares(data: Regression, found: Switching, config: SwitchingConfig) -> Float[Array, "starts modes"]:
    """The share of the rows that is in every mode."""
    return rows_of_modes(data, found, config).share


@partial(jax.jit, static_argnames=("config",))
@precise
def mean_log_likelihood(data: Regression, found: Switching, config: SwitchingConfig) -> Float[Array, "starts"]:
    """The log likelihood per row of every start, but for a constant."""
    moments = _moments(data)
    one = lambda now: e_step(data, now, config, moments).log_likelihood.sum()  # noqa: E731
    return jax.vmap(one)(found) / jnp.maximum(data.valid.sum(), 1)


# --- transitions that inputs drive ------------------------------------------------------------------------------------

WIDTH = 3.0  # standard deviation of the prior of what an input may add to a logit
NEWTON = 3  # steps in every round
HALVED = 0.5 ** np.arange(6)  # of a step, until it lowers the loss


@partial(jax.jit, static_argnames=("pseudo_moves",))
@precise
def driven_chain(
    inputs: Float[Array, "episodes steps inputs"],
    pairs: Float[Array, "episodes steps modes modes"],
    logits: Float[Array, "modes modes"],
    drive: Float[Array, "inputs modes"],
    pseudo_moves: float,
) -> tuple[Float[Array, "modes modes"], Float[Array, "inputs modes"]]:
    """The chain that makes the expected transitions likelier: a multinomial logit by Newton's method.

    Its regressors are where a step comes from and the step's inputs; a step that does not lower the loss is halved.
    """
    modes, dtype = pairs.shape[-1], pairs.dtype
    logits, drive = jnp.asarray(logits, dtype), jnp.asarray(drive, dtype)
    inputs = inputs.reshape(-1, inputs.shape[-1])
    pairs = pairs.reshape(-1, modes, modes)
    left = pairs.sum(-1)  # expected departures of every step from every mode
    # The prior of the logits only fixes what a softmax leaves open.
    prior = jnp.concatenate([jnp.full(modes, 1e-2, dtype), jnp.full(inputs.shape[1], 1 / WIDTH**2, dtype)])
    eye = jnp.eye(modes, dtype=dtype)

    def log_moves(weight):
        return jax.nn.log_softmax(weight[:modes] + (inputs @ weight[modes:])[:, None], axis=-1)

    def loss(weight):
        start = jax.nn.log_softmax(weight[:modes], axis=-1)
        expected = (pairs * log_moves(weight)).sum() + pseudo_moves * start.sum()
        return -expected + 0.5 * (prior[:, None] * weight**2).sum()

    def step(_, weight):
        chance = jnp.exp(log_moves(weight))
        start = jnp.exp(jax.nn.log_softmax(weight[:modes], axis=-1))
        off = pairs - left[..., None] * chance
        gradient = jnp.concatenate(
            [off.sum(0) + pseudo_moves * (1 - modes * start), inputs.T @ off.sum(1)]
        ) - prior[:, None] * weight  # fmt: skip
        curve = left[..., None, None] * (chance[..., None] * (eye - chance[..., None, :]))
        by_mode = curve.sum(0) + pseudo_moves * modes * start[..., None] * (eye - start[:, None])
        size = modes + inputs.shape[1]
        hessian = jnp.zeros((size, modes, size, modes), dtype)
        hessian = hessian.at[jnp.arange(modes), :, jnp.arange(modes)].set(by_mode)
        cross = jnp.einsum("ti,tsab->sabi", inputs, curve)
        hessian = hessian.at[:modes, :, modes:].set(jnp.transpose(cross, (0, 1, 3, 2)))
        hessian = hessian.at[modes:, :, :modes].set(jnp.transpose(cross, (3, 2, 0, 1)))
        hessian = hessian.at[modes:, :, modes:].set(jnp.einsum("ti,tj,tsab->iajb", inputs, inputs, curve))
        flat = hessian.reshape(size * modes, -1) + jnp.diag(jnp.repeat(prior, modes))
        whole = jnp.linalg.solve(flat, gradient.ravel()).reshape(weight.shape)
        tried = weight + HALVED[:, None, None].astype(dtype) * whole
        lower = jax.vmap(loss)(tried) < loss(weight)
        return jnp.where(lower.any(), tried[lower.argmax()], weight)

    weight = jax.lax.fori_loop(0, NEWTON, step, jnp.concatenate([logits, drive]))
    return weight[:modes], weight[modes:]
