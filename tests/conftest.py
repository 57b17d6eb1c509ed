"""What every test runs under: double precision, types and shapes checked, the same random cases each time."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

# Most of the suite's time is compiling small programs that run once: ask for little optimisation, before jax starts.
# A process ends that is given a flag it does not know; these two are known to jaxlib 0.10.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=1"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * version("jaxlib").startswith("0.10."),
)
# Two workers on two cores: pools of threads would steal from each other. XLA sizes its own by NPROC.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # as below; processes that tests start have it from here

import jax
import jaxtyping
import pytest
from hypothesis import settings

jax.config.update("jax_enable_x64", True)
# Tests are many small programs: where a cache directory is set, keep those that took a moment to compile too.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
jaxtyping.install_import_hook(["vhydro", "vhydro_audits"], "beartype.beartype")
# Tracing makes many small objects that live on: looking through them for garbage this seldom spares a fifth of it.
gc.set_threshold(100_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Programs are compiled without optimising them, but for tests that compute for longer than that spares."""
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("computes") is None)


# A file runs on one worker; those that take longest go first, so that none is left over at the end.
LONGEST = (
    *("test_path", "test_evidence", "test_objective", "test_fitted", "test_documents", "test_sensors", "test_demo"),
    *("test_mechanics_start", "test_as_model", "test_training", "test_commanded", "test_certificate", "test_faults"),
    "test_collisions",
)


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


MAPS = Path("/proc/self/maps")  # of this process's memory, where the system tells
MOST_MAPS = 15_000  # a compiled program takes some dozens; at 65,530 the kernel refuses more and the process dies


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Compiled programs are dropped between files before they fill the table of memory maps."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
