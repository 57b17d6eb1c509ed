import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhydro.laws.theorem import (
    ModeSamples,
    Structure,
    penalty,
    recovery_bound,
    residual_parts,
    score_parts,
)


def regression(seed: int, kind: str, noise: float, columns: int = 5, rows: int = 40, size: int = 2):
    """A design, a target and the sparse truth behind it."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(rows, columns))
    match kind:
        case "correlated":
            design += 5.0 * rng.normal(size=(rows, 1))
        case "powers":
            design = rng.uniform(0.2, 1.0, (rows, 1)) ** np.arange(1, columns + 1)
        case "short of rows":
            design = design[: columns - 1]
    truth = np.zeros(columns)
    truth[rng.permutation(columns)[:size]] = rng.choice((-1.0, 1.0), size) * rng.uniform(1.0, 3.0, size)
    return design, design @ truth + noise * rng.normal(size=len(design)), truth


@settings(max_examples=120)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(("plain", "correlated", "powers", "short of rows")),
    noise=st.sampled_from((0.0, 1e-10, 1e-6, 1e-3, 0.1, 3.0)),
    columns=st.integers(2, 6),
    size=st.integers(1, 2),
)
def test_the_bound_is_above_the_error_wherever_the_conditions_hold(seed, kind, noise, columns, size):
    design, target, truth = regression(seed, kind, noise, columns, size=size)
    result = recovery_bound(design, target, truth)
    assert result.score <= result.level / 2
    assert result.conditions == (result.restricted.lower > 0.0)
    if result.conditions:
        assert result.holds
    if result.support_condition:
        assert result.support_recovered


def test_the_numbers_are_those_of_the_theorem():
    design, target, truth = regression(0, "plain", 0.01)
    result = recovery_bound(design, target, truth)
    scale = np.sqrt(np.mean(design**2, axis=0))
    unit, off = design / scale, scale * (result.estimate - truth)
    score = np.abs(unit.T @ (target - design @ truth)).max() / len(target)
    kappa = result.restricted.lower
    assert result.score == pytest.approx(score)
    assert result.level == pytest.approx(2 * score)
    assert result.error == pytest.approx(np.linalg.norm(off))
    assert result.bound == pytest.approx(4 * np.sqrt(2) * 2 * score / kappa)
    assert result.prediction_error == pytest.approx(np.mean((design @ (result.estimate - truth)) ** 2))
    assert result.prediction_bound == pytest.approx(16 * 2 * (2 * score) ** 2 / kappa)
    assert result.smallest == pytest.approx(np.abs(scale * truth)[truth != 0].min())
    assert result.conditions
    assert result.support_condition
    assert result.support_recovered


@pytest.mark.parametrize("kind", ["plain", "correlated", "powers", "short of rows"])
@pytest.mark.parametrize("noise", [1e-9, 0.1])
def test_the_estimate_meets_the_optimality_conditions_of_the_lasso(kind, noise):
    design, target, truth = regression(1, kind, noise)
    result = recovery_bound(design, target, truth)
    unit = design / result.scale
    slope = unit.T @ (target - design @ result.estimate) / len(target) / result.level
    active = result.estimate != 0
    assert np.abs(slope).max() <= 1 + 1e-5
    assert slope[active] == pytest.approx(np.sign(result.estimate[active]), abs=1e-5)
    assert abs(result.gap) <= 1e-6


def test_units_of_the_columns_do_not_matter():
    design, target, truth = regression(2, "correlated", 0.1)
    units = 10.0 ** np.array([-6, 3, 0, 5, -2])
    first, second = recovery_bound(design, target, truth), recovery_bound(design * units, target, truth / units)
    for name in ("score", "level", "error", "bound", "prediction_error", "prediction_bound", "smallest"):
        assert getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-6), name
    assert second.estimate * units == pytest.approx(first.estimate, rel=1e-6)


def test_a_penalty_below_the_score_breaks_the_condition_but_is_still_reported():
    design, target, truth = regression(3, "plain", 0.5)
    oracle = recovery_bound(design, target, truth)
    result = recovery_bound(design, target, truth, level=oracle.level / 2)
    assert result.level == oracle.level / 2
    assert not result.conditions
    assert not result.support_condition
    assert result.bound == pytest.approx(oracle.bound / 2)


def test_a_penalty_that_leaves_no_term_gives_no_term():
    design, target, truth = regression(3, "correlated", 0.5)
    result = recovery_bound(design, target, truth, level=1e3)
    assert not result.estimate.any()
    assert result.error == pytest.approx(np.linalg.norm(result.scale * truth))
    assert result.holds
    assert not result.support_recovered


def test_a_copied_column_makes_the_bound_infinite():
    design, target, truth = regression(4, "plain", 0.1)
    copied = np.column_stack([design, design[:, np.flatnonzero(truth)[0]]])
    result = recovery_bound(copied, target, np.append(truth, 0.0))
    assert not result.conditions
    assert result.bound == result.prediction_bound == np.inf


def test_a_support_condition_that_fails_is_said():
    design, target, truth = regression(5, "plain", 3.0)
    result = recovery_bound(design, target, truth)
    assert result.conditions
    assert not result.support_condition


def test_the_penalty_holds_the_score_as_often_as_it_promises():
    rng = np.random.default_rng(6)
    design = rng.normal(size=(60, 8))
    unit = design / np.sqrt(np.mean(design**2, axis=0))
    failure, draws = 0.2, 2000
    level = penalty(60, 8, noise=0.7, failure=failure)
    scores = np.abs(unit.T @ (0.7 * rng.normal(size=(60, draws))) / 60).max(axis=0)
    missed = np.mean(scores > level / 2)
    assert missed <= failure + 3 * np.sqrt(failure * (1 - failure) / draws)
    assert missed > 0.0, "a penalty that never fails is larger than the theorem's"


def test_the_penalty_adds_up():
    plain = penalty(100, 12, noise=0.5, failure=0.05)
    assert plain == pytest.approx(2 * 0.5 * np.sqrt(2 * np.log(480) / 100))
    assert penalty(100, 12, noise=0.5, failure=0.05, perturbation=0.3) == pytest.approx(plain + 0.6)
    assert penalty(100, 12, noise=0.5, failure=0.05, largest=2.0) == pytest.approx(2 * plain)


# A mass on a spring with a drag: H = p²/2m + k q²/2, with two more candidate terms, q³ and q p.
TRUTH = np.array([0.5, 2.0, 0.0, 0.0])
TRUE = Structure(flow=np.array([[0.0, 1.0], [-1.0, -0.3]]), port=np.array([[0.0], [1.0]]))
OFF = Structure(flow=np.array([[0.0, 1.0], [-1.0, -0.4]]), port=np.array([[0.0], [1.1]]))


def gradients(z: np.ndarray) -> np.ndarray:
    q, p = z.T
    zero = np.zeros_like(q)
    return np.stack([np.stack([zero, q, 3 * q**2, p], 1), np.stack([2 * p, zero, zero, q], 1)], 1)


def velocity(z: np.ndarray, a: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return gradients(z) @ truth @ TRUE.flow.T + a @ TRUE.port.T


def samples(*, state_noise: float = 0.0, rate_noise: float = 0.0, foreign: float = 0.0) -> ModeSamples:
    """Samples of the mass, a share of them from a mode whose spring is five times as stiff."""
    rng = np.random.default_rng(0)
    z, a = rng.normal(size=(200, 2)), rng.normal(size=(200, 1))
    other = rng.uniform(size=(200, 1)) < foreign
    rates = np.where(other, velocity(z, a, TRUTH * [1, 5, 1, 1]), velocity(z, a, TRUTH))
    return ModeSamples(
        states=z + state_noise * rng.normal(size=z.shape),
        rates=rates + rate_noise * rng.normal(size=z.shape),
        inputs=a,
        true_states=z,
        true_rates=rates,
    )


def test_the_four_parts_sum_to_the_residual():
    mixed = samples(state_noise=0.1, rate_noise=0.2, foreign=0.1)
    residual = residual_parts(mixed, gradients, TRUTH, estimated=OFF, true=TRUE)
    zeta = residual.target - residual.design @ TRUTH
    total = residual.filtering + residual.derivative + residual.mode + residual.structure
    assert total == pytest.approx(zeta, abs=1e-13)
    parts = score_parts(residual)
    assert parts.score == pytest.approx(recovery_bound(residual.design, residual.target, TRUTH).score)
    assert min(parts) > 0.0
    assert sum(parts[:4]) >= parts.score


@pytest.mark.parametrize(
    ("cause", "spoilt", "structure"),
    [
        ("filtering", {"state_noise": 0.1}, TRUE),
        ("derivative", {"rate_noise": 0.1}, TRUE),
        ("mode", {"foreign": 0.1}, TRUE),
        ("structure", {}, OFF),
    ],
)
def test_one_cause_is_put_on_its_own_account(cause, spoilt, structure):
    parts = score_parts(residual_parts(samples(**spoilt), gradients, TRUTH, estimated=structure, true=TRUE))
    assert getattr(parts, cause) == pytest.approx(parts.score)
    assert parts.score > 1e-3
    others = [value for name, value in parts._asdict().items() if name not in (cause, "score")]
    assert others == pytest.approx([0.0, 0.0, 0.0], abs=1e-14)


def test_the_penalty_of_the_measured_parts_satisfies_the_score_condition():
    residual = residual_parts(
        samples(state_noise=0.05, rate_noise=0.1, foreign=0.02), gradients, TRUTH, estimated=OFF, true=TRUE
    )
    rows, columns = residual.design.shape
    level = penalty(rows, columns, noise=0.0, failure=0.05, perturbation=sum(score_parts(residual)[:4]))
    result = recovery_bound(residual.design, residual.target, TRUTH, level=level)
    assert result.conditions
    assert result.holds


GOOD = regression(0, "plain", 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"design": np.zeros((40, 5))}, r"columns \[0, 1, 2, 3, 4\].*zero"),
        ({"design": np.full((40, 5), np.inf)}, "not finite"),
        ({"target": GOOD[1][:3]}, "shapes"),
        ({"truth": np.zeros(5)}, "support"),
        ({"level": 0.0}, "penalty is 0.0"),
    ],
)
def test_a_regression_the_theorem_does_not_speak_of_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        recovery_bound(**({"design": GOOD[0], "target": GOOD[1], "truth": GOOD[2]} | change))


def test_samples_that_do_not_match_are_refused():
    short = samples()._replace(true_rates=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="same samples"):
        residual_parts(short, gradients, TRUTH, estimated=TRUE, true=TRUE)


@pytest.mark.parametrize("change", [{"failure": 1.0}, {"noise": -1.0}, {"rows": 0}])
def test_a_penalty_without_meaning_is_refused(change):
    with pytest.raises(ValueError, match="expected counts"):
        penalty(**({"rows": 10, "columns": 3, "noise": 1.0, "failure": 0.1} | change))
