"""The page of the support audit, from its result files: occlusion, branch loss, calibration, and the paper beside."""

from html import escape
from pathlib import Path

from vhydro.report.page import figure_html, legend_html, page, write_page
from vhydro.report.support_bars import hardest_table, headline, uniform_table
from vhydro.report.support_figures import (
    BROKEN,
    PAPER,
    certificate_figure,
    gate_figure,
    hidden_figure,
    lost_figure,
    metric_figure,
    reliability_figure,
)
from vhydro.report.support_film import CONTACT, PALE, reel_figure, reel_words, reels
from vhydro.report.support_results import HARDEST, Record, Results, percent, read_results
from vhydro.report.support_tables import (
    block_table,
    caveats,
    contest_words,
    level_blocks,
    loss_table,
    loss_words,
    task_blocks,
)

STYLE = f"""<style>
h3 {{ font-size: 15px; font-weight: 600; margin: 22px 0 0; }}
.bars td {{ padding-top: 5px; padding-bottom: 5px; }}
.bars th small, .blocks th small {{ font-size: 11.5px; white-space: nowrap; }}
.uniform td {{ white-space: normal; vertical-align: top; }}
.uniform td:first-child, .uniform td:last-child, .uniform td:nth-child(-n+3) {{ white-space: nowrap; }}
.blocks {{ font-size: 13px; line-height: 1.35; min-width: 980px; table-layout: fixed; }}
.blocks th, .blocks td {{ padding: 2px 5px; border-top: 0; }}
.blocks thead th {{ font-size: 12px; }}
.blocks td:first-of-type, .blocks thead tr:first-child th:nth-child(2) {{ text-align: left; }}
.blocks tbody th {{ vertical-align: top; text-align: left; }}
.blocks tbody tr:first-child > * {{ border-top: 1px solid #c9ced6; padding-top: 5px; }}
.blocks tbody tr:last-child > * {{ padding-bottom: 5px; }}
.no {{ color: {BROKEN}; font-weight: 600; }}
.paper {{ color: #6b7280; font-style: italic; }}
.blocks .paper {{ padding-left: 0; }}
.blocks .no {{ font-weight: 400; }}
.blocks thead th[colspan] {{ text-align: center; }}
.blocks thead tr:last-child th {{ text-align: right; }}
</style>"""
UNSAID = ("out", "data", "quick")  # of the settings
MEANINGS = {
    "contact": "four simulated tasks of one arm and one cube; the paper’s numbers are from its own recordings of "
    "tasks of these names",
    "sawyer-bridge": "scripted MuJoCo stand-ins for tower building, laundry layout, object search and the occlusion "
    "task; they are not the recordings that the paper used, so its numbers stand beside them for orientation",
    "matched, shift, lit": "trained over all occlusion levels; trained with at most 25 % hidden and tested at all "
    "levels; trained in full light and tested in dark spells three times as long, where guides go astray. The paper "
    "has one regime, and its rows stand beside all of ours",
    "plain": "the setting in which branches are lost, on one task a family: as lit, with guides trained "
    "three times as long and populations resampled without look-ahead; its film is of the contact that no-support "
    "loses for longest while the gates keep it",
    "readings": "places of bodies with sensor noise added; the hand and its fingers are inputs and never dark",
    "occlusion": "share of the readings that is hidden, in bursts; the same for every method",
    "adaptive": "the paper’s rule: the least λ that its guide-free certificate allows, with the learned guide",
    "conservative": "a large fixed λ, with the learned guide",
    "no-support": "λ = 0: the learned guide alone",
    "smooth": "one mode and λ = 0, with the learned guide",
    "two-sided": "ours: the two-sided certificate, with the exact conditional as guide",
    "two-sided+conformal": "the same filter, with intervals calibrated on validation episodes; its NLL is that of the "
    "density those intervals imply, or of the belief’s own where that was likelier on validation episodes that the "
    "intervals were not calibrated on",
    "support-safe": "a method that always keeps some of the model’s own prediction: all but no-support and smooth. "
    "The best is the one that meets most of the four bars, among equals the one with the larger ESS/N, then the "
    "smaller ECE",
    "ESS/N": "effective share of the particles in a step’s weights, (Σw)² / (N Σw²); every filter resamples at every "
    "step, by how likely each particle makes what comes next, so these are the weights of that step alone",
    "relative weight variance": "N Σw² / (Σw)² − 1 of a step’s weights; the empirical relative variance is that over N",
    "realised variance": "relative variance of a step’s normaliser over 32 repeated draws from the same ancestors",
    "NLL": "negative log-likelihood of the true, unoccluded reading under the belief, per standardised channel; the "
    "figures draw it straight near 0 and logarithmically far from it",
    "Cov90": "share of true readings inside the belief’s central 90 % interval",
    "ECE": "mean distance between nominal and empirical coverage over 5 %, 10 %, … 95 %",
    "λ spent": "mean share of the model’s own prediction in the proposal",
    "certified": "share of steps whose bound was within the tolerance",
    "bound": "mean bound on the relative variance over a cell’s steps whose bound is at most 1, for a larger one says "
    "nothing; a cell is above its bound "
    "where the realised variance of those steps exceeds it by more than three standard errors of the draws",
    "k̂": "Pareto shape of the largest weights; above 0.7 their mean cannot be trusted",
    "lost": "share of hidden readings that are further than 3 sensor noises from every particle and further than 5 "
    "standard deviations from the belief’s mean",
    "collapse": "NLL more than 1 nat per channel above adaptive’s, and by more than three standard errors",
    "SEM": "standard error of the mean over cells; “within one SEM” is that of the best method",
}


