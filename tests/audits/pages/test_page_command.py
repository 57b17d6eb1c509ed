"""`vhydro audit page` writes pages from result files alone, and says what it needs."""

import re
from pathlib import Path

import pytest
from committed import linked, written_pages

from vhydro.cli import main
from vhydro_audits.pages.frame import AUDITS


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> tuple[Path, list[str]]:
    return written_pages(tmp_path_factory.mktemp("pages"))


def test_the_command_writes_the_index_and_every_page_and_says_where(pages):
    folder, said = pages
    assert said == [str(Path("results", name, "index.html")) for name in ("", *AUDITS)]
    assert all((folder / name / "index.html").is_file() for name in ("", *AUDITS))


@pytest.mark.parametrize("audit", AUDITS)
def test_the_committed_results_have_a_page(pages, audit):
    text = (pages[0] / audit / "index.html").read_text("utf-8")
    assert "<h1>" in text
    assert ("small run" in text) == (audit == "modes")  # one division so far
    assert not forbidden(text)
    claims = text.split("<section ")[1:-1]
    assert len(claims) >= 3
    assert all("How it was run, and the command to run it again" in claim for claim in claims)


def test_one_page_is_written_where_it_is_wanted(tmp_path, capsys):
    main(["audit", "page", "planning", "--out", str(linked(tmp_path, "planning"))])
    assert capsys.readouterr().out.strip() == str(tmp_path / "index.html")
    assert (tmp_path / "index.html").is_file()


def forbidden(text: str) -> list[str]:
    """Words that say who wanted a number, or that a reader would not know, in what a page shows."""
    shown = re.sub(r"<(style|script)[^>]*>.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    tips = " ".join(re.findall(r"(?:data-tip|aria-label|title)='([^']*)'", text))
    return re.findall(r"\b(bars?|asked for|must)\b", shown + tips, flags=re.IGNORECASE)


def test_forbidden_words_are_found_where_they_are_shown():
    assert forbidden("<style>.bar{}</style><p class='bar'>It must hold</p><i data-tip='two bars'>") == ["must", "bars"]


def test_the_index_has_a_card_for_every_audit_with_its_picture_its_claim_and_its_numbers(pages):
    text = (pages[0] / "index.html").read_text("utf-8")
    cards = text.split("<article class='card'>")[1:]
    assert len(cards) == len(AUDITS)
    for audit, card in zip(AUDITS, cards, strict=True):
        assert f"href='{audit}/index.html'" in card
        assert card.count("<figure>") == 1
        assert "class=ours" in card
    assert not forbidden(text)


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
