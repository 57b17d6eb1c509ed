"""True values of one filter step, by summing its integrals on a grid: what a certificate must not fall below.

The law of (mode, z) before an observation is P = Σ_s π_s N(μ_s, Σ_s), the guide Q = Σ_s κ_s N(m_s, S_s), the
emission g(z) = N(o; C z + c, R), and the target Π = g P / Z. Densities are of the pair (s, z), so every integral
is a sum over modes of an integral over z; z has one or two coordinates. The sum over an even grid is the
trapezoid rule, whose error on Gaussian-like integrands vanishes faster than any power of the spacing. Closed
forms only place the grid; values come from the densities themselves.
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


def _log_grid_sum(log_integrand, centre, factor, reach, spacing):
    """The log of the grid sum over `z = centre + factor x`, each |x_i| ≤ reach."""
    axis = np.arange(-np.ceil(reach / spacing), np.ceil(reach / spacing) + 1) * spacing
    d = len(centre)
    if len(axis) ** d > _MOST_POINTS:
        raise ValueError(
            f"the integral needs {len(axis)}^{d} grid points and at most {_MOST_POINTS} are allowed: "
            "give fewer coordinates, or scales closer to each other"
        )
    x = np.stack(np.meshgrid(*[axis] * d), axis=-1).reshape(-1, d)
    log_cell = d * np.log(spacing) + np.linalg.slogdet(factor)[1]
    return logsumexp(log_integrand(centre + x @ factor.T)) + log_cell


def _log_integral(log_integrand, window: _Quadratic, reach=10.0, spacing=0.5):
    """The log integral of what fits in `reach` deviations of the window, refined until it settles."""
    cov = np.linalg.inv(window.precision)
    place = cov @ window.shift, np.linalg.cholesky(cov), reach
    coarse, change = _log_grid_sum(log_integrand, *place, spacing), np.inf
    while change > _SETTLED:
        spacing /= 2
        fine = _log_grid_sum(log_integrand, *place, spacing)
        coarse, change = fine, abs(fine - coarse)
    return coarse


def _live(law: Mixture) -> np.ndarray:
    """The modes of positive probability."""
    return np.flatnonzero(law.prob)


def _log_power_moment(law: Mixture, emission: Emission, power: int):
    """`log E_P[g^power]`."""

    def term(s):
        window = _component(law, s) + power * _likelihood(emission)
        return _log_integral(lambda z: _log_prior(law, s, z) + power * _log_likelihood(emission, z), window)

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
    windows = {
        s: 2 * (_component(law, s) + _likelihood(emission)) + -1 * _component(guide, s) for s in _live(law)
    }
    narrow = any(np.linalg.eigvalsh(window.precision).min() <= 0 for window in windows.values())
    if narrow or (guide.prob[_live(law)] == 0).any():
        return np.inf
    log_z = log_evidence(law, emission)

    def term(s):
        def log_integrand(z):
            return 2 * _log_target(law, emission, log_z, s, z) - _log_prior(guide, s, z)

        return _log_integral(log_integrand, windows[s])

    return float(logsumexp([term(s) for s in windows]))


def _log_mixed(law: Mixture, guide: Mixture, lam: float, s: int, z):
    """`log` of the density of (s, z) under `Q_λ = (1−λ) Q + λ P`."""
    log_wide = np.log(lam) + _log_prior(law, s, z)
    if lam == 1 or guide.prob[s] == 0:
        return log_wide
    return np.logaddexp(np.log1p(-lam) + _log_prior(guide, s, z), log_wide)


def _finest_scale(guide: Mixture, s: int, window: _Quadratic) -> float:
    """The guide's smallest deviation in units of the window's, at most 1: a dip that a grid could miss."""
    root = np.linalg.cholesky(window.precision)
    return min(1.0, np.sqrt(np.linalg.eigvalsh(root.T @ guide.cov[s] @ root).min()))


def log_mixture_moment(lam: float, law: Mixture, guide: Mixture, emission: Emission) -> float:
    """`log(1 + χ²(Π ‖ Q_λ))` with `Q_λ = (1−λ) Q + λ P`, over (mode, z): what certificates bound."""
    if lam == 0:
        return log_guide_moment(law, guide, emission)
    log_z = log_evidence(law, emission)
    # The integrand lies under Π² / (λ P), a Gaussian whose total is ρ/λ, and the moment is at least 1: the share
    # cut off is of the order e⁻³⁶.
    reach = np.sqrt(2 * (log_rho(law, emission) - np.log(lam) + 36))

    def term(s):
        def log_integrand(z):
            return 2 * _log_target(law, emission, log_z, s, z) - _log_mixed(law, guide, lam, s, z)

        window = _component(law, s) + 2 * _likelihood(emission)
        return _log_integral(log_integrand, window, reach, _finest_scale(guide, s, window) / 2)

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
