"""The page of the laws audit: what was recovered, how well, and beside whom."""

import json
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from vhydro.printable import printable_json
from vhydro.report.page import folded
from vhydro_audits.pages import laws_figures as figures
from vhydro_audits.pages.drawing import BROKEN
from vhydro_audits.pages.frame import section, write_audit_page
from vhydro_audits.pages.laws_figures import PARTS, SCATTERED, TASK_COLOURS, pictured, setting_title
from vhydro_audits.pages.results import Place, Record, Results, read_results
from vhydro_audits.pages.tables import Line, beside, beside_table, folded_tables
from vhydro_audits.spec import LAWS, written

NEEDED = ("status", "terms", "constants", "theorem")
AGAIN = (
    "<code>make audit-laws</code> runs all of it again on simulated logs (resumable), <code>vhydro audit laws --quick "
    "--out quick</code> a small part in minutes, and <code>vhydro audit page laws</code> writes this page from the "
    "committed cells. Methods were built while looking at seeds 0 to 5; seeds 6 and above were not looked at."
)
WORDS = {
    "modes given": "noisy positions with the contact mode of every sample, the paper’s setting; velocities are hidden",
    "modes found": "from noisy positions alone: fit, smooth, segment, recover. Only the number of modes is told; modes "
    "are matched to the true ones for scoring",
    "told to every method": "candidate terms, and one thing in units of force: the input, or the friction where no "
    "input is a force (pushing)",
    "noise, missing, of labels wrong": "noise as a share of the positions’ standard deviation; share of positions "
    "hidden; share of samples that are given the wrong mode",
    "identified": "a law that predicts held-out logs as well as sensor noise allows; others are marked, with a reason",
}


def write_laws_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    every = read_results(LAWS, folder, _check)
    results, new = every.of_family("four"), every.of_family("new")
    equations = folder / "equations.json"
    pairs = printable_json(json.loads(equations.read_text("utf-8"))) if equations.exists() else []
    sections = [_overview(results), *_new_sections(new), _equations(pairs)]
    sections += [*_cell_sections(results), *_theorem_sections(results)]
    return write_audit_page(
        results, folder, "Laws recovered per contact mode", headline(results), sections, words=WORDS, again=AGAIN
    )


def _check(cell: Record) -> str:
    lacking = [name for name in NEEDED if name not in cell]
    return f"has no {', '.join(lacking)}; expected {', '.join(NEEDED)}" if lacking else ""


def headline(results: Results) -> str:
    """Full at its best and at its worst setting, beside the paper and the best of all others."""
    error = LAWS.metric("coefficient_error")
    rated = [
        (v, k) for k, p in enumerate(results.settings) if (v := results.number(p, LAWS.ours, error.key)) is not None
    ]
    if not rated:
        return "No law of the full method has a coefficient error in this run."
    best, worst = (results.settings[end(rated)[1]] for end in (min, max))
    words = (
        f"From noisy positions, full recovers the laws of {len(results.tasks())} systems whose equations are known. "
    )
    words += f"At its best ({setting_title(best)}): {_scores(results, best)}."
    return words + (f" At its worst ({setting_title(worst)}): {_scores(results, worst)}." if worst != best else "")


def _scores(results: Results, place: Place) -> str:
    """`support F1 1.000 (paper 0.978, SINDy weak 0.787) and …`, for terms and coefficients."""
    parts = []
    for metric in LAWS.metrics[:2]:
        notes = ", ".join(beside(results, Line("", place), metric, rest=False))
        value = metric.text(results.number(place, LAWS.ours, metric.key))
        parts.append(f"{metric.title} {value}" + (f" ({notes})" if notes else ""))
    return " and ".join(parts)


def _overview(results: Results) -> str:
    lines = [Line(setting_title(place), place) for place in results.settings]
    few = [line for line in lines if line.place in pictured(results)]
    legend = {m.name: m.colour for m in results.methods if m.kind != "peer"}
    legend |= {"PySINDy" + ", no modes" * ("no-modes" in m.key): m.colour for m in results.methods if m.kind == "peer"}
    tables = beside_table(results, few, LAWS.metrics) + folded_tables(results, lines, LAWS.metrics)
    words = (
        "Error against noise, means over systems and seeds. The dotted line is what the paper reports for its full "
        f"method, on logs of its own. {escape(trust_words(results))}"
    )
    return section("", words, figures.overview_figure(results), "overview", legend=legend, below=tables)


def _new_sections(results: Results) -> list[str]:
    """Systems beyond separable inertia, where the run has them: a table of every method and setting."""
    if not results.cells:
        return []
    lines = [Line(setting_title(place), place) for place in results.settings]
    metrics = (*LAWS.metrics, LAWS.metric("confident_wrong"))
    words = (
        f"{len(results.tasks())} systems whose inertia couples, changes with the pose, or is driven in part; two "
        "frictions; an impact map. Full is told which position an input drives and finds M(q), V and friction; weak is "
        "its weak form alone. The Lasso and PySINDy have no word for a coupled inertia: of them only the field is "
        f"compared. {escape(trust_words(results))}"
    )
    return [section("Beyond separable inertia", words, below=beside_table(results, lines, metrics))]


