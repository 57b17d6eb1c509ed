"""The restricted eigenvalue of a Gram matrix: how well a sparse regression is posed near its true support.

κ is the minimum of ΔᵀQΔ over unit Δ with ‖Δ_off‖₁ ≤ c ‖Δ_on‖₁, where `on` is the support and `off` the rest.

Why walking over faces finds it. A sign σ for every supported coordinate gives a convex cone
`K_σ = {‖Δ_off‖₁ ≤ c σᵀΔ_on}`; since σᵀΔ_on ≤ ‖Δ_on‖₁ with equality for the signs of Δ, the cone is their union, and
Δ → −Δ leaves half of them. The boundary of K_σ is `sᵀΔ_off = c σᵀΔ_on` with `s_j Δ_j ≥ 0`, for every s in {−1, 1}: a
hyperplane cut with an orthant. Its faces set some of the `off` coordinates to 0: a face is a row of signs with zeros.
1. A minimiser Δ lies inside the cone or in the relative interior of one face, an open part of a linear subspace. A
   Rayleigh quotient has no local minimum on a subspace but its smallest eigenvalue: moving from Δ towards a lowest
   eigenvector w (or −w, whichever has Δᵀw ≥ 0) lowers it all the way. So κ is λ_min(Q) or λ_min(Q | face's subspace),
   and higher eigenvectors need not be tried.
2. If the lowest eigenvector w found for a face has its signs (or −w has), the minimum over the face and over all its
   subfaces is that eigenvalue. If not, the path of step 1 from a minimiser towards w never rises and leaves the face
   through a subface, so the minimum over the face is the minimum over its subfaces. This also settles repeated
   eigenvalues, and it settles rounding: whichever w is returned, no more than rounding is lost.
3. A face's eigenvalue is at most its subfaces'. One that is not below the best value found is left, with all of them.
   A face of z zeros lies in 2z faces of one zero less, and is looked at only if none of them was settled.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

MOST_FACES = 250_000  # about a second; every support of 12 columns has fewer
WIDTH = 32  # faces kept at every step of the first walk, which only looks for a good value to prune with


class RestrictedEigenvalue(NamedTuple):
    """κ over the cone: `value` is attained by `direction`, and no direction of the cone has less than `lower`."""

    value: float
    lower: float  # never negative; 0 where κ cannot be told from 0 in double precision
    exact: bool  # whether the two differ by rounding alone
    direction: np.ndarray  # (columns,), of unit length


class _Cone(NamedTuple):
    gram: np.ndarray  # (columns, columns)
    on: np.ndarray  # (columns,): the support
    width: float  # c
    rounding: float  # of an eigenvalue of the Gram matrix


class _Best(NamedTuple):
    value: float
    direction: np.ndarray


def restricted_eigenvalue(gram: np.ndarray, support: Sequence[int], *, cone: float = 3.0) -> RestrictedEigenvalue:
    """The smallest ΔᵀQΔ over unit Δ with ‖Δ_off‖₁ ≤ cone · ‖Δ_on‖₁, for Q = `gram` = AᵀA/n and on = `support`.

    Exact when a lowest eigenvector lies in the cone, or the cone has at most `MOST_FACES` faces. Otherwise `value` is
    the best of a narrow walk and `lower` comes from a quadratic relaxation. Paper: Thm 3, Eq. (score_rsc).
    """
    _refuse(gram, support, cone)
    eigenvalues, vectors = np.linalg.eigh(gram)
    on = np.isin(np.arange(len(gram)), list(support))
    problem = _Cone(gram, on, cone, float(_rounding(len(gram), eigenvalues[-1])))
    lowest = _Best(float(eigenvalues[0]), vectors[:, 0])
    if _inside(problem, lowest.direction):
        return _exact(problem, lowest)
    lower, directions = _relaxation(problem)
    directions = np.concatenate([directions, vectors.T])
    signs = np.where(directions < 0.0, -1, 1).astype(np.int8)
    best = _walk(problem, np.unique(signs, axis=0), _shrunk(problem, directions), width=WIDTH)
    if 2 ** (int(on.sum()) - 1) * 3 ** int((~on).sum()) <= MOST_FACES:
        return _exact(problem, _walk(problem, _all_signs(on), best))
    lower = max(lower, lowest.value - problem.rounding, 0.0)
    return RestrictedEigenvalue(max(best.value, 0.0), lower, False, best.direction)


def _exact(cone: _Cone, best: _Best) -> RestrictedEigenvalue:
    lower = max(best.value - 2.0 * cone.rounding, 0.0)
    return RestrictedEigenvalue(max(best.value, 0.0), lower, True, best.direction)


def _inside(cone: _Cone, direction: np.ndarray) -> bool:
    return bool(np.abs(direction[~cone.on]).sum() <= cone.width * np.abs(direction[cone.on]).sum())


def _shrunk(cone: _Cone, directions: np.ndarray) -> _Best:
    """The lowest of the directions (any, columns) after what is off the support is shrunk into the cone."""
    reach = cone.width * np.abs(directions[:, cone.on]).sum(1)
    # A direction off the support alone has no image; that of the largest τ is on it alone, so some always remain.
    directions, reach = directions[reach > 1e-9], reach[reach > 1e-9]
    excess = np.abs(directions[:, ~cone.on]).sum(1) / reach
    shrunk = np.where(cone.on, directions, directions / np.maximum(excess, 1.0)[:, None])
    shrunk /= np.linalg.norm(shrunk, axis=1, keepdims=True)
    values = np.einsum("ni,ij,nj->n", shrunk, cone.gram, shrunk)
    return _Best(float(values.min()), shrunk[values.argmin()])


def _all_signs(on: np.ndarray) -> np.ndarray:
    """Every row of signs (faces, columns), one of each pair that differs only by the sign of the whole row."""
    rows = np.array(list(product((1, -1), repeat=len(on) - 1)), np.int8).reshape(-1, len(on) - 1)
    return np.insert(rows, int(np.argmax(on)), 1, axis=1)


def _walk(cone: _Cone, faces: np.ndarray, best: _Best, width: int | None = None) -> _Best:
    """The lowest direction on these faces and their subfaces, or `best`; with a `width`, of the most promising only."""
    while len(faces) and np.count_nonzero(faces[0]) > 1:
        values, vectors = _lowest(cone, faces)
        agreement = np.where(cone.on, 0.0, faces * vectors)
        # How much of w, and of −w, has the wrong sign: 0 for one of the two puts the eigenvector on the face.
        astray = np.minimum(np.maximum(agreement, 0.0).sum(1), np.maximum(-agreement, 0.0).sum(1))
        on_face = astray == 0.0
        first = int(np.argmin(np.where(on_face, values, np.inf)))
        if on_face[first] and values[first] < best.value:
            best = _Best(float(values[first]), vectors[first])
        open_faces = np.flatnonzero(~on_face & (values < best.value - cone.rounding))
        kept = faces[open_faces[np.argsort(astray[open_faces])[:width]]]
        parents = 2 * (1 + int(np.count_nonzero(faces[0] == 0))) if width is None else 1
        faces = _subfaces(kept, cone.on, parents)
    return best


def _lowest(cone: _Cone, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest eigenvalue (faces,) and its vector (faces, columns) on the subspace of every face."""
    size = int(np.count_nonzero(faces[0]))  # the same on every face of one walk's step
    columns = np.nonzero(faces)[1].reshape(-1, size)
    normal = np.take_along_axis(np.where(cone.on, -cone.width * faces, faces), columns, axis=1)
    # A reflection that takes the face's normal to the first axis: its other columns span the face's subspace.
    mirror = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    mirror[:, 0] += np.where(mirror[:, 0] < 0.0, -1.0, 1.0)
    mirror /= np.linalg.norm(mirror, axis=1, keepdims=True)
    basis = np.eye(size)[:, 1:] - 2.0 * mirror[:, :, None] * mirror[:, None, 1:]
    gram = cone.gram[columns[:, :, None], columns[:, None, :]]
    values, vectors = np.linalg.eigh(basis.transpose(0, 2, 1) @ gram @ basis)
    directions = np.zeros(faces.shape)
    np.put_along_axis(directions, columns, (basis @ vectors[:, :, :1])[:, :, 0], axis=1)
    return values[:, 0], directions


