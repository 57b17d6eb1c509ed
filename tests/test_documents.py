"""The examples of the README and of every page of the documentation run as they are written, each page by itself."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def _readme(names: dict) -> None:
    assert names["out"].mode.shape == (201, 2)
    assert names["out"].record.certified.mean() > 0.9
    assert names["fitted"].names == names["vh"].load("task.vhydro").names
    assert (names["low"] <= names["high"]).all()


def _data(names: dict) -> None:
    assert names["arms"][0].channels[0].name == "left.joint_1"
    assert (names["cart"][0].dt, names["cart"][0].channels[0].unit) == (pytest.approx(0.1), "m")
    assert names["labelled"].labels.keys() >= {"regime", "configuration", "friction", "proxy"}


def _sensors(names: dict) -> None:
    assert abs(names["student_run"].mean[15]).max() < 0.2
    assert abs(names["beacon_run"].mean[-1] - [3.0, 4.0]).max() < 0.3


def _modes(names: dict) -> None:
    assert names["fitted"].names[0] == "nothing"


def _planning(names: dict) -> None:
    assert names["proof"].how == "parameters"
    assert names["decision"].follows in ("certified", "fallback")
    assert abs(names["state"][0] - 0.15) < 0.1


def _ros2(names: dict) -> None:
    log, said, node = names["log"], names["said"], names["node"]
    assert len(said) == log.steps + 1  # a word for every row, none before the first message
    whole = log.observations.copy()
    whole[[t for t in range(len(whole)) if t % 7 == 3]] = np.nan
    belief = names["fitted"].filter(replace(log, observations=whole))
    np.testing.assert_allclose(names["step"].mean, belief.mean[-1], rtol=1e-3, atol=1e-4)
    assert sum(certified for _, _, certified in said) > 0.9 * len(said)
    node.on_joint_state(SimpleNamespace(name=["elbow"], position=[]))  # as drivers send it at first
    node.on_joint_state(SimpleNamespace(name=["elbow"], position=[float("nan")]))
    assert node.fresh == {}


RUN: dict[str, Callable[[dict], None] | None] = {
    "README.md": _readme, "docs/data.md": _data, "docs/laws.md": None, "docs/support.md": None,
    "docs/modes.md": _modes, "docs/sensors.md": _sensors, "docs/planning.md": _planning,
    "docs/ros2.md": _ros2,
}  # fmt: skip


@pytest.mark.parametrize("document", RUN)
def test_every_example_runs(document, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(block, names)  # our own documents
    if check := RUN[document]:
        check(names)


LINKED = ("data", "certificates", "laws", "hardware", "support", "modes", "sensors", "planning", "ros2")


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{name}.md" for name in LINKED)])
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text("utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (ROOT / document).parent.joinpath(target).exists(), target
