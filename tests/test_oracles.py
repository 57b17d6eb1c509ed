"""The oracles against each other and against slower, plainer sums: nothing here imports the library."""

import itertools

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal, norm

from oracles import linear, quadrature
from oracles.quadrature import Emission, Mixture

CORRELATED = np.array([[0.3, 0.1], [0.1, 0.2]])


def episode(seed, modes, latent, steps, share=0.3):
    """A random system with correlated sensor noise, and observations partly hidden, one row entirely."""
    rng = np.random.default_rng(seed)
    system = linear.random_system(rng, modes, latent, 2)._replace(R=CORRELATED)
    Y = linear.hide(linear.simulate(system, steps, rng)[2], share, rng)
    Y[1] = np.nan
    return system, Y


def along(system, path):
    """The arguments of the Kalman filter that follow one mode path, up to the observations."""
    later = list(path[1:])
    motion = system.F[later], system.f[later], system.Q[later]
    return *motion, system.C, system.c, system.R, system.start_mean[path[0]], system.start_cov[path[0]]


def stacked_posterior(F, f, Q, C, c, R, m0, P0, Y):
    """`log p(Y)` and the mean of all states given Y, from the joint Gaussian of the whole episode."""
    rows, d = len(Y), len(m0)
    drift = np.eye(rows * d)
    for t in range(rows - 1):
        drift[(t + 1) * d : (t + 2) * d, t * d : (t + 1) * d] = -F[t]
    inverse = np.linalg.inv(drift)
    mean, cov = inverse @ np.concatenate([m0, *f]), inverse @ block_diag(P0, *Q) @ inverse.T
    seen = ~np.isnan(Y.ravel())
    sensor = np.kron(np.eye(rows), C)[seen]
    spread = sensor @ cov @ sensor.T + np.kron(np.eye(rows), R)[np.ix_(seen, seen)]
    error = Y.ravel()[seen] - (sensor @ mean + np.tile(c, rows)[seen])
    states = (mean + cov @ sensor.T @ np.linalg.solve(spread, error)).reshape(rows, d)
    return multivariate_normal(cov=spread).logpdf(error), states


def enumerated(system, Y):
    """The evidence, smoothed mode law and smoothed mean, by a plain loop over `itertools.product`."""
    modes, rows = len(system.start_prob), len(Y)
    paths = list(itertools.product(range(modes), repeat=rows))
    log_joint, means = [], []
    for path in paths:
        moves = [system.table[a, b] for a, b in itertools.pairwise(path)]
        log_evidence, states = stacked_posterior(*along(system, path), Y)
        log_joint.append(np.log(system.start_prob[path[0]]) + np.log(moves).sum() + log_evidence)
        means.append(states)
    weight = softmax(log_joint)
    mode = np.einsum("p,ptm->tm", weight, np.eye(modes)[np.array(paths)])
    return logsumexp(log_joint), mode, np.einsum("p,ptd->td", weight, np.array(means))


@pytest.mark.parametrize("latent", [1, 3])
def test_kalman_agrees_with_the_joint_gaussian(latent):
    system, Y = episode(0, 3, latent, 5)
    arguments = along(system, [0, 2, 1, 1, 0, 2])
    filtered = linear.kalman_filtered(*arguments, Y)
    for t in range(len(Y)):
        hidden_later = np.where(np.arange(len(Y))[:, None] > t, np.nan, Y)
        _, states = stacked_posterior(*arguments, hidden_later)
        np.testing.assert_allclose(filtered.mean[t], states[t], atol=1e-10)
    assert filtered.log_evidence == pytest.approx(stacked_posterior(*arguments, Y)[0], abs=1e-10)
    assert linear.kalman_log_evidence(*arguments, Y) == filtered.log_evidence


