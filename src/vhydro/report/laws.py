"""The page of the laws audit, from its result files: what was recovered, how well, and against whom."""

from html import escape
from pathlib import Path

from vhydro.report.laws_figures import SCATTERED, heat_figure, overview_figure, scatter_figure, strip_figure
from vhydro.report.laws_results import METRICS, Results, Row, read_results
from vhydro.report.laws_tables import bar_table, caveats, comparison_table, comparison_words, headline
from vhydro.report.laws_theorem import (
    BROKEN,
    PARTS,
    bound_figure,
    parts_figure,
    regressions,
    task_colours,
    theorem_words,
)
from vhydro.report.page import figure_html, legend_html, page, write_page

STYLE = f"""<style>
h3 {{ font-size: 15px; font-weight: 600; margin: 22px 0 0; }}
.bars td {{ padding-top: 5px; padding-bottom: 5px; }}
.matrix {{ font-size: 13px; line-height: 1.4; table-layout: fixed; min-width: 980px; }}
.matrix th, .matrix td {{ padding: 3px 5px; }}
.matrix th {{ font-size: 12px; }}
.matrix th:first-child {{ width: 248px; }}
.matrix td:nth-child(2) {{ background: #f3f7ff; }}
.no {{ color: {BROKEN}; font-weight: 600; }}
.paper {{ color: #6b7280; font-style: italic; }}
.pair {{ display: grid; grid-template-columns: 1fr 1fr; gap: 4px 20px; margin: 8px 0 20px; }}
.pair pre {{ margin: 0; padding: 10px 12px; background: #f7f8fa; white-space: pre-wrap; overflow-wrap: anywhere; }}
.pair pre {{ font-size: 12.5px; line-height: 1.5; }}
.pair span {{ color: #6b7280; font-size: 13px; }}
@media (max-width: 760px) {{ .pair {{ grid-template-columns: 1fr; }} }}
</style>"""
MEANINGS = {
    "support F1": "how well the chosen terms are the true ones, over all modes: the harmonic mean of precision and "
    "recall; 1 is exactly the true terms; a term counts where its force is at least 1 % of its mode’s, or of a "
    "usual input where the mode has no force of its own",
    "support precision": "share of the chosen terms that are true ones",
    "coefficient error": "distance between estimated and true coefficients of all candidate terms, relative to the "
    "size of the true ones",
    "vector-field NRMSE": "root mean square error of the law’s accelerations on states it was not fitted to, relative "
    "to their spread",
    "constants error": "mean relative error of the physical constants that the law implies: mass, stiffness, friction, "
    "damping, places of surfaces; one that was not found counts as wholly wrong",
    "given": "noisy positions with their modes given, the paper’s setting; velocities are hidden",
    "filtered": "the whole chain from noisy positions alone: fit, smooth, segment, recover; no truth is used but the "
    "number of modes; modes are matched to the true ones for scoring only",
    "told to every method": "candidate terms, and one thing in units of force: the input, or the friction where no "
    "input is a force (pushing)",
    "noise, missing, flips": "noise as a share of the positions’ standard deviation; share of positions hidden; share "
    "of samples given the wrong mode",
    "full, weak form, lasso": "ours (weak form, then shooting); its start alone; the paper’s estimator on derivatives",
    "no-mode, no-sparsity, no-pH": "one law for all modes; every candidate term kept, followed through the same "
    "windows as full; accelerations without an energy",
    "seeds": "0 to 5 were looked at while the method was built, 6 and above were not",
    "SINDy": "PySINDy on the same data, with the same modes or with none; smoothing and threshold are chosen on "
    "held-out episodes, by a rule that was settled in its favour on seeds 0 and 1",
}


def write_laws_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's `cells.jsonl` and `summary.json` there."""
    return write_page(folder, laws_page(read_results(folder)))


