"""What a benchmark says where it cannot measure."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    """The benchmark of GPUs, imported as when it is run; nothing of it stays."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield import_module("gpu")
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


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
    assert kept["skipped"]["long"].startswith("60 s were left, it takes about 100 s")
    assert kept["meta"]["device"]
    assert kept["meta"]["commit"]


def test_its_keys_are_those_that_have_a_bar(gpu):
    """Every ratio that is asked for is one that some part measures, but for that of learning."""
    measured = {f"vs_cuthbert_{n}x{count}" for n, count in gpu.SIZES} | set(gpu.ENGINES)
    assert set(gpu.TARGETS) - measured == {"training_vs_today"}, "which no part measures, and the results say why"