def test_one_mode_is_the_kalman_filter():
    system, Y = episode(1, 1, 2, 5)
    posterior = linear.switching_posterior(*system, Y)
    fixed = system.F[0], system.f[0], system.Q[0], system.C, system.c, system.R
    filtered = linear.kalman_filtered(*fixed, system.start_mean[0], system.start_cov[0], Y)
    assert posterior.log_evidence == pytest.approx(filtered.log_evidence, abs=1e-10)
    np.testing.assert_allclose(posterior.filtered_mean, filtered.mean, atol=1e-10)
    np.testing.assert_allclose(posterior.filtered_mode, 1.0)


@pytest.mark.parametrize("modes", [2, 3])
def test_switching_agrees_with_the_plain_enumeration(modes):
    system, Y = episode(2, modes, 2, 3)
    posterior = linear.switching_posterior(*system, Y)
    log_evidence, mode, mean = enumerated(system, Y)
    assert posterior.log_evidence == pytest.approx(log_evidence, abs=1e-10)
    assert linear.switching_log_evidence(*system, Y) == posterior.log_evidence
    np.testing.assert_allclose(posterior.smoothed_mode, mode, atol=1e-10)
    np.testing.assert_allclose(posterior.smoothed_mean, mean, atol=1e-10)


def test_filtered_is_smoothed_at_the_last_row():
    system, Y = episode(3, 2, 2, 3)
    posterior = linear.switching_posterior(*system, Y)
    for t in range(len(Y)):
        _, mode, mean = enumerated(system, Y[: t + 1])
        np.testing.assert_allclose(posterior.filtered_mode[t], mode[t], atol=1e-10)
        np.testing.assert_allclose(posterior.filtered_mean[t], mean[t], atol=1e-10)
    np.testing.assert_allclose(posterior.filtered_mode[-1], posterior.smoothed_mode[-1], atol=1e-12)


def test_forbidden_modes_have_no_weight():
    system, Y = episode(4, 2, 1, 3)
    locked = system._replace(start_prob=np.array([1.0, 0.0]), table=np.eye(2))
    expected = linear.kalman_log_evidence(*along(system, [0] * len(Y)), Y)
    assert linear.switching_log_evidence(*locked, Y) == pytest.approx(expected, abs=1e-10)
    np.testing.assert_array_equal(linear.switching_posterior(*locked, Y).smoothed_mode, [[1.0, 0.0]] * len(Y))


def test_posteriors_are_calibrated_on_simulated_episodes():
    rng = np.random.default_rng(5)
    system = linear.random_system(rng, 2, 2, 2)
    errors = []
    for _ in range(600):
        modes, z, Y = linear.simulate(system, 3, rng)
        posterior = linear.switching_posterior(*system, linear.hide(Y, 0.3, rng))
        off = np.concatenate([modes[:, None] - posterior.smoothed_mode[:, 1:], z - posterior.smoothed_mean], 1)
        believed = np.concatenate([posterior.smoothed_mode[:, 1:], posterior.smoothed_mean], 1)
        errors.append([off, off * believed])
    mean, error = np.mean(errors, 0), np.std(errors, 0) / np.sqrt(len(errors))
    assert (np.abs(mean) < 4 * error).all()


def test_random_systems_are_stable_and_hidden_entries_are_a_share():
    rng = np.random.default_rng(6)
    system = linear.random_system(rng, 4, 3, 2)
    assert np.abs(np.linalg.eigvals(system.F)).max() < 1
    np.testing.assert_allclose(system.table.sum(1), 1.0)
    hidden = np.isnan(linear.hide(np.zeros((100, 100)), 0.2, rng)).mean()
    assert abs(hidden - 0.2) < 4 * np.sqrt(0.2 * 0.8) / 100


def step(seed, d, channels=2, narrow=1.0):
    """A random law, guide and emission; `narrow` scales the guide's deviations."""
    rng = np.random.default_rng(seed)
    a, b = linear.random_system(rng, 2, d, channels), linear.random_system(rng, 2, d, channels)
    law = Mixture(a.start_prob, a.start_mean, a.start_cov)
    guide = Mixture(b.start_prob, a.start_mean + 0.3 * b.start_mean, narrow**2 * b.start_cov)
    return law, guide, Emission(a.C, a.c, a.R, rng.standard_normal(channels))