def laws_page(results: Results) -> str:
    """The whole page."""
    sections = [
        STYLE,
        "<h1>Laws recovered per contact mode</h1>",
        f"<p class='lead'>{escape(headline(results))}</p>",
        bar_table(results),
        f"<p class='quiet'>{escape(caveats(results))}</p>",
        "<h2>Error against noise</h2><p class='quiet'>Means over systems and seeds. A black dash is the bar.</p>",
        legend_html({m.kind: m.colour for m in results.methods()}),
        figure_html(overview_figure(results), "overview"),
        _equations(results),
        "<h2>Every method in every setting</h2>",
        f"<p class='quiet'>{escape(comparison_words(results))} <b>Bold</b> is the best of a line, "
        "<span class='no'>red</span> a line in which full is behind, = one in which it is level. † is a mean over the "
        "cells that have a number; some have none. Hover over a number for its standard deviation.</p>",
        *(comparison_table(results, metric) for metric in METRICS),
        *_cell_sections(results),
        *_theorem_sections(results),
        f"<h2>What the words mean</h2><dl>{''.join(f'<dt>{k}</dt><dd>{v}</dd>' for k, v in MEANINGS.items())}</dl>",
        _footer(results.meta),
    ]
    return page("VHyDRO: laws recovered per contact mode", sections)


# --- figures and equations ----------------------------------------------------------------------------------


def _equations(results: Results) -> str:
    """Each system's recovered law beside the true one, where the audit wrote them."""
    if not results.equations:
        return ""
    pairs = [
        f"<h3>{escape(e['task'])}</h3><div class='pair'>"
        f"<span>true</span><span>recovered, {escape(e['condition'])}</span>"
        f"<pre>{escape(e['true'].strip())}</pre><pre>{escape(e['recovered'].strip())}</pre></div>"
        for e in results.equations
    ]
    return f"<h2>The equations</h2><p class='quiet'>One seed of each system.</p>{''.join(pairs)}"


def _cell_sections(results: Results) -> list[str]:
    hardest = ([s for s in results.shown if s.source == "given"] or results.shown)[-1]
    return [
        "<h2>Coefficients</h2><p class='quiet'>Every term and seed: estimate against truth, on the line when right. At "
        "true 0 are terms that should not be there, at estimate 0 terms that were missed. Logarithmic beyond ±0.001; "
        "what is beyond ±10⁴ is at the edge. Lasso stands a little to the left, no-sparsity to the right.</p>",
        legend_html({m.title: m.colour for m in reversed(SCATTERED)}),
        figure_html(scatter_figure(results), "scatter", library=False),
        f"<h2>Supports</h2><p class='quiet'>How often each term is selected, over seeds, at {escape(hardest.title)}, "
        "from never (grey) to always (blue). The first line is the true law; its terms are bold.</p>",
        figure_html(heat_figure(results, hardest), "supports", library=False),
        "<h2>Physical constants</h2><p class='quiet'>Relative error; a dot per system and seed, a tick at the median. "
        "What is outside 10⁻⁶ to 10² is at the edge.</p>",
        figure_html(strip_figure(results, "physical_constant_error", log=True), "constants", library=False),
        "<h2>Support precision</h2><p class='quiet'>Share of the selected terms that are true; a dot per system and "
        "seed, a tick at the median.</p>",
        figure_html(strip_figure(results, "support_precision", log=False), "precision", library=False),
    ]


def _theorem_sections(results: Results) -> list[str]:
    entries = regressions(results)
    if not entries:
        return []
    return [
        f"<h2>The theorem, measured</h2><p class='quiet'>{escape(theorem_words(entries))} A dot per mode, system, "
        "seed and setting; on the line the bound would be the error itself, above it the bound holds.</p>",
        legend_html(task_colours(entries) | {"does not hold": BROKEN}),
        figure_html(bound_figure(entries), "bound", library=False),
        "<h2>Where the noise level ν comes from</h2><p class='quiet'>Share of each part, mean over regressions; at the "
        "end the median of their sum, in columns of unit root mean square.</p>",
        legend_html(dict(PARTS.values())),
        figure_html(parts_figure(entries), "parts", library=False),
    ]


def _footer(meta: Row) -> str:
    config = meta.get("config") or {}
    settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in config.items() if k not in ("out", "methods"))
    words = [
        f"commit {meta['commit']}",
        meta["device"],
        f"{meta['seconds']:,.0f} s",
        f"{meta['seeds']} seeds",
        settings,
    ]
    return f"<footer>{escape(' · '.join(w for w in words if w))}</footer>"