def trust_words(results: Results) -> str:
    """How many laws are wrong without being marked, and how often modes that were found are the true ones."""
    ours = [cell for cell in results.cells if cell["method"] == LAWS.ours]
    wrong = [cell for cell in ours if cell["support_f1"] is not None and cell["support_f1"] < 1]
    sure = sum(cell["status"] == "identified" for cell in wrong)
    words = (
        f"{len(wrong):,} of full’s {len(ours):,} laws have wrong terms; {sure} of these are not marked unidentified."
    )
    if shares := [100 * share for cell in ours if (share := cell.get("modes_accuracy")) is not None]:
        words += f" Modes that were found are the true ones in {fmean(shares):.1f} % of samples"
        words += f" ({min(shares):.1f} % in the worst cell)."
    return words


def _equations(pairs: Sequence[Record]) -> str:
    """Each system's recovered law beside the true one, where the audit wrote them."""
    found = [
        f"<h3>{escape(e['task'])}</h3><div class='pair'><span>true</span>"
        f"<span>recovered from positions alone, {escape(e['condition'])}</span>"
        f"<pre>{escape(e['true'].strip())}</pre><pre>{escape(e['recovered'].strip())}</pre></div>"
        for e in pairs
    ]
    return section("The equations", "One seed of each system.", below="".join(found)) if pairs else ""


def _cell_sections(results: Results) -> list[str]:
    given = [p for p in pictured(results) if p["source"] == "given"]
    hardest = (given or pictured(results))[-1]
    return [
        section(
            "Coefficients",
            "Every term and seed: estimate against truth, on the line when right. At true 0 are terms that should not "
            "be there, at estimate 0 terms that were missed. Logarithmic beyond ±0.001; what is beyond ±10⁴ is at the "
            "edge. Lasso stands a little to the left, no-sparsity to the right.",
            figures.scatter_figure(results), "scatter", legend={m.name: m.colour for m in reversed(SCATTERED)},
        ),
        section(
            "Supports",
            f"How often each term is selected, over seeds, at {escape(setting_title(hardest))}: from never (pale) to "
            "always (blue). The first line is the true law; its terms are bold.",
            figures.heat_figure(results, hardest), "supports",
        ),
        section(
            "Physical constants",
            "Relative error of each law’s constants; a dot per system and seed, a tick at the median. What is outside "
            "10⁻⁶ to 10² is at the edge.",
            figures.strip_figure(results, "physical_constant_error", log=True), "constants",
            below=folded(
                "Support precision, cell by cell: the share of the selected terms that are true",
                section("", "", figures.strip_figure(results, "support_precision", log=False), "precision"),
            ),
        ),
    ]  # fmt: skip


def _theorem_sections(results: Results) -> list[str]:
    entries = figures.regressions(results)
    if not entries:
        return []
    parts = section(
        "", "Share of each part in the noise level ν, mean over regressions; at the end the median of their sum, in "
        "columns of unit root mean square.", figures.parts_figure(entries), "parts", legend=dict(PARTS.values()),
    )  # fmt: skip
    words = (
        f"{escape(theorem_words(entries))} A dot per mode, system, seed and setting; on the line the bound would be "
        "the error itself, above it the bound holds. Dots that would lie on one another are drawn once."
    )
    legend = {**TASK_COLOURS, "does not hold": BROKEN}
    below = folded("Where the noise level comes from", parts)
    return [
        section(
            "The recovery theorem, measured", words, figures.bound_figure(entries), "bound", legend=legend, below=below
        )
    ]


def theorem_words(entries: Sequence[Record]) -> str:
    """How often the conditions and the bound held, and how wide the bound was."""
    met = [e for e in entries if e["conditions"]]
    held, supports = sum(bool(e["holds"]) for e in met), [e for e in met if e["support_condition"]]
    ratios = defaultdict(list)
    for e in met:
        if e["bound"] is not None and e["error"]:
            ratios[e["columns"]].append(e["bound"] / e["error"])
    endless = sum(e["bound"] is None for e in entries)
    words = f"The theorem’s conditions hold in {_of(len(met), len(entries))} regressions"
    words += f"; there its bound holds in {_of(held, len(met))}." if met else "."
    if ratios:
        wide = ", ".join(f"{written(median(ratios[n]), 2)} times with {n} columns" for n in sorted(ratios))
        words += f" Bound over true error, in the median: {wide}."
    recovered = sum(bool(e["support_recovered"]) for e in supports)
    words += f" The support condition holds in {_of(len(supports), len(entries))}"
    words += f"; there the support was recovered in {_of(recovered, len(supports))}." if supports else "."
    return words + (f" In {endless:,} the bound is infinite (κ is 0 up to rounding): not drawn." if endless else "")


def _of(part: int, whole: int) -> str:
    """`3 of 7 (42.8 %)`, rounded down: almost all is not all."""
    return f"{part:,} of {whole:,} ({1000 * part // whole / 10:g} %)"