def posterior(law, emission):
    """Π as a mixture of its own: the perfect guide."""
    fit = [
        linear.conditioned(linear.Belief(mean, cov, np.log(prob)), *emission)
        for prob, mean, cov in zip(*law, strict=True)
    ]
    return Mixture(
        softmax([each.log_joint for each in fit]),
        np.stack([each.mean for each in fit]),
        np.stack([each.cov for each in fit]),
    )


def log_evidence_closed(law, emission):
    C, c, R, o = emission
    terms = [
        multivariate_normal(C @ mean + c, C @ cov @ C.T + R).logpdf(o)
        for mean, cov in zip(law.mean, law.cov, strict=True)
    ]
    return logsumexp(terms, b=law.prob)


def density(law, s, z):
    return law.prob[s] * norm.pdf(z, law.mean[s, 0], np.sqrt(law.cov[s, 0, 0]))


def moment_by_panels(lam, law, guide, emission):
    """`1 + χ²(Π ‖ Q_λ)` for one coordinate and channel, by Gauss–Legendre panels, short at the guide."""

    def integrand(z, s):
        seen = norm.pdf(emission.o[0], emission.C[0, 0] * z + emission.c[0], np.sqrt(emission.R[0, 0]))
        target = seen * density(law, s, z) / np.exp(log_evidence_closed(law, emission))
        return target**2 / ((1 - lam) * density(guide, s, z) + lam * density(law, s, z))

    def total(s):
        near = guide.mean[s] + np.sqrt(guide.cov[s, 0]) * np.linspace(-10, 10, 100)
        edges = np.unique(np.concatenate([np.linspace(-8, 8, 200), near]).clip(-8, 8))
        node, weight = np.polynomial.legendre.leggauss(20)
        half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
        return (half * weight * integrand(middle + half * node, s)).sum()

    return sum(total(s) for s in range(len(law.prob)))


def draws(law, rng, count):
    s = rng.choice(len(law.prob), count, p=law.prob)
    factor = np.linalg.cholesky(law.cov)[s]
    return s, law.mean[s] + np.einsum("nij,nj->ni", factor, rng.standard_normal((count, law.mean.shape[1])))


def pair_density(law, s, z):
    each = [law.prob[k] * multivariate_normal(law.mean[k], law.cov[k]).pdf(z) for k in range(len(law.prob))]
    return np.where(s == 0, each[0], each[1])


def likelihood(emission, z):
    return multivariate_normal(cov=emission.R).pdf(emission.o - z @ emission.C.T - emission.c)


def assert_mean_is(samples, expected):
    assert abs(samples.mean() - expected) < 4 * samples.std() / np.sqrt(len(samples))


@pytest.mark.parametrize("d", [1, 2])
def test_evidence_is_the_closed_form(d):
    law, _, emission = step(10, d)
    for o in (emission.o, emission.o + 100.0):
        far = emission._replace(o=o)
        assert quadrature.log_evidence(law, far) == pytest.approx(log_evidence_closed(law, far), abs=1e-9)
    assert np.log(quadrature.evidence(law, emission)) == pytest.approx(log_evidence_closed(law, emission), abs=1e-9)


@pytest.mark.parametrize("d", [1, 2])
def test_rho_agrees_with_monte_carlo(d):
    law, _, emission = step(11, d)
    _, z = draws(law, np.random.default_rng(0), 200_000)
    ratio = likelihood(emission, z) / np.exp(log_evidence_closed(law, emission))
    assert_mean_is(ratio, 1.0)
    assert_mean_is(ratio**2, quadrature.rho(law, emission))


