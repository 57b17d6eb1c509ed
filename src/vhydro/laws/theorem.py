"""The recovery theorem with its constants measured: restricted eigenvalue, score, penalty, bound and true error.

Paper: Thm 3, Eqs. (score_rsc), (sparse_bounds), (lambdam_choice), and the four parts of its appendix.
Differs: n counts rows of the stacked regression, not samples; λ and κ scale alike, so the bound is the same. Columns
are brought to unit root mean square first: the theorem holds in any fixed scaling, and this one needs no units.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from vhydro.laws.restricted import RestrictedEigenvalue, restricted_eigenvalue

# Of the target's root mean square: a smaller penalty cannot be told from none in the objective's last digits.
LEAST_LEVEL = 1e-8
# Of the penalty term: a wider duality gap is not an optimum that the theorem speaks of.
WIDEST_GAP = 1e-6
MOST_STEPS = 1000


class RecoveryBound(NamedTuple):
    """What the theorem promises of one regression beside what happened; errors are in columns of unit RMS."""

    scale: np.ndarray  # (columns,): root mean square of every column; ξ in unit-RMS columns is scale · ξ
    score: float  # ‖Âᵀζ/n‖∞
    level: float  # λ_m
    restricted: RestrictedEigenvalue  # κ_m; the bounds below use its proven `lower`
    estimate: np.ndarray  # (columns,): the Lasso at λ_m, for the design as it was given
    gap: float  # duality gap of the estimate, as a share of λ_m ‖ξ̂‖₁
    error: float  # ‖ξ̂ − ξ*‖₂
    bound: float  # 4 √k λ_m / κ_m, infinite where κ_m is 0
    prediction_error: float  # ‖Â(ξ̂ − ξ*)‖² / n
    prediction_bound: float  # 16 k λ_m² / κ_m
    conditions: bool  # κ_m > 0 beyond rounding, and score ≤ λ_m / 2
    smallest: float  # β_min: the smallest true coefficient
    support_condition: bool  # the conditions hold, and β_min > 2 · bound
    support_recovered: bool  # a threshold at β_min / 2, the middle of the theorem's interval, leaves the true support

    @property
    def holds(self) -> bool:
        """Whether both errors lie within their bounds."""
        return self.error <= self.bound and self.prediction_error <= self.prediction_bound


def penalty(
    rows: int, columns: int, *, noise: float, failure: float, largest: float = 1.0, perturbation: float = 0.0
) -> float:
    """λ_m for which the score condition holds with probability at least 1 − `failure`.

    `noise` is the sub-Gaussian scale σ_m, `perturbation` is ν_m, and `largest` is L_A, the largest root mean square
    of a column: 1 in the unit columns used here. Paper: Eq. (lambdam_choice).
    """
    if rows < 1 or columns < 1 or not 0.0 < failure < 1.0 or min(noise, largest, perturbation) < 0.0:
        raise ValueError(
            f"rows is {rows}, columns {columns}, failure {failure}, noise {noise}, largest {largest}, perturbation "
            f"{perturbation}; expected counts of at least 1, a failure between 0 and 1, and no negative scale."
        )
    return 2.0 * (largest * noise * math.sqrt(2.0 * math.log(2.0 * columns / failure) / rows) + perturbation)


def recovery_bound(
    design: np.ndarray, target: np.ndarray, truth: np.ndarray, *, level: float | None = None
) -> RecoveryBound:
    """The theorem's constants, its bound and the true error for `target` (rows,) on `design` (rows, columns).

    Without `level`, λ_m is the smallest that satisfies the score condition, 2 ‖Âᵀζ/n‖∞, which only one who knows
    the `truth` can choose; it is kept above `LEAST_LEVEL` of the target, where data without noise would make it 0.
    """
    _refuse_regression(design, target, truth)
    scale, unit, scaled = _unit_columns(design, truth)
    n, support = len(target), np.flatnonzero(truth)
    score = _largest_correlation(unit, target - unit @ scaled)
    level = max(2.0 * score, LEAST_LEVEL * float(np.sqrt(np.mean(target**2)))) if level is None else level
    if not (math.isfinite(level) and level > 0.0):
        raise ValueError(f"the penalty is {level}; expected a positive number. Pass another `level`.")
    estimate, gap = _lasso(unit, target, level)
    off = estimate - scaled

    restricted = restricted_eigenvalue(unit.T @ unit / n, support.tolist())
    inverse = 1.0 / restricted.lower if restricted.lower > 0.0 else math.inf
    bound = 4.0 * math.sqrt(len(support)) * level * inverse
    smallest = float(np.abs(scaled[support]).min())
    conditions = bool(restricted.lower > 0.0 and score <= level / 2.0)
    return RecoveryBound(
        scale=scale,
        score=score,
        level=level,
        restricted=restricted,
        estimate=estimate / scale,
        gap=gap,
        error=float(np.linalg.norm(off)),
        bound=bound,
        prediction_error=float(np.mean((unit @ off) ** 2)),
        prediction_bound=16.0 * len(support) * level**2 * inverse,
        conditions=conditions,
        smallest=smallest,
        support_condition=conditions and smallest > 2.0 * bound,
        support_recovered=np.array_equal(np.flatnonzero(np.abs(estimate) > smallest / 2.0), support),
    )


class ModeSamples(NamedTuple):
    """The samples that were assigned to one mode: what was estimated of them, and what is true."""

    states: np.ndarray  # (samples, coordinates): ẑ
    rates: np.ndarray  # (samples, coordinates): estimated ż
    inputs: np.ndarray  # (samples, inputs)
    true_states: np.ndarray  # (samples, coordinates)
    true_rates: np.ndarray  # (samples, coordinates): ż in the mode each sample is truly in


class Structure(NamedTuple):
    """What surrounds the energy in one mode's law: `ż = flow ∇H + port a`."""

    flow: np.ndarray  # (coordinates, coordinates): J − R
    port: np.ndarray  # (coordinates, inputs): G


