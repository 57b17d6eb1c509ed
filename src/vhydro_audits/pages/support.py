"""The page of the support audit: what happens to a contact in the dark, and the paper's numbers beside ours."""

from collections.abc import Sequence
from html import escape
from math import hypot
from pathlib import Path

from vhydro.report.page import folded, legend_html
from vhydro_audits.pages import support_figures as figures
from vhydro_audits.pages.drawing import BROKEN, PALE
from vhydro_audits.pages.frame import section, write_audit_page
from vhydro_audits.pages.levels import PAPER
from vhydro_audits.pages.results import Place, Record, Results, read_results
from vhydro_audits.pages.support_figures import DRAWN, FILMED, GATE, HARDEST, HIDDEN, LEVELS, NOMINAL, PLAIN, place_of
from vhydro_audits.pages.tables import Line, beside_table, folded_tables, paper_number
from vhydro_audits.spec import SUPPORT, percent

NLL, COV90, ECE = SUPPORT.metrics[:3]
ADAPTIVE, ABLATIONS = "adaptive", ("no-support", "smooth")
HARD_LEVELS = LEVELS[-2:]  # where the paper's no-support and smooth collapse
COLLAPSE = 1.0  # nats per channel above adaptive; the paper's smallest gap at the hard levels is 2.6
CERTAIN = 3.0  # standard errors of the difference
NEEDED = (*SUPPORT.numbers, "coverage", "film")
FILM = ("channel", "dt", "truth", "seen", "particles", "weights", "contact", "lost_at")
AGAIN = (
    "<code>make audit-support DATA=folder</code> runs all of it again on recorded logs (resumable; <code>vhydro "
    "collect</code> records them), <code>vhydro audit support --quick --out quick</code> a small part on the shipped "
    "sample, and <code>vhydro audit page support</code> writes this page from the committed cells. The contact logs "
    "are our own recordings of the paper’s tasks, the sawyer-bridge tasks scripted MuJoCo stand-ins: the setting is "
    "the paper’s, the data are not, and its numbers stand beside ours for orientation."
)
WORDS = {
    "contact": "four simulated tasks of one arm and one cube",
    "sawyer-bridge": "MuJoCo stand-ins for tower building, laundry layout, object search and the occlusion task",
    "matched, shift, lit": "trained over all occlusion levels; trained with at most 25 % hidden and tested at all "
    "levels; trained in full light and tested in dark spells three times as long. The paper has one such regime, and "
    "its rows stand beside all of ours",
    "plain": "where branches are lost, on one task a family: as lit, with guides trained three times as long and "
    "particles resampled without look-ahead. The film is of the contact that no-support loses for longest while the "
    "others keep it",
    "readings": "places of bodies with sensor noise added; the hand and its fingers are inputs and never dark",
    "occlusion": "share of the readings that is hidden, in bursts; the same for every method",
    "guide, λ": "a filter draws its particles from a guide that looks at the data; λ is the share that it draws from "
    "the model’s own prediction instead, so that no contact the model holds possible is left without particles",
    "bound": "mean bound on the relative variance over a cell’s steps whose bound is at most 1, for a larger one says "
    "nothing; a cell is above its bound where the realised variance of those steps exceeds it by more than three "
    "standard errors of the draws",
    "collapse": "NLL more than 1 nat per channel above adaptive’s, and by more than three standard errors",
    "SEM": "standard error of the mean over cells",
}


def write_support_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    results = read_results(SUPPORT, folder, _check)
    sections = [_films(results), _loss(results), _levels(results), *_figure_sections(results), _tasks(results)]
    return write_audit_page(
        results, folder, "Support under occlusion", headline(results), sections, words=WORDS, again=AGAIN
    )


def _check(cell: Record) -> str:
    """What is wrong with a cell's coverage or film."""
    if lacking := [name for name in NEEDED if name not in cell]:
        return f"has no {', '.join(lacking)}; expected {', '.join(NEEDED)}"
    coverage, film = cell["coverage"], cell["film"]
    if coverage is not None and (len(coverage) != len(NOMINAL) or None in coverage):
        return f"has {len(coverage)} coverages; expected {len(NOMINAL)} numbers"
    if film is None:
        return ""
    if lacking := [name for name in FILM if name not in film]:
        return f"has a film without {', '.join(lacking)}; expected {', '.join(FILM)}"
    lengths = {name: len(film[name]) for name in ("truth", "seen", "contact", "particles", "weights")}
    return f"has a film of lengths {lengths}; expected one entry a step in each" if len({*lengths.values()}) > 1 else ""


