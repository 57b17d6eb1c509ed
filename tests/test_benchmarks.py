"""Every benchmark can be started, and says so where it cannot measure."""

import json
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
OWN_ENVIRONMENT = {"peer_mppi": "torch", "peer_particles": "particles"}  # these bring an older numpy, or gigabytes


@pytest.fixture
def imported(monkeypatch):
    """Imports a benchmark as when it is run; nothing of it stays."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def gpu(imported):
    """The benchmark of GPUs."""
    return imported("gpu")


@pytest.fixture
def audit(imported, monkeypatch):
    """The benchmark of the support audit, whose programs are kept nowhere."""
    module = imported("audit")
    monkeypatch.setattr(module, "keep_programs", lambda folder: None)
    return module


@pytest.mark.parametrize("script", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_every_benchmark_finds_what_it_imports(imported, script):
    """Where a peer's package is not installed, it is all that is missing."""
    if find_spec(OWN_ENVIRONMENT.get(script, "jax")):
        imported(script)
        return
    with pytest.raises(ModuleNotFoundError) as missing:
        imported(script)
    assert missing.value.name == OWN_ENVIRONMENT[script]


def test_without_a_gpu_it_says_so_and_writes_nothing(gpu, monkeypatch, tmp_path):
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(out)])
    with pytest.raises(SystemExit, match="JAX runs on cpu here: nothing was measured"):
        gpu.main()
    assert not out.exists()


def test_a_part_that_fails_or_has_no_time_is_said_and_the_rest_is_kept(gpu, tmp_path):
    bench = gpu.Bench(tmp_path / "results" / "gpu.json", minutes=1, rehearsal=True)
    bench.part("good", 1, lambda: bench.key("replan_ms", 2.0))
    bench.part("bad", 1, lambda: 1 / 0)
    bench.part("long", 100, lambda: bench.key("never", 1.0))
    kept = gpu.json.loads((tmp_path / "results" / "gpu.json").read_text())
    assert kept["keys"] == {"replan_ms": 2.0}
    assert kept["skipped"]["bad"] == "ZeroDivisionError: division by zero"
    assert re.fullmatch(r"\d+ s were left, it takes about 100 s", kept["skipped"]["long"])
    assert kept["meta"]["device"]
    assert kept["meta"]["commit"]


def test_its_keys_are_those_that_have_a_bar(gpu):
    """Every ratio that is asked for is one that some part measures."""
    measured = {f"vs_cuthbert_{n}x{count}" for n, count in gpu.SIZES} | set(gpu.ENGINES)
    assert set(gpu.TARGETS) <= measured | {"training_vs_today"}


def run_audit(audit, monkeypatch, out):
    monkeypatch.setattr(sys, "argv", ["audit.py", "--seeds", "1", "--out", str(out)])
    audit.main()


def test_the_audit_benchmark_asks_the_audit_and_keeps_the_entry_of_another_device(audit, monkeypatch, tmp_path):
    asked = []

    def work(key, config):
        asked.append((key["method"], key["seeds"], config["particles"]))

    monkeypatch.setattr(audit, "work", work)
    out = tmp_path / "audit.json"
    out.write_text('{"another": {"commit": "abc"}}')
    run_audit(audit, monkeypatch, out)
    written = json.loads(out.read_text())
    assert written["another"] == {"commit": "abc"}
    entry = written[jax.default_backend()]
    assert set(entry["growth"]) == {"N x 4", "seeds x 2", "T x 2"}
    base, *_, longer = entry["settings"]
    assert longer["rows"] == 2 * base["rows"] - 1
    assert asked[::2] == [("adaptive", seeds, n) for seeds, n in ((1, 64), (1, 256), (2, 64), (1, 64))]
    assert asked[::2] == asked[1::2], "every setting is called twice"
    assert 0 < base["running_s"] <= base["again_s"]


def test_the_audit_benchmark_refuses_to_time_a_second_call_that_compiles(audit, monkeypatch, tmp_path):
    monkeypatch.setattr(audit, "work", lambda key, config: jax.jit(lambda x: x - 1)(1.0))
    out = tmp_path / "audit.json"
    with pytest.raises(SystemExit, match="base: the second call compiled 1 programs, the first 1; expected none"):
        run_audit(audit, monkeypatch, out)
    assert not out.exists()


def test_seconds_inside_two_spans_count_once(audit):
    assert audit.covered([(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (7.0, 8.0)]) == 6.0