def test_hidden_channels_say_nothing():
    law, guide, emission = step(12, 2)
    seen = Emission(emission.C[:1], emission.c[:1], emission.R[:1, :1], emission.o[:1])
    half = emission._replace(o=np.array([emission.o[0], np.nan]))
    assert quadrature.rho(law, half) == pytest.approx(quadrature.rho(law, seen))
    assert quadrature.mixture_moment(0.3, law, guide, half) == pytest.approx(
        quadrature.mixture_moment(0.3, law, guide, seen)
    )
    blind = emission._replace(o=np.full(2, np.nan))
    assert quadrature.evidence(law, blind) == pytest.approx(1.0)
    assert quadrature.rho(law, blind) == pytest.approx(1.0)


@pytest.mark.parametrize("narrow", [1.0, 0.02, 1e-4])
@pytest.mark.parametrize("lam", [0.01, 0.3, 0.9])
def test_moments_agree_with_panels(lam, narrow):
    problem = step(13, 1, 1, narrow)
    assert quadrature.mixture_moment(lam, *problem) == pytest.approx(moment_by_panels(lam, *problem), rel=1e-9)


def test_guide_moment_agrees_with_panels():
    problem = step(13, 1, 1)
    assert quadrature.guide_moment(*problem) == pytest.approx(moment_by_panels(0.0, *problem), rel=1e-9)
    assert quadrature.mixture_moment(0, *problem) == quadrature.guide_moment(*problem)


@pytest.mark.parametrize("shrink", [1.0, 0.1])
def test_mixture_moment_agrees_with_monte_carlo_over_pairs(shrink):
    law, guide, emission = step(14, 2)
    guide = posterior(law, emission)._replace(prob=guide.prob)
    guide = guide._replace(cov=shrink * guide.cov)
    lam, rng, count = 0.4, np.random.default_rng(1), 200_000
    from_law = rng.random(count) < lam
    (s_law, z_law), (s_guide, z_guide) = draws(law, rng, count), draws(guide, rng, count)
    s, z = np.where(from_law, s_law, s_guide), np.where(from_law[:, None], z_law, z_guide)
    target = likelihood(emission, z) * pair_density(law, s, z) / np.exp(log_evidence_closed(law, emission))
    weight = target / ((1 - lam) * pair_density(guide, s, z) + lam * pair_density(law, s, z))
    assert_mean_is(weight, 1.0)
    assert_mean_is(weight**2, quadrature.mixture_moment(lam, law, guide, emission))


@pytest.mark.parametrize("d", [1, 2])
def test_mixture_moment_lies_between_one_and_both_ends(d):
    law, guide, emission = step(15, d)
    rho, guide_moment = quadrature.rho(law, emission), quadrature.guide_moment(law, guide, emission)
    assert np.isfinite(guide_moment)
    assert quadrature.mixture_moment(1.0, law, guide, emission) == pytest.approx(rho)
    for lam in (0.05, 0.5):
        moment = quadrature.mixture_moment(lam, law, guide, emission)
        assert 1 <= moment <= min(rho / lam, guide_moment / (1 - lam))
        # 1/x is convex, so the mixture is never worse than mixing the two moments.
        assert moment <= lam * rho + (1 - lam) * guide_moment


@pytest.mark.parametrize("d", [1, 2])
def test_guide_moment_is_one_for_the_target_and_infinite_without_support(d):
    law, _, emission = step(16, d)
    perfect = posterior(law, emission)
    assert quadrature.guide_moment(law, perfect, emission) == pytest.approx(1.0)
    assert np.isfinite(quadrature.guide_moment(law, perfect._replace(cov=0.51 * perfect.cov), emission))
    for lost in (perfect._replace(cov=0.49 * perfect.cov), perfect._replace(prob=np.array([1.0, 0.0]))):
        assert quadrature.guide_moment(law, lost, emission) == np.inf
        assert quadrature.mixture_moment(0.1, law, lost, emission) <= quadrature.rho(law, emission) / 0.1
    only = np.array([1.0, 0.0])
    alone = quadrature.guide_moment(law._replace(prob=only), perfect._replace(prob=only), emission)
    assert alone == pytest.approx(1.0)
