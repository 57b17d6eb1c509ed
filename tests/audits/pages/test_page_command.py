"""`vhydro audit page` writes a page from result files alone, and says what it needs."""

from pathlib import Path

import pytest

from vhydro.cli import main

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("audit", ["laws", "modes", "planning", "support"])
def test_the_committed_results_have_a_page(tmp_path, audit, capsys):
    for file in (RESULTS / audit).iterdir():
        if file.suffix != ".html":
            (tmp_path / file.name).symlink_to(file)
    main(["audit", "page", audit, "--out", str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text("utf-8")
    assert len(text.encode()) < 5e6
    assert "<h1>" in text
    assert "small run" not in text


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [(["--out", "x"], 2, "--out is the folder of one audit"), (["laws", "--out", "x"], 1, "is not there")],
)
def test_what_is_missing_is_said(arguments, status, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["audit", "page", *arguments])
    shown = capsys.readouterr()
    assert ended.value.code == status
    assert words in shown.err + shown.out