def _subfaces(faces: np.ndarray, on: np.ndarray, parents: int) -> np.ndarray:
    """Every face with one more coordinate off the support at 0, once each, if at least so many of `faces` hold it."""
    parent, column = np.nonzero(~on & (faces != 0))
    children = faces[parent]
    children[np.arange(len(column)), column] = 0
    rows = np.ascontiguousarray(children).view(np.dtype((np.void, children.shape[1])))
    _, first, count = np.unique(rows, return_index=True, return_counts=True)
    return children[first[count >= parents]]


def _relaxation(cone: _Cone) -> tuple[float, np.ndarray]:
    """A proven lower bound, λ_min(Q + τ(I_off − c²k I_on)) for the best of a hundred τ ≥ 0, and each τ's direction.

    In the cone ‖Δ_off‖₂ ≤ ‖Δ_off‖₁ ≤ c ‖Δ_on‖₁ ≤ c √k ‖Δ_on‖₂, so what is added is never positive there.
    """
    weight = np.where(cone.on, -(cone.width**2) * cone.on.sum(), 1.0)
    multipliers = np.trace(cone.gram) / np.abs(weight).max() * np.logspace(-16.0, 0.0, 100)
    eigenvalues, vectors = np.linalg.eigh(cone.gram + multipliers[:, None, None] * np.diag(weight))
    sizes = np.abs(eigenvalues).max(axis=1)
    return float(np.max(eigenvalues[:, 0] - _rounding(len(weight), sizes))), vectors[:, :, 0]


def _rounding(columns: int, size):
    """How far an eigenvalue of a matrix of this spectral norm can be off."""
    return 4.0 * columns * np.finfo(float).eps * size


def _refuse(gram: np.ndarray, support: Sequence[int], cone: float) -> None:
    columns = len(gram)
    if gram.shape != (columns, columns) or not np.isfinite(gram).all():
        raise ValueError(f"the Gram matrix has shape {gram.shape} or entries that are not finite; expected AᵀA/n.")
    eigenvalues = np.linalg.eigvalsh(gram)
    slack = 100.0 * columns * np.finfo(float).eps * np.abs(eigenvalues).max()
    if np.abs(gram - gram.T).max() > slack or eigenvalues[0] < -slack:
        raise ValueError(
            f"the Gram matrix is not symmetric, or its smallest eigenvalue {eigenvalues[0]:.3g} is negative; "
            "expected AᵀA/n of a design A."
        )
    if not support or len(set(support)) != len(support) or not set(support) <= set(range(columns)):
        raise ValueError(f"the support is {list(support)}; expected one or more distinct columns of 0 … {columns - 1}.")
    if not (np.isfinite(cone) and cone > 0.0):
        raise ValueError(f"cone is {cone}; expected a positive number, 3 in the theorem.")
