"""Kernels against the scan, with the same random numbers, interpreted on this machine; and when the scan is used."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vhydro.certificate import Gate
from vhydro.episodes import episode, pad
from vhydro.filter import FilterSettings, bootstrap, filter, filter_episodes, filtered, log_evidence, program
from vhydro.filter.branches import branch_step
from vhydro.filter.settings import noise_layout
from vhydro.filter.step import initial
from vhydro.flow import Reset
from vhydro.gap import GapDrive, Geometry
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, linear_emission, linear_flow, mode_kernel, port_hamiltonian
from vhydro.network import network
from vhydro.particles import step_noise
from vhydro.proposal import ConditionedProposal, Proposal

F32, KEY = jnp.float32, jax.random.key(3)
GUIDE = ConditionedProposal()
INTERPRETED = {"program": "interpreted"}


def contact_like():
    """A port-Hamiltonian flow with impacts whose mode kernel sees a gap, two channels, one input."""
    random = np.random.default_rng(1)
    library = polynomial(2, 2)
    flow = port_hamiltonian(
        2, 2, 1, library,
        coefficients=1 + 0.3 * random.normal(size=(2, len(library))),
        dissipation=np.stack([np.diag([0, 0.2]), np.diag([0, 1.0])]),
        port=random.normal(size=(2, 2, 1)), integrator="midpoint",
    )  # fmt: skip
    before, after = jnp.asarray(random.normal(size=(2, 1, 3, 3)), F32)
    offset, others = jnp.asarray(random.normal(size=(2, 1, 3)), F32)
    geometry = Geometry(before, after, offset, others, jnp.asarray(0.3, F32))
    drive = GapDrive(geometry, jnp.asarray(random.normal(size=(2, 3)), F32))
    return hybrid_model(
        mode_kernel(2, stay=0.8, drive=drive),
        flow,
        axis_emission(2, (0, 1), noise=0.3),
        noise=0.3,
        reset=Reset(jnp.asarray(random.normal(size=(2, 2, 1)), F32), (1,)),
    )


def ragged_logs():
    """Two logs of different lengths, with hidden channels, hidden rows and one reading that nothing explains."""
    random = np.random.default_rng(0)
    seen, actions = random.normal(size=(21, 2)), random.normal(size=(20, 1))
    seen[3], seen[7, 0], seen[11:14, 1], seen[16, 0] = np.nan, np.nan, np.nan, 1e4
    return [episode(seen, actions, dt=0.1), episode(seen[:9], actions[:8], dt=0.1)]


MODEL, LOGS = contact_like(), ragged_logs()
UNDRIVEN = [episode(log.observations, dt=0.1) for log in LOGS]


def both(settings: FilterSettings, proposal: Proposal | None, model=MODEL, logs=LOGS, kernel="interpreted"):
    """The beliefs of the scan and those of the kernel."""
    run = [replace(settings, program=name) for name in ("scan", kernel)]
    return [filter_episodes(model, logs, key=KEY, proposal=proposal, settings=s) for s in run]


def alike(scanned, fused):
    """Same numbers, to the rounding of a few hundred operations in single precision; whole numbers exactly."""
    for want, got in zip(scanned, fused, strict=True):
        assert str(want.program) == "scan: as asked"
        assert str(got.program).startswith("one kernel for each log: "), got.program
        for w, g in zip(*(jax.tree.leaves(b._replace(program=None)) for b in (want, got)), strict=True):
            assert (w.dtype, w.shape) == (g.dtype, g.shape)
            if w.dtype.kind == "f":
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(g, w)


def test_the_gated_filter_with_its_certificate_is_the_scans():
    """Adaptive two-sided gate, guide, resampling by ESS, resets, gap, faults: every record, belief and population."""
    scanned, fused = both(FilterSettings(particles=32, engine="mixture", history=True), GUIDE)
    alike(scanned, fused)
    record = scanned[0].record
    assert record.resampled.any()
    assert not record.resampled.all()
    assert record.certified.any()
    assert record.outliers.sum() == 1
    assert [len(b.record.ess) for b in fused] == [21, 9]


def test_drawn_z_with_modes_summed_is_the_scans():
    """All modes linear, a kernel that sees the gap."""
    model = eqx.tree_at(lambda m: m.kernel, linear_model(), MODEL.kernel)
    alike(*both(FilterSettings(particles=16, engine="drawn"), GUIDE, model))


def test_gaussian_branches_are_the_scans(switching_model):
    """Reduced from modes times branches to as many as before, with what that leaves to chance."""
    model = switching_model(dtype=F32, dense=False)
    scanned, fused = both(FilterSettings(particles=16, engine="gaussian"), GUIDE, model, UNDRIVEN)
    alike(scanned, fused)
    assert scanned[0].record.cut.any()


def test_the_bootstrap_filter_is_the_scans_over_several_launches(switching_model, monkeypatch):
    """64 particles, and logs that take three launches of the kernel, the last one not full."""
    monkeypatch.setattr(program, "ROWS", 24)
    alike(*both(bootstrap(particles=64), None, switching_model(dtype=F32), UNDRIVEN))


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="kernels are compiled for GPUs, and there is none here")
@pytest.mark.parametrize("engine", ["mixture", "drawn", "gaussian"])
def test_kernels_compiled_for_a_gpu_are_the_scans(engine):
    settings = FilterSettings(particles=256, engine=engine, corrected=False)
    alike(*both(settings, GUIDE, kernel="kernel"))


# --- when there is no kernel ------------------------------------------------------------------------------------------


def linear_model(**options):
    kernel, flow = mode_kernel(2), linear_flow(np.stack([np.eye(2), 0.5 * np.eye(2)]), inputs=1)
    return hybrid_model(kernel, flow, linear_emission(np.eye(2), noise=0.5), noise=0.3, **options)


def driven_by(drive):
    """A model whose mode kernel is driven by something of the user's own."""
    return eqx.tree_at(lambda m: m.kernel.drive, linear_model(), drive, is_leaf=lambda x: x is None)


