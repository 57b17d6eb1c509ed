"""What all result pages share: a claim with its numbers and its picture, the glossary, where it is from, the index."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from vhydro.report.page import Score, Section, folded, folds, page, scores_html, terms_html, write_page
from vhydro_audits.pages.results import Results

UNSAID = ("out", "data", "quick", "methods")  # of the settings: where a run was made, or said elsewhere
READ = (
    "<b>Bold</b> is the best of a line, <i>italic</i> the paper’s number for the same method, <span class='wrong'>red"
    "</span> a number of ours that is worse than the paper’s (for a method that the paper does not have: than its "
    "best). Hover over a number for its spread over seeds; † marks a mean that some cells have no number for."
)
AUDITS = ("support", "modes", "laws", "planning")


class Claim(NamedTuple):
    """A section: what was found in one sentence (HTML), its numbers, its picture, and what is folded away below."""

    title: str
    name: str  # in the contents
    found: str
    numbers: str = ""
    picture: str = ""
    more: Mapping[str, str] = {}  # titles in HTML, and their content
    how: str = ""  # how it was run, HTML

    def section(self, command: str) -> Section:
        """The claim as a section, with the command that runs it again."""
        again = f"<p>{self.how}</p><pre>{escape(command)}</pre>" if self.how or command else ""
        parts = {**self.more, "How it was run, and the command to run it again": again}
        return Section(self.title, f"<p>{self.found}</p>{self.numbers}{self.picture}{folds(parts)}", self.name)


class Card(NamedTuple):
    """An audit on the index: its page, its claim, its numbers and its best picture."""

    audit: str
    title: str
    answer: str
    scores: Sequence[Score]
    picture: str


class AuditPage(NamedTuple):
    """All that a page says, before it is one."""

    title: str
    answer: str  # HTML, one or two sentences
    claims: Sequence[Claim]
    card: Card
    note: str = ""  # what to know before believing a number
    about: str = ""  # settings of the whole audit, HTML
    words: Mapping[str, str] = {}  # the glossary, plain text
    command: str = ""


def write_audit_page(results: Results, folder: Path, said: AuditPage) -> Path:
    """The path of the audit's page: the answer, its claims, what the words mean, where it is from."""
    return write_shell(
        folder, said, size=size_words(results), words=_glossary(results, said.words), footer=footer_words(results.meta)
    )


def write_shell(folder: Path, said: AuditPage, *, size: str, words: Mapping[str, str], footer: str) -> Path:
    """The path of a page of any audit, from its parts."""
    place = AUDITS.index(said.card.audit) + 1 if said.card.audit in AUDITS else 0
    note = f"<div class='note'>{said.note}</div>" if said.note else ""
    last = f"<p>{escape(size)}</p><p>{said.about}</p><pre>{escape(said.command)}</pre>"
    last += folded("How to read the tables", f"<p class='quiet'>{READ}</p>")
    last += folded("What the words mean", terms_html(words)) if words else ""
    sections = [claim.section(said.command) for claim in said.claims]
    sections.append(Section("How it was run", last, "How it was run"))
    text = page(
        said.title, sections, answer=said.answer, kicker=f"Audit {place} of {len(AUDITS)}: {said.card.audit}",
        intro=scores_html(said.card.scores) + note, footer=escape(footer), home="../index.html",
    )  # fmt: skip
    return write_page(folder, text)


def size_words(results: Results) -> str:
    """How large the run was, and whether it is less than the audit in full."""
    seeds, spec = results.meta["seeds"], results.spec
    tasks = "; ".join(f"{f}: {', '.join(results.tasks(f))}" for f in spec.families if results.tasks(f))
    words = f"{seeds} seed{'s' * (seeds != 1)}, {len(results.cells):,} cells ({tasks})."
    if results.is_partial:
        words = f"This is a small run: in full the audit has {spec.seeds} seeds and every task. {words}"
    return words


def _glossary(results: Results, words: Mapping[str, str]) -> dict[str, str]:
    spec = results.spec
    metrics = {m.title: m.meaning for m in (*spec.metrics, *spec.further) if m.meaning}
    methods = {m.name: m.meaning for m in results.methods if m.meaning}
    return {**metrics, **methods, **words}


def footer_words(meta: Mapping) -> str:
    """Commit, device, time, seeds and settings of a run."""
    config = {k: v for k, v in (meta["config"] or {}).items() if not isinstance(v, dict) and k not in UNSAID}
    settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in config.items() if v is not None)
    words = [f"commit {meta['commit']}", meta["device"], f"{meta['seconds']:,.0f} s", f"{meta['seeds']} seeds"]
    words += ["small run" if meta.get("quick") else "", settings]
    return " · ".join(w for w in words if w)


def index_html(cards: Sequence[Card]) -> str:
    """The page over all audits: a card for each, with its best picture, its claim and its numbers."""
    body = "".join(_card(card) for card in cards)
    answer = (
        "Four claims about contact-rich robot logs, each measured over twenty seeds beside ablations, peers and the "
        "paper’s own numbers. What falls short is shown as plainly as what does not."
    )
    return page("What was measured", [f"<div class='cards'>{body}</div>"], answer=answer, kicker="VHyDRO audits")


def _card(card: Card) -> str:
    return (
        f"<article class='card'><h2><a href='{card.audit}/index.html'>{escape(card.title)}</a></h2>"
        f"<p>{card.answer}</p>{card.picture}{scores_html(card.scores)}"
        f"<p class='more'><a href='{card.audit}/index.html'>All of the {card.audit} audit</a></p></article>"
    )