def write_support_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's `cells.jsonl` and `summary.json` there."""
    return write_page(folder, support_page(read_results(folder)))


def support_page(results: Results) -> str:
    """The whole page."""
    sections = [
        STYLE,
        "<h1>Support under occlusion</h1>",
        f"<p class='lead'>{escape(headline(results))}</p>",
        f"<p class='quiet'>{escape(caveats(results))}</p>",
        "<h2>The bars</h2>",
        hardest_table(results),
        uniform_table(results),
        *_comparison_sections(results),
        *_figure_sections(results),
        f"<h2>Does branch loss happen here?</h2><p>{escape(loss_words(results))}</p>",
        loss_table(results),
        *_film_sections(results),
        *_task_sections(results),
        f"<h2>What the words mean</h2><dl>{''.join(f'<dt>{k}</dt><dd>{v}</dd>' for k, v in MEANINGS.items())}</dl>",
        _footer(results.meta),
    ]
    return page("VHyDRO: support under occlusion", sections)


def _comparison_sections(results: Results) -> list[str]:
    words = (
        "<h2>Every method beside the paper’s</h2><p class='quiet'><b>Bold</b> is the best of ours at a level, "
        "<span class='no'>red</span> a number of ours that is worse than the paper’s for the same method, or for a "
        "method it does not have worse than its best at that level. Hover over a number for its standard error.</p>"
    )
    parts = [words]
    for family in results.families:
        for regime in results.regimes:
            if blocks := level_blocks(results, family, regime):
                parts += [f"<h3>{family}, {regime}</h3><p class='quiet'>{escape(contest_words(blocks))}</p>"]
                parts += [block_table(blocks, "occlusion")]
    return parts


def _figure_sections(results: Results) -> list[str]:
    colours = {m.key: m.colour for m in results.methods}
    legend = legend_html(colours)
    first, *others = results.regimes
    beside = legend_html(colours | {"paper, dotted, dots in the method’s colour": PAPER})
    metrics = [figure_html(metric_figure(results, first), f"metrics-{first}")]
    metrics += [figure_html(metric_figure(results, regime), f"metrics-{regime}", library=False) for regime in others]
    return [
        "<h2>Against occlusion</h2><p class='quiet'>Means with their standard errors. Cov90 should lie in the shaded "
        "band. The two of ours share a filter and differ in their intervals only.</p>",
        *(part for drawn in metrics for part in (beside, drawn)),
        "<h3>Hidden readings alone</h3>",
        legend,
        figure_html(hidden_figure(results), "hidden", library=False),
        "<h2>What the gate spends</h2><p class='quiet'>λ, the share of steps that it certifies, the share whose "
        "weights have too heavy a tail, and the variance of a step’s normaliser over 32 repeated draws.</p>",
        legend,
        figure_html(gate_figure(results), "gate", library=False),
        "<h2>The certificate, cell by cell</h2><p class='quiet'>A dot for each cell with a bound; on the line "
        "the bound would be the realised variance itself, above it the bound holds.</p>",
        legend_html(colours | {"above its bound beyond sampling error": BROKEN}),
        figure_html(certificate_figure(results), "certificate", library=False),
        f"<h2>Calibration at {percent(HARDEST)}</h2><p class='quiet'>Share of true readings inside each central "
        "interval; below the line a belief is too sure of itself, above it not sure enough.</p>",
        legend,
        figure_html(reliability_figure(results), "reliability", library=False),
        "<h2>Branches lost</h2><p class='quiet'>Share of hidden readings with no particle near, against occlusion.</p>",
        legend,
        figure_html(lost_figure(results), "lost", library=False),
    ]


def _film_sections(results: Results) -> list[str]:
    found = reels(results)
    if not found:
        return []
    key = {"hidden": "#e2e5ea", "contact": CONTACT, "particle with hardly any weight": PALE, "truth": "#1c1f23"}
    parts = ["<h2>One occluded contact</h2>", legend_html(key)]
    for number, reel in enumerate(found, start=1):
        parts += [
            f"<p class='quiet'>{escape(reel_words(reel))}</p>",
            figure_html(reel_figure(reel), f"film-{number}", library=False),
        ]
    return parts


def _task_sections(results: Results) -> list[str]:
    parts = []
    for family in results.families:
        for regime in results.regimes:
            if blocks := task_blocks(results, family, regime):
                parts += [f"<h3>{family}, {regime}</h3><p class='quiet'>{escape(contest_words(blocks))}</p>"]
                parts += [block_table(blocks, "task", wide=15)]
    return [f"<h2>Task by task at {percent(HARDEST)}</h2>", *parts] if parts else []


def _footer(meta: Record) -> str:
    # Paths say where a run was made and fingerprints are for machines; quick has words of its own.
    config = {k: v for k, v in (meta["config"] or {}).items() if not isinstance(v, dict) and k not in UNSAID}
    settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in config.items())
    words = [
        f"commit {meta['commit']}",
        meta["device"],
        f"{meta['seconds']:,.0f} s",
        f"{meta['seeds']} seeds",
        "small run" if meta["quick"] else "",
        settings,
    ]
    return f"<footer>{escape(' · '.join(w for w in words if w))}</footer>"