class Sorted(eqx.Module):
    def __call__(self, inputs):
        return jnp.sort(inputs[:2], axis=-1)


REASONS = {
    "these are 33": (linear_model, bootstrap(particles=33), None),
    "a power of two of particles, at least 16; these are 8": (linear_model, bootstrap(particles=8), None),
    "at most 4096 particles": (linear_model, bootstrap(particles=8192), None),
    "the operation sort": (linear_model, FilterSettings(particles=32, pareto=True, engine="mixture"), GUIDE),
    "the operation cumsum": (linear_model, FilterSettings(particles=32, gate=Gate(certificate="pilot")), GUIDE),
    "beside the particles": (linear_model, bootstrap(particles=32, resampler="multinomial"), None),
    "an array of 66 beside 32 particles": (linear_model, FilterSettings(particles=32, exact_modes=True), GUIDE),
    "linearised branches are corrected": (contact_like, FilterSettings(particles=16, engine="gaussian"), GUIDE),
    "an array of shape .16, 3. beside 16 particles": (
        lambda: driven_by(network(3, (16,), 2, key=KEY, dtype=F32)),
        bootstrap(particles=16), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REASONS)
def test_what_a_kernel_cannot_do_is_filtered_by_the_scan_and_said(words):
    model, settings, proposal = REASONS[words]
    found = program.program_of(model(), proposal, replace(settings, **INTERPRETED))
    assert found.name == "scan"
    assert words.replace(".", "") in found.reason.replace("(", "").replace(")", "")
    assert str(found).startswith("scan: ")


def test_a_step_that_is_too_large_is_left_to_the_scan(monkeypatch):
    monkeypatch.setattr(program, "LARGEST_STEP", 100)
    program._written.cache_clear()
    found = program.program_of(linear_model(), None, bootstrap(particles=16, **INTERPRETED))
    program._written.cache_clear()
    assert found.name == "scan"
    assert "operations is too large for a kernel: 100 at most" in found.reason


def test_double_precision_is_left_to_the_scan(switching_model):
    found = program.program_of(switching_model(), None, bootstrap(particles=16, **INTERPRETED))
    assert (found.name, found.reason) == ("scan", "a kernel computes in float32, this model in float64")


def test_a_model_of_the_users_own_is_filtered_by_the_scan():
    settings = bootstrap(particles=16, **INTERPRETED)
    belief = filter(driven_by(Sorted()), LOGS[1], key=KEY, proposal=None, settings=settings)
    assert str(belief.program) == "scan: this step has the operation sort, which a kernel cannot do"
    assert np.isfinite(belief.log_evidence)


def test_on_this_machine_the_scan_filters_as_ever(monkeypatch):
    """Without a GPU nothing of kernels is even tried, whether asked for or not."""
    monkeypatch.setattr(program, "_written", None)
    settings = bootstrap(particles=16)
    runs = {
        name: filter(linear_model(), LOGS[1], key=KEY, proposal=None, settings=replace(settings, program=name))
        for name in ("auto", "kernel", "scan")
    }
    reason = "kernels are written for GPUs, this runs on cpu"
    assert [str(b.program) for b in runs.values()] == [f"scan: {r}" for r in (reason, reason, "as asked")]
    assert len({float(b.log_evidence) for b in runs.values()}) == 1


@pytest.fixture
def gpu(monkeypatch):
    """JAX says that there is a GPU, which there is not: whatever is compiled for one fails."""
    monkeypatch.setattr(program.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(program, "_maker", lambda: "cuda 13000")
    monkeypatch.setattr(program, "_FAILED", {})


def test_a_kernel_that_does_not_compile_is_tried_once_and_breaks_nothing(gpu, monkeypatch):
    model, settings = linear_model(), bootstrap(particles=16, program="kernel")
    tried = []
    run = program.scan_in_one_kernel
    monkeypatch.setattr(program, "scan_in_one_kernel", lambda *a, **k: (tried.append(1), run(*a, **k))[1])
    beliefs = [filter(model, LOGS[1], key=KEY, proposal=None, settings=settings) for _ in range(2)]
    want = filter(model, LOGS[1], key=KEY, proposal=None, settings=replace(settings, program="scan"))
    for belief in beliefs:
        assert str(belief.program).startswith("scan: the kernel failed on this machine, ")
        assert belief.log_evidence == want.log_evidence
    assert len(tried) == 1
    names = ("kernel", "scan")
    every = {n: log_evidence(model, LOGS, key=KEY, proposal=None, settings=replace(settings, program=n)) for n in names}
    np.testing.assert_array_equal(every["kernel"], every["scan"])


def test_kernels_are_taken_on_a_gpu_wherever_they_can_be(gpu):
    model, settings = linear_model(), bootstrap(particles=16)
    asked = program.program_of(model, None, replace(settings, program="kernel"))
    assert asked.name == "kernel"
    assert str(asked).startswith("one kernel for each log: 16 particles, ")
    assert program.program_of(model, None, settings) == asked
    merged = replace(settings, engine="merged")
    assert program.program_of(model, None, merged).reason == "merged Gaussians have no particles"


def test_more_shared_memory_than_a_program_has_is_left_to_the_scan(monkeypatch):
    monkeypatch.setattr(program, "SHARED", 32)
    program._written.cache_clear()
    found = program.program_of(linear_model(), None, bootstrap(particles=1024, **INTERPRETED))
    program._written.cache_clear()
    assert str(found) == "scan: a row takes 4 KiB of shared memory; a kernel has 0"


@pytest.mark.parametrize("engine", ["mixture", "gaussian"])
def test_a_kernel_for_the_evidence_alone_gives_the_evidence(engine):
    """It leaves out what is only told, and changes nothing else."""
    settings = FilterSettings(particles=16, engine=engine, corrected=False, **INTERPRETED)
    beliefs = filter_episodes(linear_model(), LOGS, key=KEY, settings=settings)
    assert {b.program.name for b in beliefs} == {"kernel"}
    alone = log_evidence(linear_model(), LOGS, key=KEY, settings=settings)
    np.testing.assert_allclose(alone, [b.log_evidence for b in beliefs], rtol=1e-6)


def products(jaxpr):
    """Every product of matrices in a traced function, those of its inner functions included."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner)


@pytest.mark.parametrize("engine", ["mixture", "drawn", "gaussian"])
def test_a_gpu_is_told_not_to_round_products_of_matrices(engine):
    """Left to itself it rounds to ten bits: after 100 rows the evidence of a log was another."""
    settings = FilterSettings(particles=16, engine=engine)
    batch = jax.tree.map(lambda x: x[0], pad(LOGS, dtype=np.dtype(np.float32), length=32))
    traced = jax.make_jaxpr(lambda b: filtered(MODEL, GUIDE, settings, b, KEY))(batch)
    assert_precise(traced)


def assert_precise(traced):
    found = list(products(traced.jaxpr))
    assert found
    for eqn in found:
        assert "HIGHEST" in str(eqn.params["precision"]), eqn


@pytest.mark.parametrize("corrected", [True, False])
def test_a_step_by_itself_is_as_precise(corrected):
    """As a stream takes it."""
    settings = FilterSettings(particles=16, engine="gaussian", corrected=corrected)
    row, noise = program._empty_row(MODEL), step_noise(noise_layout(MODEL, GUIDE, settings), KEY, jnp.asarray(0), F32)
    assert_precise(jax.make_jaxpr(lambda p: branch_step(MODEL, settings, p, row, noise))(initial(MODEL, settings)))


def test_other_makers_gpus_are_left_to_the_scan(gpu, monkeypatch):
    monkeypatch.setattr(program, "_maker", lambda: "rocm 7")
    found = program.program_of(linear_model(), None, bootstrap(particles=16))
    assert str(found) == "scan: kernels are written for NVIDIA's GPUs, this is one of rocm 7"


def test_within_a_callers_own_program_the_scan_filters(gpu):
    """There a kernel that does not compile could not be replaced."""
    model, settings = linear_model(), bootstrap(particles=16)
    evidence = jax.jit(lambda key: log_evidence(model, LOGS, key=key, proposal=None, settings=settings))
    want = log_evidence(model, LOGS, key=KEY, proposal=None, settings=replace(settings, program="scan"))
    np.testing.assert_allclose(evidence(KEY), want, rtol=1e-6)


def test_want_of_memory_is_no_reason_to_give_a_kernel_up(gpu, monkeypatch):
    tried = []

    def full(*_, **__):
        tried.append(1)
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(program, "scan_in_one_kernel", full)
    jax.clear_caches()
    for name in ("auto", "kernel"):
        belief = filter(linear_model(), LOGS[1], key=KEY, proposal=None, settings=bootstrap(particles=16, program=name))
        assert "RESOURCE_EXHAUSTED" in belief.program.reason
    assert len(tried) == 2


def test_an_error_of_the_callers_is_raised_and_no_reason_for_the_scan(gpu):
    with pytest.raises(ValueError, match="expects"):
        filter(linear_model(), episode(np.zeros((3, 3)), dt=0.1), key=KEY, settings=FilterSettings(program="kernel"))


CUDA = {
    "mixture": (FilterSettings(particles=64, engine="mixture"), GUIDE),
    "gaussian": (FilterSettings(particles=16, engine="gaussian", corrected=False), GUIDE),
}


@pytest.mark.parametrize("name", CUDA)
def test_a_kernel_is_written_in_what_gpus_compile(gpu, name):
    """Every operation of the step has a counterpart in Triton; there is no GPU here to compile and run it."""
    settings, proposal = CUDA[name]
    settings = replace(settings, program="kernel")
    batch = pad(LOGS, dtype=np.dtype(np.float32), length=32)
    run = jax.jit(jax.vmap(lambda b, k: filtered(MODEL, proposal, settings, b, k).log_evidence))
    text = run.trace(batch, jax.random.split(KEY, 2)).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" in text
    assert "scan_in_one_kernel" in text


def test_what_is_differentiated_is_never_a_kernel(gpu):
    """`filtered` itself, under a caller's own transformations, scans unless a kernel is asked for."""
    model, batch = linear_model(), jax.tree.map(lambda x: x[0], pad(LOGS, dtype=np.dtype(np.float32), length=32))

    def evidence(scale, name):
        noisy, settings = replace(model, log_noise=jnp.full((2, 2), scale)), bootstrap(particles=16, program=name)
        return filtered(noisy, None, settings, batch, KEY).log_evidence

    gradient = jax.make_jaxpr(jax.grad(evidence), static_argnums=1)(jnp.float32(-1.0), "auto")
    assert "pallas_call" not in str(gradient)
    assert "pallas_call" in str(jax.make_jaxpr(evidence, static_argnums=1)(jnp.float32(-1.0), "kernel"))
