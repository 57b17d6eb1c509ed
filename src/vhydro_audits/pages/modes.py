"""The page of the modes audit: modes found without labels, beside labels, peers and the paper."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np

from vhydro.report.page import folded, legend_html, table_html
from vhydro_audits.pages import modes_figures as figures
from vhydro_audits.pages.drawing import BROKEN, PALE
from vhydro_audits.pages.frame import section, write_audit_page
from vhydro_audits.pages.modes_figures import CONFIGURATION, HALF, LIT, POINT, PROXY, REGIMES, ours_at, place_of
from vhydro_audits.pages.results import Record, Results, read_results
from vhydro_audits.pages.tables import Line, beside, beside_table, folded_tables, standing
from vhydro_audits.spec import MODES, SPACE, percent, written

ARI, CHANGES = MODES.metric("ari"), MODES.metric("change_point_f1")
READINGS = ("modes", "touching", "contact", "regime")
ONCE = {"kinds": "touching"}  # what older runs called it
NOTHING = 0.01  # an ARI of which none can be lost
TELLING = np.log10(0.5)  # a larger bound does not even say that the mode is the likeliest
ROUNDING = 1e-9
AGAIN = (
    "<code>make audit-modes DATA=folder</code> runs all of it again on recorded logs (resumable; <code>vhydro "
    "collect</code> records them), <code>vhydro audit modes --quick --out quick</code> a small part on the shipped "
    "sample, and <code>vhydro audit page modes</code> writes this page from the committed cells.</p><p>What to know "
    "before believing the numbers: channels and noise floor of ours were chosen after looking at scores on the four "
    "maniskill tasks, the touch point of cloths and the reading of heights after those of the sawyer-bridge ones. "
    "Scores of the unseen tasks were known by then, and heights matter in StackCube; nothing was chosen by them. The "
    "floor of joints, how readings are chosen and two conditions of Thm 2 were set after a first run over most of "
    "these divisions had been seen. The number of modes was given to every method but auto and no-mode, and changes "
    "was told how many changes each log has. How modes are read for each kind of label was chosen on labelled "
    "validation logs, for every method by the same rule, though only ours is read with heights (what stands on what). "
    "The sawyer-bridge tasks are scripted MuJoCo stand-ins, not the recordings that the paper used, and the maniskill "
    "logs are our own recordings: the paper’s numbers stand beside ours for orientation."
)
WORDS = {
    CONFIGURATION: "labels: which bodies touch, from the simulator’s forces: the truth that the modes should be",
    "regime": "labels: free, impact (three rows around every make and break) or sustained, from the same forces",
    PROXY: "labels of the paper: a smoothed score of how far objects, hand and action move, cut at two thresholds that "
    "agree best with the forces on validation logs. It is a guess at contact, not contact",
    "maniskill": "the paper’s four simulated tasks, recorded by us",
    "unseen": "three further tasks, by which nothing was chosen",
    "sawyer-bridge": "MuJoCo stand-ins for tower building, laundry layout, object search and the occlusion task",
    "half hidden": "bodies are out of sight half of the time in test logs, in bursts; every method learns in full "
    "sight, and hand, fingers and joints are always seen",
    "reading": "how found modes are read for one kind of label: as they are (modes); by which bodies touch, "
    "or in older runs by whether any does and whether any stands on something else (touching); in touch or not "
    "(contact); free, impact and sustained, with "
    "three rows around makes and breaks (regime). The best on validation logs by the sum of mode F1, ARI and "
    "change-point F1 is taken. Of a peer’s modes, that in which most logs begin is taken for free",
    "Thm 2": "the paper’s bound on the probability of a wrong mode at the end of a segment; its conditions are that "
    "every wrong mode is told apart and that the residuals do not contradict the constants measured on validation "
    "logs. Segments are those of the configuration, where one mode has 95 % of its validation rows; the others count "
    "as segments whose conditions fail. With probability 0.95 the bound holds on all segments of a division at once, "
    "so that a miss in a few of 440 divisions (both sights) would not refute it. It is given the hand’s path and the "
    "gaps that drive fingers and joints: inputs here, though encoders measured them",
    "ε_q": "divergence of the filter’s posterior q at the segment’s end from the clamped one that the theorem is about",
    "SEM": "standard error of the mean over cells; a lead is “beyond one SEM” where it exceeds that of the difference, "
    "both taken as independent",
}


def write_modes_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    results = read_results(MODES, folder, _check)
    sections = [
        _answer(results),
        _timelines(results),
        *_figure_sections(results),
        _theorem(results),
        _readings(results),
    ]
    return write_audit_page(
        results, folder, "Contact modes without labels", headline(results), sections, words=WORDS, again=AGAIN
    )


def _check(cell: Record) -> str:
    """What is wrong with the paths or the theorem's points of a cell."""
    for path in filter(None, (cell.get("shown"), cell.get("truth"))):
        starts, values, rows = path["starts"], path["values"], path["rows"]
        rising = all(a < b for a, b in pairwise([-1, *starts, rows]))
        if len(starts) != len(values) or starts[:1] != [0] or not rising:
            return (
                f"has a path of {rows} rows with starts {starts[:5]}; expected 0 first, then rising, a value for each"
            )
    points = (cell.get("theorem") or {}).get("points") or []
    if any(len(point) != len(POINT) for point in points):
        return f"has points of Thm 2 of another length; expected {len(POINT)} numbers each"
    return ""


