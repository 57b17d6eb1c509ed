"""What all result pages share: the order of their parts, a section with its picture, the glossary and the footer."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure

from vhydro.report.page import figure_html, folded, legend_html, page, write_page
from vhydro_audits.pages.results import Results

UNSAID = ("out", "data", "quick", "methods")  # of the settings: where a run was made, or said elsewhere
READ = (
    "<b>Bold</b> is the best of a line, <i>italic</i> the paper’s number for the same method, <span class='wrong'>red"
    "</span> a number of ours that is worse than the paper’s (for a method that the paper does not have: than its "
    "best). Hover over a number for its spread over seeds; † marks a mean that some cells have no number for."
)


def section(
    title: str,
    words: str = "",
    figure: Figure | None = None,
    name: str = "",
    *,
    legend: Mapping[str, str] | None = None,
    below: str = "",
) -> str:
    """A claim: its title, the answer in HTML, its picture, and what is folded away below it."""
    parts = [f"<h2>{title}</h2>" if title else "", f"<p>{words}</p>" if words else ""]
    parts += [legend_html(legend)] if legend else []
    return "".join(parts) + ("" if figure is None else figure_html(figure, name)) + below


def write_audit_page(
    results: Results,
    folder: Path,
    title: str,
    lead: str,
    sections: Sequence[str],
    *,
    words: Mapping[str, str],
    again: str,
) -> Path:
    """The path of the audit's page: the answer, its sections, how it was run, what the words mean, where it is from.

    `lead` and `words` are plain text, `again` is HTML.
    """
    said = [
        f"<h1>{title}</h1>",
        f"<p class='lead'>{escape(lead)}</p>",
        *sections,
        f"<h2>How it was run, and how to run it again</h2><p>{escape(size_words(results))} {again}</p>",
        f"<p class='quiet'>{READ}</p>",
        folded("What the words mean", _glossary(results, words)),
        _footer(results),
    ]
    return write_page(folder, page(f"VHyDRO: {title}", said))


def size_words(results: Results) -> str:
    """How large the run was, and whether it is less than the audit in full."""
    seeds, spec = results.meta["seeds"], results.spec
    tasks = "; ".join(f"{f}: {', '.join(results.tasks(f))}" for f in spec.families if results.tasks(f))
    words = f"{seeds} seed{'s' * (seeds != 1)}, {len(results.cells):,} cells ({tasks})."
    if results.is_partial:
        words = f"This is a small run: in full the audit has {spec.seeds} seeds and every task. {words}"
    return words


def _glossary(results: Results, words: Mapping[str, str]) -> str:
    spec = results.spec
    metrics = {m.title: m.meaning for m in (*spec.metrics, *spec.further) if m.meaning}
    methods = {m.name: m.meaning for m in results.methods if m.meaning}
    items = {**metrics, **methods, **words}
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in items.items())}</dl>"


def _footer(results: Results) -> str:
    meta = results.meta
    config = {k: v for k, v in (meta["config"] or {}).items() if not isinstance(v, dict) and k not in UNSAID}
    settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in config.items() if v is not None)
    words = [f"commit {meta['commit']}", meta["device"], f"{meta['seconds']:,.0f} s", f"{meta['seeds']} seeds"]
    words += ["small run" if meta.get("quick") else "", settings]
    return f"<footer>{escape(' · '.join(w for w in words if w))}</footer>"
