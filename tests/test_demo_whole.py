"""The demo from end to end with real fits, at its smallest."""

import json

import numpy as np

from vhydro.demo import DemoConfig, run_demo
from vhydro.storage import load


def test_the_whole_demo_fits_filters_and_writes(tmp_path):
    config = DemoConfig(model_steps=2, guide_steps=2, train=6, test=2, particles=16, repeats=2, out=tmp_path / "demo")
    run_demo(config, quiet=True)
    summary = json.loads((config.out / "summary.json").read_text("utf-8"))
    for row in summary["rows"]:
        assert all(np.isfinite(v) for k, v in row.items() if k != "method"), row
    saved = load(config.out / "model.safetensors")
    assert set(saved.parts) == {"model", "proposal"}
    assert (config.out / "index.html").stat().st_size > 10_000
