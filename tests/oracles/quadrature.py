"""True values of one filter step, by summing its integrals on a grid: what a certificate must not fall below.

The law of (mode, z) before an observation is P = Σ_s π_s N(μ_s, Σ_s), the guide Q = Σ_s κ_s N(m_s, S_s), the
emission g(z) = N(o; C z + c, R), and the target Π = g P / Z. Densities are of the pair (s, z), so every
integral is a sum over modes of an integral over z; z has one or two coordinates. The sum over an even grid is
the trapezoid rule, whose error on Gaussian-like integrands vanishes faster than any power of the spacing.
Closed forms only place the grid; values come from the densities themselves.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

_MOST_POINTS = 4_000_000
_SETTLED = 1e-10  # of the log of an integral, between one spacing and half of it


class Mixture(NamedTuple):
    """A law of (mode, z), Gaussian in z within each mode."""

    prob: np.ndarray  # (M,)
    mean: np.ndarray  # (M, d)
    cov: np.ndarray  # (M, d, d)


class Emission(NamedTuple):
    """An observation and the sensor that made it; a NaN entry of `o` is hidden."""

    C: np.ndarray  # (channels, d)
    c: np.ndarray  # (channels,)
    R: np.ndarray  # (channels, channels)
    o: np.ndarray  # (channels,)


@dataclass(frozen=True)
class _Quadratic:
    """An unnormalised Gaussian, `exp(−½ zᵀ precision z + zᵀ shift)`: says where an integrand lives."""

    precision: np.ndarray
    shift: np.ndarray

    def __add__(self, other):
        return _Quadratic(self.precision + other.precision, self.shift + other.shift)

    def __rmul__(self, power):
        return _Quadratic(power * self.precision, power * self.shift)


def _log_normal(z, mean, cov):
    """The log density at every row of z; 0 for a Gaussian of no coordinates."""
    white = np.linalg.solve(np.linalg.cholesky(cov), (z - mean).T)
    return -0.5 * ((white**2).sum(0) + np.linalg.slogdet(2 * np.pi * cov)[1])


def _log_prior(law: Mixture, s: int, z):
    """`log` of the density of (s, z) at every row of z."""
    return np.log(law.prob[s]) + _log_normal(z, law.mean[s], law.cov[s])


def _observed(emission: Emission) -> Emission:
    seen = ~np.isnan(emission.o)
    C, c, R, o = emission
    return Emission(C[seen], c[seen], R[np.ix_(seen, seen)], o[seen])


def _log_likelihood(emission: Emission, z):
    C, c, R, o = _observed(emission)
    return _log_normal(z @ C.T + c, o, R)


def _component(law: Mixture, s: int) -> _Quadratic:
    precision = np.linalg.inv(law.cov[s])
    return _Quadratic(precision, precision @ law.mean[s])


def _likelihood(emission: Emission) -> _Quadratic:
    C, c, R, o = _observed(emission)
    weight = np.linalg.solve(R, C).T
    return _Quadratic(weight @ C, weight @ (o - c))


def _even_axis(reach: float, spacing: float):
    """Points of even spacing out to ±reach, and the log length of each one's cell."""
    count = np.ceil(reach / spacing)
    x = np.arange(-count, count + 1) * spacing
    return x, np.full_like(x, np.log(spacing))


def _graded_axis(scale: float, reach: float, spacing: float):
    """Points `scale · sinh(u)` out to ±reach with u even, and their log cells: dense near 0 only."""
    u, log_cell = _even_axis(np.arcsinh(reach / scale), spacing)
    return scale * np.sinh(u), log_cell + np.log(scale * np.cosh(u))


def _log_grid_sum(log_integrand, origin, frame, axes):
    """The log of the sum over `z = origin + frame x`, x on the product of the axes."""
    size = [len(x) for x, _ in axes]
    if np.prod(size) > _MOST_POINTS:
        raise ValueError(
            f"the integral needs {size} grid points and at most {_MOST_POINTS} in all are allowed: "
            "give fewer coordinates, or scales closer to each other"
        )
    x = np.stack(np.meshgrid(*[x for x, _ in axes]), axis=-1).reshape(-1, len(axes))
    log_cell = sum(np.meshgrid(*[log_cell for _, log_cell in axes])).ravel() + np.linalg.slogdet(frame)[1]
    return logsumexp(log_integrand(origin + x @ frame.T) + log_cell)


def _settled(log_sum, spacing: float):
    """`log_sum` at a spacing so fine that the last halving of it changed nothing that matters."""
    coarse, change = log_sum(spacing), np.inf
    while change > _SETTLED:
        spacing /= 2
        fine = log_sum(spacing)
        coarse, change = fine, abs(fine - coarse)
    return coarse


def _log_gaussian_integral(log_integrand, window: _Quadratic):
    """The log integral of a Gaussian of this shape."""
    d, cov = len(window.shift), np.linalg.inv(window.precision)
    place = cov @ window.shift, np.linalg.cholesky(cov)
    return _settled(lambda spacing: _log_grid_sum(log_integrand, *place, [_even_axis(10.0, spacing)] * d), 0.5)


