from itertools import product

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.optimize import minimize

from vhydro.laws import restricted
from vhydro.laws.restricted import restricted_eigenvalue


def gram(design: np.ndarray) -> np.ndarray:
    unit = design / np.sqrt(np.mean(design**2, axis=0))
    return unit.T @ unit / len(unit)


def random_gram(rng: np.random.Generator, columns: int, kind: str) -> np.ndarray:
    rows = rng.normal(size=(50, columns))
    match kind:
        case "correlated":
            rows += 3.0 * rng.normal(size=(50, 1))
        case "short of rows":
            rows = rows[: columns - 1]
        case "powers":
            rows = rng.uniform(0.2, 1.0, (50, 1)) ** np.arange(1, columns + 1)
    matrix = gram(rows)
    if kind == "unequal":  # columns of unlike size: the minimiser leaves some of them at 0
        size = rng.uniform(0.5, 2.0, columns)
        return matrix * np.outer(size, size)
    return matrix


def into_cone(x: np.ndarray, support: list[int], cone: float = 3.0) -> np.ndarray:
    """x with what lies off the support shrunk until it is in the cone; every direction of the cone is its own image."""
    off = np.setdiff1d(np.arange(x.shape[-1]), support)
    reach = cone * np.abs(x[..., support]).sum(-1, keepdims=True)
    out = x.copy()
    out[..., off] *= np.minimum(1.0, reach / np.maximum(np.abs(x[..., off]).sum(-1, keepdims=True), 1e-300))
    return out / np.linalg.norm(out, axis=-1, keepdims=True)


def energy(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("...i,ij,...j->...", x, matrix, x)


def every_face(matrix: np.ndarray, support: list[int], cone: float = 3.0) -> float:
    """κ with nothing left out: every sign and zero pattern, slack and tight, every eigenvector that fits it."""
    columns, best = len(matrix), np.inf
    width = np.where(np.isin(np.arange(columns), support), -cone, 1.0)
    for signs in product((-1, 0, 1), repeat=columns):
        live = np.flatnonzero(signs)
        if not len(live):
            continue
        normal = (width * signs)[live]
        for basis in (np.eye(len(live)), null_space(normal[None])):
            if not basis.shape[1]:
                continue
            values, vectors = np.linalg.eigh(basis.T @ matrix[np.ix_(live, live)] @ basis)
            vectors = basis @ vectors
            fits = (vectors * np.array(signs)[live, None] > 0.0).all(axis=0) & (normal @ vectors < 1e-12)
            best = min([best, *values[fits]])
    return best


KINDS = ("plain", "unequal", "correlated", "short of rows", "powers")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("columns", "size"), [(3, 1), (4, 2), (5, 1), (6, 2)])
def test_nothing_is_missed_by_trying_only_lowest_eigenvectors(kind, columns, size):
    rng = np.random.default_rng(columns)
    for _ in range(3 if columns < 6 else 1):
        matrix = random_gram(rng, columns, kind)
        support = rng.permutation(columns)[:size].tolist()
        found = restricted_eigenvalue(matrix, support)
        assert found.exact
        assert found.value == pytest.approx(every_face(matrix, support), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("columns", "size"), [(4, 1), (5, 2), (5, 3)])
