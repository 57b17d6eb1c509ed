"""The examples of the README and of docs (data, laws, support, modes, sensors) run as they are written, in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for document in (
        "README.md",
        "docs/data.md",
        "docs/laws.md",
        "docs/support.md",
        "docs/modes.md",
        "docs/sensors.md",
    ):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
        assert blocks
        for block in blocks:
            exec(block, names)  # our own documents
    assert names["out"].belief.mode.shape == (201, 2)
    assert names["out"].record.certified.mean() > 0.9
    assert abs(names["student_run"].belief.mean[15]).max() < 0.2
    assert abs(names["beacon_run"].belief.mean[-1] - [3.0, 4.0]).max() < 0.3
    assert names["labelled"].labels.keys() >= {"regime", "configuration", "friction", "proxy"}


LINKED = ("data", "certificates", "laws", "hardware", "support", "modes", "sensors")


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{name}.md" for name in LINKED)])
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text("utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (ROOT / document).parent.joinpath(target).exists(), target