def _log_dipped_integral(log_integrand, window: _Quadratic, reach: float, mean, cov):
    """The log integral of what lies within `reach` deviations of the window and dips around `N(mean, cov)`.

    The axes are those along which window and dip are both independent, with points gathered around the dip:
    it may be far narrower than the window.
    """
    root = np.linalg.cholesky(window.precision)
    variance, turn = np.linalg.eigh(root.T @ cov @ root)
    frame = np.linalg.solve(root.T, turn)
    centre = turn.T @ root.T @ (np.linalg.solve(window.precision, window.shift) - mean)
    scale, far = np.minimum(1.0, np.sqrt(variance)), np.abs(centre) + reach

    def log_sum(spacing):
        axes = [_graded_axis(*each, spacing) for each in zip(scale, far, strict=True)]
        return _log_grid_sum(log_integrand, mean, frame, axes)

    return _settled(log_sum, 0.25)


def _live(law: Mixture) -> np.ndarray:
    """The modes of positive probability."""
    return np.flatnonzero(law.prob)


def _log_power_moment(law: Mixture, emission: Emission, power: int):
    """`log E_P[g^power]`."""

    def term(s):
        def log_integrand(z):
            return _log_prior(law, s, z) + power * _log_likelihood(emission, z)

        return _log_gaussian_integral(log_integrand, _component(law, s) + power * _likelihood(emission))

    return float(logsumexp([term(s) for s in _live(law)]))


def log_evidence(law: Mixture, emission: Emission) -> float:
    """`log Z`, with `Z = E_P[g]` over the observed channels."""
    return _log_power_moment(law, emission, 1)


def log_rho(law: Mixture, emission: Emission) -> float:
    """`log ρ`, with `ρ = E_P[g²] / Z² = 1 + χ²(Π ‖ P)`."""
    return _log_power_moment(law, emission, 2) - 2 * log_evidence(law, emission)


def _log_target(law: Mixture, emission: Emission, log_z: float, s: int, z):
    """`log` of the density of (s, z) under Π."""
    return _log_prior(law, s, z) + _log_likelihood(emission, z) - log_z


def log_guide_moment(law: Mixture, guide: Mixture, emission: Emission) -> float:
    """`log A`, with `A = E_Q[(dΠ/dQ)²]` over (mode, z).

    Infinite where Q misses a mode of P, or is so narrow that the integral diverges: not `2 S ≻ S*`, with S*
    the posterior covariance of that mode.
    """
    windows = {s: 2 * (_component(law, s) + _likelihood(emission)) + -1 * _component(guide, s) for s in _live(law)}
    narrow = any(np.linalg.eigvalsh(window.precision).min() <= 0 for window in windows.values())
    if narrow or (guide.prob[_live(law)] == 0).any():
        return np.inf
    log_z = log_evidence(law, emission)

    def term(s):
        def log_integrand(z):
            return 2 * _log_target(law, emission, log_z, s, z) - _log_prior(guide, s, z)

        return _log_gaussian_integral(log_integrand, windows[s])

    return float(logsumexp([term(s) for s in windows]))


def _log_mixed(law: Mixture, guide: Mixture, lam: float, s: int, z):
    """`log` of the density of (s, z) under `Q_λ = (1−λ) Q + λ P`."""
    log_wide = np.log(lam) + _log_prior(law, s, z)
    if lam == 1 or guide.prob[s] == 0:
        return log_wide
    return np.logaddexp(np.log1p(-lam) + _log_prior(guide, s, z), log_wide)


def log_mixture_moment(lam: float, law: Mixture, guide: Mixture, emission: Emission) -> float:
    """`log(1 + χ²(Π ‖ Q_λ))` with `Q_λ = (1−λ) Q + λ P`, over (mode, z): what certificates bound."""
    if lam == 0:
        return log_guide_moment(law, guide, emission)
    log_z = log_evidence(law, emission)
    # The integrand lies under Π² / (λ P), a Gaussian whose total is ρ/λ, and the moment is at least 1: what
    # is cut off is a share of the order e⁻³⁶.
    reach = np.sqrt(2 * (log_rho(law, emission) - np.log(lam) + 36))

    def term(s):
        def log_integrand(z):
            return 2 * _log_target(law, emission, log_z, s, z) - _log_mixed(law, guide, lam, s, z)

        window = _component(law, s) + 2 * _likelihood(emission)
        return _log_dipped_integral(log_integrand, window, reach, guide.mean[s], guide.cov[s])

    return float(logsumexp([term(s) for s in _live(law)]))


def evidence(law: Mixture, emission: Emission) -> float:
    """`Z = E_P[g]` over the observed channels."""
    return float(np.exp(log_evidence(law, emission)))


def rho(law: Mixture, emission: Emission) -> float:
    """`ρ = E_P[g²] / Z² = 1 + χ²(Π ‖ P)`."""
    return float(np.exp(log_rho(law, emission)))


def guide_moment(law: Mixture, guide: Mixture, emission: Emission) -> float:
    """`A = E_Q[(dΠ/dQ)²]` over (mode, z), infinite as in `log_guide_moment`."""
    return float(np.exp(log_guide_moment(law, guide, emission)))


def mixture_moment(lam: float, law: Mixture, guide: Mixture, emission: Emission) -> float:
    """`1 + χ²(Π ‖ Q_λ)` with `Q_λ = (1−λ) Q + λ P`, over (mode, z): the truth that certificates bound."""
    return float(np.exp(log_mixture_moment(lam, law, guide, emission)))