# --- the answer -----------------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """Ours over all levels and regimes beside the paper's best, the certificates, and where contacts are lost."""
    clauses = [clause for family in results.present("family") if (clause := _clause(results, family))]
    words = f"From full sight to {percent(HARDEST)} hidden, {'; '.join(clauses)}. " if clauses else ""
    decided = [above for cell in results.cells if (above := figures.above_bound(cell)) is not None]
    if decided:
        words += f"Of {len(decided):,} cells with a certificate {sum(decided) or 'none'} is above its bound beyond "
        words += "sampling error. "
    lost = [w for regime in (PLAIN, "shift") if (w := _regime_words(results, regime, ABLATIONS[:1]))]
    return words + (f"Without support (λ = 0), {', '.join(lost)}." if lost else "")


def place_title(place: Place) -> str:
    return f"{place['family']}, {place['regime']}, {percent(place['occlusion'])} hidden"


def _clause(results: Results, family: str) -> str:
    """`on contact the 90 % intervals of two-sided+conformal hold 0.891 to 0.905 of the readings, ECE up to 0.02 …`."""
    places = [p for p in results.settings if p["family"] == family and p["regime"] != PLAIN]
    covers, errors = (
        [v for p in places if (v := results.number(p, SUPPORT.ours, m.key)) is not None] for m in (COV90, ECE)
    )
    if not covers or not errors:
        return ""
    words = f"on {family} the 90{chr(160)}% intervals of {SUPPORT.ours} hold {COV90.text(min(covers))} to "
    words += f"{COV90.text(max(covers))} of the readings, with an ECE of at most {ECE.text(max(errors))}"
    line = Line("", place_of(family, figures.regimes(results)[0]))
    theirs = [paper_number(results, line, SUPPORT.ours, m) for m in (COV90, ECE)]
    if None in theirs:
        return words
    return words + f" (paper’s best at {percent(HARDEST)}: {COV90.text(theirs[0])} and {ECE.text(theirs[1])})"


# --- a contact lost or kept -----------------------------------------------------------------------------------------


def _films(results: Results) -> str:
    found = figures.reels(results)
    key = {
        "hidden": "var(--hairline)",
        "contact": figures.CONTACT,
        "particle with hardly any weight": PALE,
        "truth": "var(--ink)",
    }
    first, *more = [
        section("", escape(reel_words(r)), figures.reel_figure(r), f"film-{k}") for k, r in enumerate(found, 1)
    ] or [""]
    return legend_html(key) + first + "".join(folded("The same on another robot", m) for m in more) if found else ""


def reel_words(reel: figures.Reel) -> str:
    """What is shown, and when each method lost the branch."""
    cell, shown = reel.cell, [m for m in FILMED if m in reel.films]
    times = {m: cell["film"]["dt"] * step for m in shown if (step := reel.films[m].lost_at) is not None}
    lost, kept = [f"{m} loses it at {time:.2f} s" for m, time in times.items()], [m for m in shown if m not in times]
    lost += [f"{' and '.join(kept)} {'do' if len(kept) > 1 else 'does'} not lose it"] if kept else []
    where = (
        f"{cell['family']}, {cell['task']}, {cell['regime']}, {percent(cell['occlusion'])} hidden, seed {cell['seed']}"
    )
    return f"A body that is moved while nobody sees it ({where}): {'; '.join(lost)}. Chosen to show a loss."


def _loss(results: Results) -> str:
    lines = [Line(place_title(p), p) for p in results.settings if p["occlusion"] in HARD_LEVELS]
    tables = folded_tables(results, lines, (NLL, SUPPORT.metric("lost")))
    return section("Does it happen often?", escape(loss_words(results)), below=tables)


def collapses(results: Results, place: Place, method: str) -> bool | None:
    """Whether a method's NLL is far above adaptive's, beyond sampling error; None without both numbers."""
    ours, theirs = (results.number(place, m, NLL.key) for m in (method, ADAPTIVE))
    if ours is None or theirs is None:
        return None
    errors = [results.number(place, m, f"{NLL.key}_sem") or 0.0 for m in (method, ADAPTIVE)]
    return ours - theirs > max(COLLAPSE, CERTAIN * hypot(*errors))