# --- the answer -----------------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """ARI of full against the contacts and against the paper's labels, beside the best peer and the paper."""
    clauses = []
    for labels, words in ((CONFIGURATION, "the simulator’s contacts"), (PROXY, "the paper’s proxy labels")):
        parts = []
        for family in results.present("family"):
            value = results.number(place_of(family, labels), MODES.ours, ARI.key)
            if value is not None:
                notes = ", ".join(beside(results, Line("", place_of(family, labels)), ARI, rest=False))
                parts.append(f"{ARI.text(value)} on {family}" + (f" ({notes})" if notes else ""))
        clauses += [f"against {words} full has an ARI of {'; '.join(parts)}"] if parts else []
    text = ". ".join(f"{c[0].upper()}{c[1:]}" for c in clauses) or "Full was not run in full sight"
    found = [s.side for labels in results.present("labels") for line in task_lines(results, labels)
             for metric in (ARI, CHANGES) if (s := standing(results, line, metric))]  # fmt: skip
    return text + (
        f". Another method is ahead in {found.count(-1)} of {len(found)} comparisons by task." if found else "."
    )


def task_lines(results: Results, labels: str) -> list[Line]:
    """A line for each task and sight."""
    return [
        Line(task + (", half hidden" if level else ""), place_of(family, labels, level), task)
        for family in results.present("family")
        for task in results.tasks(family)
        for level in results.present("occlusion")
    ]


def _answer(results: Results) -> str:
    families, levels = results.present("family"), results.present("occlusion")
    few = [
        Line(f"{family}, {labels} labels", place_of(family, labels))
        for labels in (CONFIGURATION, PROXY)
        for family in families
        if results.row(place_of(family, labels), MODES.ours)
    ]
    tables = beside_table(results, few, MODES.metrics) if few else ""
    for labels in results.present("labels"):
        means = [Line(f"{f}, all{', half hidden' * bool(o)}", place_of(f, labels, o)) for f in families for o in levels]
        lines = [*means, *task_lines(results, labels)]
        every = folded_tables(results, lines, (*MODES.metrics, *MODES.further))
        tables += folded(f"Every method, metric and task against the {labels} labels", every)
    words = (
        "ARI against the contact configuration in full sight (dot) and with bodies hidden half of the time (ring), "
        f"mean over tasks and seeds. {escape(loss_words(results))}"
    )
    return section("", words, figures.dark_figure(results), "dark", below=tables)


def loss(results: Results, family: str, method: str) -> float | None:
    """How much ARI is lost when half is hidden; None without both numbers, or with nothing to lose."""
    bright, dark = (results.number(place_of(family, CONFIGURATION, o), method, ARI.key) for o in (LIT, HALF))
    return None if bright is None or dark is None or bright < NOTHING else bright - dark


def loss_words(results: Results) -> str:
    """What full and every other method lose in the dark, family by family."""
    parts = []
    for family in results.present("family"):
        lost, others = loss(results, family, MODES.ours), {m: loss(results, family, m) for m in MODES.rivals}
        there = {m: v for m, v in others.items() if v is not None}
        if lost is not None and there:
            words = ", ".join(f"{m} {ARI.text(there[m])}" for m in sorted(there, key=lambda m: there[m]))
            parts.append(f"on {family} full loses {ARI.text(lost)} ({words})")
    return f"When half is hidden, {'; '.join(parts)}." if parts else ""


# --- pictures -------------------------------------------------------------------------------------------------------


def _timelines(results: Results) -> str:
    """One log of every task, the first of each family open."""
    shown, hidden = [], []
    for family in results.present("family"):
        for k, task in enumerate(results.tasks(family)):
            figure = figures.timeline_figure(results, family, task)
            if figure is not None:
                legend = figures.class_colours(figures.classes_of(results, family, task))
                words = _coupling_words(results, family, task)
                part = f"<h3>{escape(task)} <span class='quiet'>{family}</span></h3>"
                (hidden if k else shown).append(part + section("", words, figure, f"timeline-{task}", legend=legend))
    if not shown:
        return ""
    words = (
        "The first test log of the first seed, in full sight. Above, the kinematic score with its two thresholds "
        "(red). Methods are drawn as they are read for the configuration; each mode has the colour that most of its "
        "rows have in all test logs. A gap is a change."
    )
    regimes = legend_html({f"{name} (regime, proxy)": colour for name, colour in REGIMES.items()})
    more = folded(f"The other {len(hidden)} tasks", "".join(hidden)) if hidden else ""
    return section("One log of every task", words, below=regimes + "".join(shown) + more)