class Residual(NamedTuple):
    """The plug-in regression of one mode, and the four vectors (rows,) whose sum is ζ = target − design ξ*."""

    design: np.ndarray  # (rows, columns)
    target: np.ndarray  # (rows,)
    filtering: np.ndarray
    derivative: np.ndarray
    mode: np.ndarray
    structure: np.ndarray


class ScoreParts(NamedTuple):
    """`‖Âᵀu/n‖∞` in columns of unit RMS, for each part u of ζ; their sum is never below `score`, that of ζ itself."""

    filtering: float  # ν_filt
    derivative: float  # ν_der
    mode: float  # ν_mode
    structure: float  # ν_pH
    score: float


def residual_parts(
    samples: ModeSamples,
    gradients: Callable[[np.ndarray], np.ndarray],
    truth: np.ndarray,
    *,
    estimated: Structure,
    true: Structure,
) -> Residual:
    """The plug-in regression of one mode, and its residual split, exactly, by what caused it.

    `gradients` gives ∇Θ (samples, coordinates, columns) at states (samples, coordinates). Filtering is what ∇Θ
    changes between ẑ and z, derivative the error of the rates, structure that of J − R and G; what the true law of
    this mode leaves of the true rates is the mode's part: samples of another mode, and process noise if there is any.
    Paper: Eqs. (plugin_regression) and (app_sparse_u_decomposition).
    """
    at_estimate, at_truth = gradients(samples.states), gradients(samples.true_states)
    _refuse_samples(samples, at_estimate, truth)
    force, true_force = at_estimate @ truth, at_truth @ truth
    columns, inputs = at_estimate.shape[-1], samples.inputs
    parts = {
        "filtering": (true_force - force) @ true.flow.T,
        "derivative": samples.rates - samples.true_rates,
        "mode": samples.true_rates - true_force @ true.flow.T - inputs @ true.port.T,
        "structure": force @ (true.flow - estimated.flow).T + inputs @ (true.port - estimated.port).T,
    }
    return Residual(
        design=np.einsum("ij,njp->nip", estimated.flow, at_estimate).reshape(-1, columns),
        target=(samples.rates - inputs @ estimated.port.T).ravel(),
        **{name: part.ravel() for name, part in parts.items()},
    )


def score_parts(residual: Residual) -> ScoreParts:
    """How much of the score each of the four causes can account for."""
    _, unit, _ = _unit_columns(residual.design, np.zeros(residual.design.shape[1]))
    parts = (residual.filtering, residual.derivative, residual.mode, residual.structure)
    levels = [_largest_correlation(unit, part) for part in (*parts, np.sum(parts, axis=0))]
    return ScoreParts(*levels)