def test_the_walk_over_all_faces_needs_no_first_guess(kind, columns, size, monkeypatch):
    """What is found first only prunes: from no value at all the answer is the same."""
    rng = np.random.default_rng(columns + size)
    monkeypatch.setattr(restricted, "_shrunk", lambda cone, _: restricted._Best(np.inf, np.zeros(columns)))
    monkeypatch.setattr(restricted, "WIDTH", 0)
    monkeypatch.setattr(restricted, "_relaxation", lambda cone: (0.0, np.zeros((0, columns))))
    for _ in range(5):
        matrix, support = random_gram(rng, columns, kind), rng.permutation(columns)[:size].tolist()
        found = restricted_eigenvalue(matrix, support)
        assert found.value == pytest.approx(every_face(matrix, support), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_no_direction_of_the_cone_is_lower_and_a_search_comes_close(kind):
    rng = np.random.default_rng(7)
    matrix, support = random_gram(rng, 5, kind), [1, 3]
    found = restricted_eigenvalue(matrix, support)
    tried = into_cone(rng.normal(size=(20_000, 5)), support)
    energies = energy(matrix, tried)
    starts = tried[np.argsort(energies)[:5]]
    descents = [
        minimize(lambda x: energy(matrix, into_cone(x, support)), start, method="Nelder-Mead", options={"xatol": 1e-9})
        for start in starts
    ]
    lowest = min(float(d.fun) for d in descents)
    assert found.lower <= energies.min()
    assert found.lower - 1e-15 <= lowest <= found.value * 1.01 + 1e-10


@pytest.mark.parametrize(("columns", "size"), [(1, 1), (4, 2), (6, 6), (12, 3), (30, 2)])
def test_orthonormal_columns_have_1(columns, size):
    found = restricted_eigenvalue(np.eye(columns), list(range(size)))
    assert found.value == pytest.approx(1.0)
    assert found.lower == pytest.approx(1.0)


@pytest.mark.parametrize("cone", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("product", [-0.1, 0.0, 0.2])
def test_two_columns_by_hand(cone, product):
    first, second = 4.0, 0.5  # the lowest eigenvector is nearly the second axis, outside the cone: (1, ±c) is lowest
    found = restricted_eigenvalue(np.array([[first, product], [product, second]]), [0], cone=cone)
    assert found.value == pytest.approx((first + cone**2 * second - 2 * cone * abs(product)) / (1 + cone**2))


def test_a_lowest_eigenvector_inside_the_cone_is_the_answer():
    assert restricted_eigenvalue(np.array([[1.0, 0.7], [0.7, 1.0]]), [0]).value == pytest.approx(0.3)


def test_a_copy_of_a_supported_column_leaves_nothing():
    design = np.random.default_rng(0).normal(size=(30, 4))
    matrix = gram(np.column_stack([design, design[:, 0]]))
    for support in ([0], [0, 2], [2, 4]):
        found = restricted_eigenvalue(matrix, support)
        assert found.value == pytest.approx(0.0, abs=1e-14)
        assert found.lower == 0.0


def test_a_copy_among_the_other_columns_costs_only_as_far_as_the_cone_reaches():
    matrix = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    # Δ = (1, t, −t) with 2 t ≤ 3 has 1 / (1 + 2 t²)
    assert restricted_eigenvalue(matrix, [0]).value == pytest.approx(1.0 / 5.5)


@pytest.mark.parametrize(("support", "low"), [([0, 1, 2], -1.0), ([2, 5, 9], 0.0)])
def test_twelve_powers_of_one_coordinate_are_solved_exactly(support, low):
    """Monomials on a short interval: the near-collinear library on which pruning helps least."""
    rng = np.random.default_rng(1)
    matrix = gram(np.linspace(low, 1.0, 200)[:, None] ** np.arange(1, 13))
    found = restricted_eigenvalue(matrix, support)
    assert found.exact
    assert np.allclose(into_cone(found.direction, support), found.direction, atol=1e-12)
    assert energy(matrix, found.direction) == pytest.approx(found.value, abs=1e-14)
    tried = into_cone(found.direction + np.logspace(-6, 0, 20_000)[:, None] * rng.normal(size=(20_000, 12)), support)
    assert found.lower <= energy(matrix, tried).min()


def test_units_and_order_of_columns_change_nothing_else():
    rng = np.random.default_rng(3)
    matrix, order = random_gram(rng, 7, "correlated"), rng.permutation(7)
    found = restricted_eigenvalue(matrix, [2, 4])
    scaled = restricted_eigenvalue(1e6 * matrix, [2, 4])
    moved = restricted_eigenvalue(matrix[np.ix_(order, order)], np.flatnonzero(np.isin(order, [2, 4])).tolist())
    assert found.value > np.linalg.eigvalsh(matrix)[0] * 1.01, "the case must not be the easy one"
    assert scaled.value == pytest.approx(1e6 * found.value)
    assert moved.value == pytest.approx(found.value)


def test_a_support_of_every_column_has_the_smallest_eigenvalue():
    matrix = random_gram(np.random.default_rng(4), 6, "correlated")
    assert restricted_eigenvalue(matrix, list(range(6))).value == pytest.approx(np.linalg.eigvalsh(matrix)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_library_is_bracketed(kind, monkeypatch):
    rng = np.random.default_rng(5)
    matrices = [random_gram(rng, 7, kind) for _ in range(5)]
    exact = [restricted_eigenvalue(matrix, [0, 3]) for matrix in matrices]
    monkeypatch.setattr(restricted, "MOST_FACES", 0)
    for matrix, truth in zip(matrices, exact, strict=True):
        found = restricted_eigenvalue(matrix, [0, 3])
        assert found.exact == (np.linalg.eigvalsh(matrix)[0] == pytest.approx(truth.value, rel=1e-9, abs=1e-14))
        assert found.lower <= truth.value
        assert truth.lower <= found.value


def test_the_bound_of_a_large_library_is_above_the_smallest_eigenvalue():
    found = restricted_eigenvalue(gram(np.linspace(-1.0, 1.0, 200)[:, None] ** np.arange(1, 16)), [3])
    assert not found.exact
    assert 1e-6 < found.lower < found.value < 1e-4


@pytest.mark.parametrize(
    ("matrix", "support", "cone", "message"),
    [
        (np.ones((2, 3)), [0], 3.0, "shape"),
        (np.full((2, 2), np.nan), [0], 3.0, "finite"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), [0], 3.0, "symmetric"),
        (np.diag([1.0, -1.0]), [0], 3.0, "negative"),
        (np.eye(2), [], 3.0, "support"),
        (np.eye(2), [0, 0], 3.0, "distinct"),
        (np.eye(2), [2], 3.0, "0 … 1"),
        (np.eye(2), [0], 0.0, "cone"),
    ],
)
def test_what_is_no_gram_matrix_or_support_is_refused(matrix, support, cone, message):
    with pytest.raises(ValueError, match=message):
        restricted_eigenvalue(matrix, support, cone=cone)