def _coupling_words(results: Results, family: str, task: str) -> str:
    """What each mode of full couples, where the cell says."""
    words = next((c["words"] for c in ours_at(results, family, task, CONFIGURATION, "words")), [])
    said = " · ".join(f"{k} {escape(word)}" for k, word in enumerate(words))
    return f"<span class='quiet'>Full’s modes, before they are read: {said}.</span>" if said else ""


def _figure_sections(results: Results) -> list[str]:
    confusions, scores = figures.confusion_figure(results), figures.histogram_figure(results)
    parts = []
    if confusions:
        words = (
            "A line for each configuration: the mode matched to it, and in per cent what its rows were by the forces "
            "(columns, in the same order). Summed over seeds with the same configurations, in full sight."
        )
        parts += [section("What the modes of full, as read, truly were", words, confusions, "confusions")]
    if scores:
        words = (
            "Test rows of each true regime by the paper’s kinematic score; each regime’s rows add up to one. Dotted: "
            "the two thresholds, medians over seeds. Where regimes lie on one another no thresholds could tell them "
            "apart."
        )
        parts += [section("The kinematic score and its thresholds", words, scores, "scores", legend=REGIMES)]
    return parts


# --- the theorem ----------------------------------------------------------------------------------------------------


def _theorem(results: Results) -> str:
    figure = figures.theorem_figure(results)
    words = (
        f"{escape(theorem_words(results))} On the line the bound would be the misassignment itself, above it the bound "
        "holds. Segments that would lie on one another are one dot; what is below 10⁻³⁰⁰ is at the edge."
    )
    legend = {"conditions hold": figures.SOUND, "conditions fail": PALE, "does not hold": BROKEN}
    return section("Thm 2, measured", words, figure, "theorem", legend=legend) if figure else ""


def theorem_words(results: Results) -> str:
    """How often the conditions hold, how telling the bound is then, and what the variational transfer adds."""
    found = figures.theorems(results)
    segments, conditions, held = (sum(t[name] for t in found) for name in ("segments", "conditions", "held"))
    if not conditions:
        return "The theorem’s conditions hold on no segment."
    share = f"{100 * conditions / segments:.0f}{SPACE}%"
    words = [f"The theorem’s conditions hold on {conditions:,} of {segments:,} segments ({share}); there its bound "]
    words[0] += f"holds on {held:,}."
    points = figures.points_of(found)
    kept = points[points[:, figures.CONDITIONS] == 1]
    certain = int((kept[:, [figures.BOUND, figures.REALISED]] <= figures.SMALLEST).all(1).sum())
    words.append(
        f"It is below one half on {(kept[:, figures.BOUND] < TELLING).sum():,} of these {len(kept):,}; on {certain:,} "
        "bound and misassignment are both at most 10⁻³⁰⁰, where they are no longer told apart."
    )
    moved = kept[~np.isnan(kept[:, [figures.EPSILON, figures.Q_BOUND, figures.Q_REALISED]]).any(1)]
    if len(moved):
        within = int((moved[:, figures.Q_REALISED] <= moved[:, figures.Q_BOUND] + ROUNDING).sum())
        middle, high = (written(float(v), 2) for v in np.quantile(moved[:, figures.EPSILON], [0.5, 0.95]))
        words.append(
            f"For the filter’s own posterior q the transfer term ε_q is {middle} in the median and {high} at "
            f"{percent(0.95)}; the transferred bound holds on {within:,} of {len(moved):,}, and is below one half on "
            f"{(moved[:, figures.Q_BOUND] < 0.5).sum():,}."
        )
    return " ".join(words)


# --- readings -------------------------------------------------------------------------------------------------------


def _readings(results: Results) -> str:
    words = "In how many cells each reading was chosen; in full sight, scores as read and (italic) as they are."
    return folded("How modes are read, and what that adds", f"<p class='quiet'>{words}</p>{reading_table(results)}")


def reading_table(results: Results) -> str:
    """How often each reading was chosen, and the scores as read and of the modes as they are, in full sight."""
    pairs = [(family, metric) for family in results.present("family") for metric in (ARI, CHANGES)]
    head = ["", *READINGS, *(f"{family}<br>{metric.title}" for family, metric in pairs)]
    body = [
        _reading_line(results, labels, m.key, pairs) for labels in results.present("labels") for m in results.methods
    ]
    return table_html(head, body, kind="dense")


def _reading_line(results: Results, labels: str, method: str, pairs: Sequence) -> list[str]:
    places = [place_of(family, labels) for family in results.present("family")]
    counts = Counter(
        ONCE.get(c.get("reading", ""), c.get("reading")) for place in places for c in results.at(place, method)
    )
    line = [f"{labels}, {method}", *(str(counts[reading] or "·") for reading in READINGS)]
    for family, metric in pairs:
        raw = results.number(place_of(family, labels), method, f"raw_{metric.key}")
        read = metric.text(results.number(place_of(family, labels), method, metric.key))
        line.append(f"{read}<i>{metric.text(raw)}</i>")
    return line
