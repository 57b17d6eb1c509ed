"""The page of the modes audit, from its result files: found modes beside labels, peers and the paper."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure

from vhydro.report.modes_bars import bar_tables, caveats, headline, theorem_words
from vhydro.report.modes_figures import (
    PALE,
    SOUND,
    confusion_figure,
    dark_figure,
    histogram_figure,
    theorem_figure,
)
from vhydro.report.modes_results import (
    CONFIGURATION,
    HALF,
    LABELS,
    LIT,
    OURS,
    PROXY,
    REGIME,
    REGIMES,
    SIGHT,
    Place,
    Record,
    Results,
    read_results,
)
from vhydro.report.modes_tables import (
    block_table,
    contest_words,
    family_blocks,
    published_blocks,
    reading_table,
    task_table,
)
from vhydro.report.modes_timeline import class_colours, classes_of, timeline_figure
from vhydro.report.page import figure_html, legend_html, page, write_page
from vhydro.report.support import STYLE as SHARED_STYLE
from vhydro.report.support_figures import BROKEN

STYLE = f"""{SHARED_STYLE}<style>
.blocks {{ table-layout: auto; }}
.tasks th, .tasks td {{ padding: 2px 3px; }}
.tasks thead tr:last-child th {{ font-size: 11px; }}
.tasks .first {{ padding-left: 14px; }}
.tasks td:first-of-type {{ text-align: right; }}
.tasks .family th {{ color: #1c1f23; font-weight: 600; padding-top: 10px; border-top: 0; }}
.rest td:nth-child(n+2), .rest th:nth-child(n+2) {{ text-align: left; }}
.rest td {{ white-space: normal; }}
.timeline {{ margin-bottom: 22px; }}
</style>"""
Part = str | tuple[Figure, str]  # HTML, or a figure and its name
UNSAID = ("out", "data", "quick")  # of the settings
MEANINGS = {
    "configuration": "which bodies touch, from the simulator’s forces: the truth that the modes should be",
    "regime": "free, impact (three rows around every make and break) or sustained, from the same forces",
    "proxy": "the paper’s labels: a smoothed score of how far objects, hand and action move, cut at two thresholds. "
    "Its constants are those that agree best with the forces on validation logs. It is a guess at contact, not contact",
    "maniskill": "the paper’s four simulated tasks; its numbers are from its own recordings of them",
    "unseen": "three further tasks, which nobody looked at while channels were chosen",
    "sawyer-bridge": "scripted MuJoCo stand-ins for tower building, laundry layout, object search and the occlusion "
    "task; they are not the recordings that the paper used, so its numbers stand beside them for orientation",
    "full": "ours, the number of modes given",
    "auto": "ours, the number of modes chosen",
    "particles": "ours by 64 particles, with a learned guide and the paper’s adaptive λ",
    "no-support": "the same guide with λ = 0",
    "no-mode": "one mode; heights still tell what stands on something, which is all that it can find",
    "hmm": "hidden Markov model on the paper’s kinematic features",
    "ar-hmm, slds": "autoregressive hidden Markov model, and switching linear system, on our channels",
    "changes": "change points on our channels, told the true number of changes of every test log",
    "baseline": "a peer (hmm, ar-hmm, slds, changes) or an ablation (no-support, no-mode). One whose ARI in full sight "
    "is below 0.01 has nothing to lose in the dark, and its loss is not compared",
    "mode F1": "mean over labels of the F1 with the mode that is matched to it, one to one",
    "ARI": "adjusted Rand index over rows: 1 for equal partitions, 0 on average for unrelated ones",
    "change points": "F1 of found against true changes, at most 2 (or 5) rows apart",
    "purity": "share of rows that have the most frequent label of their found segment; many short segments are pure "
    "whatever they are, so read it beside over",
    "over, under": "extra found segments for each true one, and extra true segments for each found one",
    "modes": "how many different modes the test logs use",
    "hidden": "share of the time that bodies are out of sight in test logs, in bursts; every method learns in full "
    "sight, and hand, fingers and joints are always seen",
    "reading": "how found modes are read for one kind of label: as they are (modes); by what the hand is on and "
    "whether something stands on something else, which heights tell (kinds); in touch or not (contact); free, impact "
    "and sustained, with a window of three rows around makes and breaks (regime). The best on validation logs by the "
    "sum of mode F1, ARI and change-point F1 is taken. Ours say what they couple, and heights tell in kinds, contact "
    "and regime what stands on something else than it began on; of a peer’s modes, that in which most logs begin is "
    "taken for free, and it has neither kinds nor heights",
    "Thm 2": "the paper’s bound on the probability of a wrong mode at the end of a segment; its conditions are that "
    "every wrong mode is told apart and that the residuals do not contradict the constants measured on validation "
    "logs. Segments are those of the configuration, where one mode has 95 % of its validation rows; the others count "
    "as segments whose conditions fail. With probability 0.95 the bound holds on all segments of a division at once, "
    "so that a miss in a few of 440 divisions (both sights) would not refute it. It is given the hand’s path and the "
    "gaps that drive fingers and joints: inputs here, though encoders measured them",
    "ε_q": "divergence of the filter’s posterior q at the segment’s end from the clamped one that the theorem is about",
    "SEM": "standard error of the mean over cells; a lead is “beyond one SEM” where it exceeds that of the "
    "difference, both taken as independent",
}


def write_modes_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's `cells.jsonl` and `summary.json` there."""
    return write_page(folder, modes_page(read_results(folder)))


def modes_page(results: Results) -> str:
    """The whole page."""
    sections: list[Part] = [
        STYLE,
        "<h1>Contact modes without labels</h1>",
        f"<p class='lead'>{escape(headline(results))}</p>",
        *(f"<p class='quiet'>{escape(words)}</p>" for words in caveats(results)),
        f"<h2>The bars</h2>{bar_tables(results)}",
        *_timeline_sections(results),
        *_task_sections(results),
        *_family_sections(results),
        *_figure_sections(results),
        "<h2>Readings</h2><p class='quiet'>In how many cells each reading was chosen, and in full sight the scores as "
        "read and, in italics, of the modes as they are.</p>",
        reading_table(results),
        f"<h2>What the words mean</h2><dl>{''.join(f'<dt>{k}</dt><dd>{v}</dd>' for k, v in MEANINGS.items())}</dl>",
        _footer(results.meta),
    ]
    return page("VHyDRO: contact modes without labels", _rendered(sections))


# --- parts --------------------------------------------------------------------------------------------------


def _rendered(parts: Sequence[Part]) -> list[str]:
    """Every part as HTML; the first figure, whichever that is, brings the drawing library."""
    first = next((k for k, part in enumerate(parts) if not isinstance(part, str)), None)
    return [p if isinstance(p, str) else figure_html(*p, library=k == first) for k, p in enumerate(parts)]


def _timeline_sections(results: Results) -> list[Part]:
    parts: list[Part] = [
        "<h2>One log of every task</h2><p class='quiet'>The first test log of the first seed, in full sight. Above, "
        "the kinematic score with its two thresholds (red). Methods are drawn as they are read for the configuration; "
        "each of their modes has the colour that most of its rows have in all test logs. A white line is a change.</p>",
        legend_html({f"{name} (regime, proxy)": colour for name, colour in REGIMES.items()}),
    ]
    for family in results.families:
        for task in results.tasks(family):
            figure = timeline_figure(results, family, task)
            if figure is not None:
                parts += [f"<h3>{escape(task)} <small class='quiet'>{family}</small></h3>"]
                parts += [legend_html(class_colours(classes_of(results, family, task)))]
                parts += [_coupling_words(results, family, task), (figure, f"timeline-{task}")]
    return parts if len(parts) > 2 else []


def _coupling_words(results: Results, family: str, task: str) -> str:
    """What each mode of full couples, where the cell says."""
    cells = results.at(Place(family, LIT, CONFIGURATION, OURS), task)
    words = next((c.words for c in cells if c.words), [])
    said = " · ".join(f"{k} {escape(word)}" for k, word in enumerate(words))
    return f"<p class='quiet'>Full’s modes, before they are read: {said}.</p>" if said else ""


def _task_sections(results: Results) -> list[str]:
    parts = [
        "<h2>Task by task</h2><p class='quiet'><b>Bold</b> is the best of a line; full is <span class='no'>red</span> "
        "where a baseline is ahead of it. Hover over a number for its standard error.</p>"
    ]
    for labels in reversed(results.labels):
        parts += [f"<h3>{labels}</h3><p class='quiet'>{escape(contest_words(results, labels))}</p>"]
        parts += [task_table(results, labels)]
    return parts


def _family_sections(results: Results) -> list[str]:
    parts = [
        "<h2>Families beside the paper’s rows</h2><p class='quiet'>The paper has the proxy in full sight alone. "
        "<b>Bold</b> is the best of ours, <span class='no'>red</span> a number that is worse than the paper’s for the "
        "same method.</p>"
    ]
    open_ones = {f"{labels}, {SIGHT[LIT]}": family_blocks(results, labels, LIT) for labels in (PROXY, CONFIGURATION)}
    folded = {"proxy by task, beside the paper’s": published_blocks(results)}
    folded |= {f"regime, {SIGHT[LIT]}": family_blocks(results, REGIME, LIT)}
    folded |= {f"{labels}, {SIGHT[HALF]}": family_blocks(results, labels, HALF) for labels in LABELS}
    parts += [f"<h3>{name}</h3>{block_table(blocks)}" for name, blocks in open_ones.items() if blocks]
    return parts + [
        f"<details><summary>{name[0].upper()}{name[1:]}</summary>{block_table(blocks)}</details>"
        for name, blocks in folded.items()
        if blocks
    ]


def _figure_sections(results: Results) -> list[Part]:
    drawn = [
        (
            "<h2>The score and its thresholds</h2><p class='quiet'>Test rows of each true regime by their kinematic "
            "score; each regime’s rows add up to one. Dotted: the two thresholds, medians over seeds. Where regimes "
            "lie on one another no thresholds could tell them apart.</p>" + legend_html(REGIMES),
            histogram_figure(results),
            "scores",
        ),
        (
            "<h2>What the modes of full, as read, truly were</h2><p class='quiet'>A line for each configuration: the "
            "mode matched to it, and in per cent what its rows were by the forces (columns, in the same order). Summed "
            "over seeds with the same configurations, in full sight.</p>",
            confusion_figure(results),
            "confusions",
        ),
        (
            "<h2>Hidden half of the time</h2><p class='quiet'>ARI against configuration, in full sight (full dot) and "
            "with bodies hidden half of the time (ring).</p>",
            dark_figure(results),
            "dark",
        ),
        (
            f"<h2>Thm 2, measured</h2><p class='quiet'>{escape(theorem_words(results))} On the line the bound would be "
            "the misassignment itself, above it the bound holds. Segments that would lie on one another are one dot; "
            "what is below 10⁻³⁰⁰ is at the edge.</p>"
            + legend_html({"conditions hold": SOUND, "conditions fail": PALE, "does not hold": BROKEN}),
            theorem_figure(results),
            "theorem",
        ),
    ]
    there = [(words, (figure, name)) for words, figure, name in drawn if figure is not None]
    return [part for pair in there for part in pair]


def _footer(meta: Record) -> str:
    # Paths say where a run was made and fingerprints are for machines.
    config = {k: v for k, v in (meta.get("config") or {}).items() if not isinstance(v, dict) and k not in UNSAID}
    settings = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in config.items() if v is not None)
    words = [
        f"commit {meta['commit']}" if meta.get("commit") else "",
        meta.get("device") or "",
        f"{meta['seconds']:,.0f} s" if meta.get("seconds") is not None else "",
        f"{meta['seeds']} seeds" if meta.get("seeds") is not None else "",
        "small run" if meta.get("quick") else "",
        settings,
    ]
    return f"<footer>{escape(' · '.join(w for w in words if w))}</footer>"
