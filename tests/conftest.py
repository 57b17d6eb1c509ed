"""What every test runs under: double precision, types and shapes checked, the same random cases each time."""

import os

# Most of the suite's time is compiling small programs that run once: ask for little optimisation, before jax starts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false")

import jax
import jaxtyping
from hypothesis import settings

jax.config.update("jax_enable_x64", True)
# Tests are many small programs: where a cache directory is set, keep those that took a moment to compile too.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
jaxtyping.install_import_hook("vhydro", "beartype.beartype")

# A file runs on one worker; those that take longest go first, so that none is left over at the end.
LONGEST = ("test_training", "test_evidence", "test_robust", "test_objective", "test_demo", "test_stream")


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