def _unit_columns(design: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every column's root mean square, the design with unit columns, and the coefficients that belong to it."""
    scale = np.sqrt(np.mean(design**2, axis=0))
    if not np.all(scale > 0.0):
        raise ValueError(
            f"columns {np.flatnonzero(~(scale > 0.0)).tolist()} of the design are zero in every row; "
            "expected terms that act in this mode. Leave them out of its library."
        )
    return scale, design / scale, scale * truth


def _largest_correlation(design: np.ndarray, residual: np.ndarray) -> float:
    return float(np.abs(design.T @ residual).max()) / len(residual)


def _lasso(design: np.ndarray, target: np.ndarray, level: float) -> tuple[np.ndarray, float]:
    """The minimiser of ‖b − Aξ‖²/2n + λ‖ξ‖₁, and its duality gap as a share of the penalty term."""
    # The square root of the normal equations has the same minimisers, in a handful of rows.
    basis, root = np.linalg.qr(design)
    shrink = 1.0 / math.sqrt(len(target))
    root, image = root * shrink, basis.T @ target * shrink
    rows = math.sqrt(len(image))
    solver = Lasso(alpha=level, fit_intercept=False, tol=1e-12, max_iter=10_000)
    with warnings.catch_warnings():  # whether it arrived is judged by the gap below
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimate = solver.fit(root * rows, image * rows).coef_
    candidates = (estimate, _finished(root, image, level, estimate))
    estimate = min(candidates, key=lambda candidate: _gap(root, image, level, candidate))
    gap = _gap(root, image, level, estimate)
    size = level * float(np.abs(estimate).sum())
    share = gap / size if size > 0.0 else gap
    if share > WIDEST_GAP:
        raise ValueError(
            f"the Lasso stopped at a duality gap of {share:.1e} of its penalty term; expected at most {WIDEST_GAP}. "
            "Leave collinear columns out, or pass a larger `level`."
        )
    return estimate, share


def _finished(root: np.ndarray, image: np.ndarray, level: float, estimate: np.ndarray) -> np.ndarray:
    """The minimiser, by active-set steps from an estimate: coordinate descent stalls on columns that are collinear."""
    signs = np.sign(estimate)
    for _ in range(MOST_STEPS):
        goal = _goal(root, image, level, signs, estimate)
        crossed = np.flatnonzero(goal * signs < 0.0)
        if len(crossed):  # go as far as the first sign that would change, and let that column rest
            reach = estimate[crossed] / (estimate[crossed] - goal[crossed])
            estimate = estimate + reach.min() * (goal - estimate)
            estimate[crossed[reach.argmin()]] = signs[crossed[reach.argmin()]] = 0.0
            continue
        estimate = goal
        slope = np.where(signs == 0.0, root.T @ (image - root @ estimate), 0.0)
        worst = np.abs(slope).argmax()
        if abs(slope[worst]) <= level * (1.0 + WIDEST_GAP / 2.0):
            break
        signs[worst] = np.sign(slope[worst])
    return estimate


def _goal(root: np.ndarray, image: np.ndarray, level: float, signs: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """Where the objective leads while no sign changes: to its minimum, or, if it falls for ever, past a change."""
    active = np.flatnonzero(signs)
    left, singular, right = np.linalg.svd(root[:, active])
    rank = int(np.sum(singular > 1e-14 * singular.max(initial=0.0)))
    null = right[rank:]
    goal, downhill = np.zeros_like(signs), -null.T @ (null @ signs[active])
    fall = -signs[active] @ downhill
    if fall > 1e-12:
        goal[active] = estimate[active] + downhill * 2.0 * np.abs(estimate).sum() / fall
        return goal
    # (AᵀA) ξ = Aᵀb − λ s, through A itself: its condition number is the root of the Gram matrix's.
    along, right = singular[:rank], right[:rank]
    goal[active] = right.T @ ((left.T[:rank] @ image - level * (right @ signs[active]) / along) / along)
    return goal


def _gap(root: np.ndarray, image: np.ndarray, level: float, estimate: np.ndarray) -> float:
    """How far the estimate's objective can be above the minimum, by its residual shrunk to a dual point."""
    residual = image - root @ estimate
    slope = root.T @ residual
    shrink = min(1.0, level / max(float(np.abs(slope).max()), np.finfo(float).tiny))
    penalised = level * np.abs(estimate) - shrink * estimate * slope
    return float(0.5 * (1.0 - shrink) ** 2 * residual @ residual + penalised.sum())


def _refuse_regression(design: np.ndarray, target: np.ndarray, truth: np.ndarray) -> None:
    if design.ndim != 2 or target.shape != design.shape[:1] or truth.shape != design.shape[1:] or not design.size:
        raise ValueError(
            f"design, target and truth have shapes {design.shape}, {target.shape} and {truth.shape}; "
            "expected (rows, columns), (rows,) and (columns,), none of them empty."
        )
    if not all(np.isfinite(x).all() for x in (design, target, truth)):
        raise ValueError("design, target or truth holds a value that is not finite; drop those rows or columns.")
    if not truth.any():
        raise ValueError("every true coefficient is 0; the theorem speaks of a support, so pass at least one term.")


def _refuse_samples(samples: ModeSamples, gradients: np.ndarray, truth: np.ndarray) -> None:
    n, coordinates = samples.states.shape
    shapes = [x.shape for x in (samples.rates, samples.true_states, samples.true_rates)]
    if (
        shapes != 3 * [(n, coordinates)]
        or len(samples.inputs) != n
        or gradients.shape != (n, coordinates, *truth.shape)
    ):
        raise ValueError(
            f"states are {samples.states.shape}, rates, true states and true rates {shapes}, inputs "
            f"{samples.inputs.shape}, gradients {gradients.shape} and truth {truth.shape}; expected the same samples "
            "and coordinates everywhere, and one gradient column for every true coefficient."
        )