def loss_words(results: Results) -> str:
    """In how many cases of each regime the ablations collapse, and where most is lost."""
    said = [words for regime in results.present("regime") if (words := _regime_words(results, regime))]
    if not said:
        return "This run cannot say whether branches are lost: it lacks adaptive beside no-support or smooth."
    levels = " and ".join(percent(level) for level in HARD_LEVELS)
    paper = "In the paper both collapse in all of them; here the data are not the paper’s."
    return f"With {levels} hidden, {'; '.join(said)}. {paper} {_most_lost(results)}"


def _regime_words(results: Results, regime: str, methods: Sequence[str] = ABLATIONS) -> str:
    """`in lit no-support collapses in 0 of 4 cases and smooth in 4 of 4 cases`."""
    parts = []
    for method in methods:
        places = [place_of(f, regime, o) for f in results.present("family") for o in HARD_LEVELS]
        found = [verdict for place in places if (verdict := collapses(results, place, method)) is not None]
        parts += [f"{method} collapses in {sum(found)} of {len(found)} cases"] if found else []
    return f"in {regime} {' and '.join(parts)}" if parts else ""


def _most_lost(results: Results) -> str:
    rows = [row for row in results.rows if row.get("task") is None and row.get("lost")]
    if not rows:
        return "No reading of any method was lost."
    worst = max(rows, key=lambda row: row["lost"])
    where = f"{worst['method']} on {worst['family']}, {worst['regime']}, {percent(worst['occlusion'])} hidden"
    return f"The largest share of hidden readings with no particle near is {100 * worst['lost']:.3g} %: {where}."


# --- levels, gate and certificates ----------------------------------------------------------------------------------


def _levels(results: Results) -> str:
    settings = figures.settings_of(results)
    first = "shift" if "shift" in figures.regimes(results) else figures.regimes(results)[0]
    drawn = {
        r: figures.occlusion_figure(results, [s for s in settings if s[1] == r], DRAWN)
        for r in figures.regimes(results)
    }
    others = [folded(f"The same in {r}", section("", "", f, f"metrics-{r}")) for r, f in drawn.items() if r != first]
    hidden = folded(
        "Hidden readings alone", section("", "", figures.occlusion_figure(results, settings, HIDDEN), "hidden")
    )
    lines = [Line(place_title(p), p) for p in results.settings]
    few = [e for e in lines if e.place["occlusion"] == HARDEST and results.row(e.place, SUPPORT.ours)]
    tables = (beside_table(results, few, SUPPORT.metrics) if few else "") + folded_tables(
        results, lines, SUPPORT.metrics
    )
    words = (
        "Means with their standard errors, trained with at most a quarter hidden (shift) unless another regime is "
        "named. Cov90 belongs on its dotted line. two-sided and two-sided+conformal share a filter and differ in their "
        "intervals; no other method is calibrated, so NLL, Cov90 and ECE compare a calibrated belief with raw ones."
    )
    legend = _colours(results) | {"paper, dotted, dots in the method’s colour": PAPER}
    below = "".join(others) + hidden + tables
    return section(
        "From full sight to nearly dark", words, drawn[first], f"metrics-{first}", legend=legend, below=below
    )


def _colours(results: Results) -> dict[str, str]:
    return {m.key: m.colour for m in results.methods}


def _figure_sections(results: Results) -> list[str]:
    colours, settings = _colours(results), figures.settings_of(results)
    return [
        section(
            f"Calibration with {percent(HARDEST)} hidden",
            "Share of true readings inside each central interval; below the line a belief is too sure of itself, above "
            "it not sure enough.",
            figures.reliability_figure(results), "reliability", legend=colours,
        ),
        section(
            "The certificate, cell by cell",
            "The bound that a filter states against the variance that it has, over 32 repeated draws. On the line the "
            "bound would be the variance itself, above it the bound holds. Dots that would lie on one another are "
            "drawn once.",
            figures.certificate_figure(results), "certificate", legend=colours | {"above its bound": BROKEN},
            below=folded(
                "What the gate spends: λ, certified steps, heavy tails, variance",
                section("", "", figures.occlusion_figure(results, settings, GATE), "gate", legend=colours),
            ),
        ),
    ]  # fmt: skip


def _tasks(results: Results) -> str:
    lines = [
        Line(f"{SUPPORT.paper_tasks.get(task, task)}, {r}", place_of(f, r), task)
        for f, r in figures.settings_of(results)
        for task in results.tasks(f)
        if any(results.row(place_of(f, r), m.key, task) for m in results.methods)
    ]
    words = f"The tasks have the paper’s names here; all numbers are with {percent(HARDEST)} hidden."
    tables = folded_tables(results, lines, SUPPORT.metrics)
    return section("Task by task", words, below=tables) if lines else ""
