"""The page of the modes audit: modes found without labels, beside labels, peers and the paper."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np

from vhydro.report.charts import Key, figure
from vhydro.report.page import table_html
from vhydro_audits.pages import modes_figures as figures
from vhydro_audits.pages.frame import AuditPage, Card, Claim, write_audit_page
from vhydro_audits.pages.modes_conditions import conditions_claim
from vhydro_audits.pages.modes_figures import (
    CHOSEN,
    CLEAN,
    CONFIGURATION,
    FIXED,
    HALF,
    POINT,
    PROXY,
    REGIMES,
    ours_at,
    place_of,
)
from vhydro_audits.pages.results import Record, Results, read_results
from vhydro_audits.pages.tables import (
    Line,
    best_peer,
    claim_table,
    folded_tables,
    scores_of,
    standing,
    standing_words,
)
from vhydro_audits.spec import MODES, SPACE, percent, written

ARI, CHANGES, F1 = MODES.metric("ari"), MODES.metric("change_point_f1"), MODES.metric("mode_f1")
READINGS = ("modes", "touching", "contact", "regime")
NOTHING = 0.01  # an ARI of which none can be lost
TELLING = np.log10(0.5)  # a larger bound does not even say that the mode is the likeliest
ROUNDING = 1e-9
COMMAND = "make audit-modes DATA=folder"
ABOUT = (
    "Logs are recorded with <code>vhydro collect</code>, those of the noisy policy in a folder <code>noisy</code> "
    "below the others; a run that was stopped goes on where it was, and one of fewer seeds is added to. <code>vhydro "
    "audit modes --quick --out quick</code> runs a small part on the shipped sample, <code>vhydro audit page "
    "modes</code> writes this page.</p><p>What to know before believing the numbers: the model was built by looking "
    "at divisions 0 to 9 of the maniskill, unseen and sawyer tasks; these are divisions from 100 on, of the same "
    "logs. How fingers are judged was changed once after a score of division 100 of search had been seen. Nobody "
    "looked at the new tasks while the model was built. Ours chooses its number of modes; without labels the peers "
    "are given the number that ours found, but for the sticky HDP-HMM, which finds its own. The reading of modes is "
    "settled in advance: which bodies touch for the configuration, the regime for the two others; only ours is read "
    "with heights (what stands on what). Where a table says that labels chose, the number of modes was told to peers "
    "and to full, and the reading is the best on labelled validation logs, for every method by the same rule. The "
    "sawyer tasks are scripted MuJoCo stand-ins, not the recordings that the paper used, and the maniskill logs are "
    "our own recordings: the paper’s numbers stand beside ours for orientation."
)
WORDS = {
    CONFIGURATION: "labels: which bodies touch, from the simulator’s forces: the truth that the modes should be",
    "regime": "labels: free, impact (three rows around every make and break) or sustained, from the same forces",
    PROXY: "labels of the paper: a smoothed score of how far objects, hand and action move, cut at two thresholds that "
    "agree best with the forces on validation logs. It is a guess at contact, not contact",
    "maniskill": "the paper’s four simulated tasks, recorded by us",
    "unseen": "three further tasks; their scores were known while the model was built",
    "new": "tasks of other scenes, on which the readings of heights and of coasting were settled",
    "sawyer": "MuJoCo stand-ins for tower building, laundry layout, object search and the occlusion task",
    "half hidden": "bodies are out of sight half of the time in test logs, in bursts; every method learns in full "
    "sight, and hand, fingers and joints are always seen",
    "noise": "white, added to every place of every body in learning, choosing and test logs alike; hand, fingers and "
    "joints are exact",
    "10 Hz": "every other row of the logs, in learning and testing",
    "5 logs": "four logs to learn from and one to choose by",
    "noisy policy": "learned on planned demonstrations, tested on others with smooth noise on the joint targets, many "
    "of which fail",
    "reading": "what found modes are taken to say for one kind of label: as they are (modes); which bodies touch "
    "(touching); in touch or not (contact); free, impact and sustained, with three rows around makes and breaks "
    "(regime). Fixed: settled in advance. Where labels chose it, the best on validation logs by the sum of mode F1, "
    "ARI and change-point F1. Of a peer’s modes, that in which most logs begin is taken for free",
    "simulator": "the simulator’s own contacts, read in the same ways: what a segmenter that finds every contact would "
    "score against the paper’s labels",
    "Thm 2": "the paper’s bound on the probability of a wrong mode at the end of a segment; its conditions are that "
    "every wrong mode is told apart and that the residuals do not contradict the constants measured on validation "
    "logs. Segments are those of the configuration, where one mode has 95 % of its validation rows; the others count "
    "as segments whose conditions fail. With probability 0.95 the bound holds on all segments of a division at once, "
    "so that a miss in one of twenty divisions would not refute it. It is given the hand’s path and the "
    "gaps that drive fingers and joints: inputs here, though encoders measured them",
    "ε_q": "divergence of the filter’s posterior q at the segment’s end from the clamped one that the theorem is about",
    "SEM": "standard error of the mean over cells; a lead is “beyond one SEM” where it exceeds that of the difference, "
    "both taken as independent",
}


def write_modes_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    return publish(folder)[0]


def publish(folder: Path) -> tuple[Path, Card]:
    """The path of the page that was written, and the audit's card for the index."""
    results = read_modes(folder)
    return write_audit_page(results, folder, modes_page(results))


def read_modes(folder: Path) -> Results:
    """The audit's checked result files."""
    return read_results(MODES, folder, _check)


def modes_page(results: Results) -> AuditPage:
    """All that the page says."""
    claims = [
        _answer(results),
        conditions_claim(results),
        _tasks(results),
        _proxy(results),
        _dark(results),
        _theorem(results),
    ]
    said, seeds = escape(headline(results)), results.meta["seeds"]
    few = (
        f"<b>{seeds} of {MODES.seeds} divisions so far:</b> the numbers may still move." if seeds < MODES.seeds else ""
    )
    return AuditPage("Contact modes without labels", said, [c for c in claims if c], _card(results, said), few, ABOUT,
                     WORDS, COMMAND)  # fmt: skip


def _card(results: Results, answer: str) -> Card:
    scores = []
    for family in results.present("family"):
        if not scores:
            line = Line("", place_of(family, CONFIGURATION))
            scores = scores_of(results, line, ARI, f"agreement with contacts (ARI), {family}")
    panel, keys = _first_timeline(results, width=430, labels=False, only=(MODES.ours, "hmm", "ar-hmm", "changes"))
    picture = figure([panel], _timeline_alt(panel.title), keys=keys) if panel else ""
    return Card("modes", "Contact modes without labels", answer, scores, picture)


def _first_timeline(results: Results, **options):
    """The timeline of the first family's task with most changes that can be drawn, and its legend."""
    tasks = [(family, task) for family in results.present("family")[:1] for task in results.tasks(family)]
    for family, task in sorted(tasks, key=lambda place: -_changes(results, *place)):
        if panel := figures.timeline_panel(results, family, task, **options):
            return panel, figures.class_keys(figures.classes_of(results, family, task), regimes=False)
    return None, []


def _changes(results: Results, family: str, task: str) -> int:
    """How often the contacts change in the log that would be drawn."""
    return max(
        (len(c["truth"]["starts"]) for c in ours_at(results, family, task, CONFIGURATION, "truth")[:1]), default=0
    )


def _timeline_alt(name: str) -> str:
    return (
        f"one log of {name}: the contacts by the simulator’s forces, and the modes that every method found, over time"
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
    """ARI of ours against the contacts beside the best peer, and in how many comparisons another method is ahead."""
    parts = []
    for family in results.present("family"):
        line = Line(family, place_of(family, CONFIGURATION))
        peer = best_peer(results, line, ARI)
        value = results.number(line.place, MODES.ours, ARI.key)
        if value is not None:
            beside = f" (best peer, {peer[0]}: {ARI.text(peer[1])})" if peer else ""
            parts.append(f"{ARI.text(value)} on {family}{beside}")
    text = f"Against the simulator’s contacts, modes that no label taught have an ARI of {', '.join(parts)}"
    text = text if parts else "Ours was not run in full sight"
    found = [s.side for labels in results.present("labels") for line in task_lines(results, labels)
             for metric in (ARI, CHANGES) if (s := standing(results, line, metric))]  # fmt: skip
    return text + (
        f". Another method is ahead in {found.count(-1)} of {len(found)} comparisons by task." if found else "."
    )


def task_lines(results: Results, labels: str) -> list[Line]:
    """A line for each task and sight."""
    return [
        Line(task + (", half hidden" if condition == HALF else ""), place_of(family, labels, condition), task)
        for family in results.present("family")
        for task in results.tasks(family)
        for condition in (CLEAN, HALF)
        if results.row(place_of(family, labels, condition), MODES.ours)
    ]


def _family_lines(results: Results, labels: str, condition: str = CLEAN, reading: str = FIXED) -> list[Line]:
    places = [(family, place_of(family, labels, condition, reading)) for family in results.present("family")]
    return [Line(family, place) for family, place in places if results.row(place, MODES.ours)]


def _answer(results: Results) -> Claim:
    """One log of a task drawn, and agreement with the contacts family by family."""
    panel, keys = _first_timeline(results, labels=False)
    caption = (
        "The first test log of the first seed, in full sight. Methods are drawn as they are read for the "
        "configuration; each mode has the colour that most of its rows have in all test logs. A gap is a change."
    )
    narrow, _ = _first_timeline(results, labels=False, width=380)
    picture = ""
    if panel is not None and narrow is not None:
        alt = _timeline_alt(panel.title)
        picture = figure([panel], alt, keys=keys, caption=caption, name="timeline", narrow=[narrow])
    numbers = claim_table(results, _family_lines(results, CONFIGURATION), (ARI, CHANGES),
                          "Against the contact configuration, in full sight")  # fmt: skip
    words = (
        "The modes of the model come out as what touches what, in the words of its couplings; the simulator’s forces "
        "are the truth, and no label is used in learning."
    )
    more = {"One log of every task": _timelines(results)}
    if panels := figures.confusion_panels(results):
        more["What each mode, as read, truly was"] = figure(
            panels, "shares of each found mode’s rows by true contact configuration", name="confusions",
            caption="A line for each configuration: the mode matched to it, and in per cent what its rows were by the "
            "forces (columns, in the same order). Summed over seeds with the same configurations, in full sight.",
        )  # fmt: skip
    more["With labels to choose the reading, and the number of modes told"] = _told(results)
    more["How modes are read, and what that adds"] = _readings(results)
    more["Every method, metric and task"] = _every(results, CONFIGURATION)
    how = (
        f"{results.meta['seeds']} divisions of the logs, from number 100 on, into 60 % to learn, 20 % to choose by and "
        "20 % to test. No label anywhere: the number of modes is found, the reading is settled in advance."
    )
    return Claim("Modes come out as contacts", "Contacts", words, picture + numbers, more=more, how=how)


def _told(results: Results) -> str:
    """The second columns: `full` and every method with the help of labels."""
    lines = _family_lines(results, CONFIGURATION, reading=CHOSEN)
    return folded_tables(results, lines, (ARI, CHANGES))


def _every(results: Results, labels: str) -> str:
    families = results.present("family")
    means = [Line(f"{f}, {c}", place_of(f, labels, c)) for f in families for c in results.present("condition")]
    means = [line for line in means if results.row(line.place, MODES.ours)]
    return folded_tables(results, [*means, *task_lines(results, labels)], (*MODES.metrics, *MODES.further))


def _timelines(results: Results) -> str:
    """One log of every task."""
    parts = []
    for family in results.present("family"):
        for task in results.tasks(family):
            panel = figures.timeline_panel(results, family, task)
            if panel is not None:
                keys = figures.class_keys(figures.classes_of(results, family, task))
                said = _coupling_words(results, family, task)
                parts.append(figure([panel], _timeline_alt(task), keys=keys, caption=said, name=f"timeline-{task}"))
    return "".join(parts)


def _coupling_words(results: Results, family: str, task: str) -> str:
    """What each mode of ours couples, where the cell says."""
    words = next((c["words"] for c in ours_at(results, family, task, CONFIGURATION, "words")), [])
    said = " · ".join(f"{k} {escape(word)}" for k, word in enumerate(words))
    return f"Our modes, before they are read: {said}." if said else ""


# --- tasks, the paper's labels, the dark ----------------------------------------------------------------------------


def _tasks(results: Results) -> Claim | None:
    """Ours and the best peer on every task: where a peer is ahead it is drawn in red."""
    lines = [line for line in task_lines(results, CONFIGURATION) if line.place["condition"] == CLEAN]
    ahead, behind = standing_words(results, lines, ARI)
    if not ahead:
        return None
    panels = figures.task_panels(results, CONFIGURATION, (ARI, CHANGES, F1))
    picture = figure(panels, "our score and the best peer’s on every task", keys=figures.TASK_KEYS[:3], name="tasks")
    return Claim("Task by task, wins and losses", "Tasks", escape(f"By ARI, {ahead}. {behind}"), picture=picture,
                 how="In full sight, against the contact configuration.")  # fmt: skip


def _proxy(results: Results) -> Claim | None:
    lines = _family_lines(results, PROXY)
    if not lines:
        return None
    panels = figures.task_panels(results, PROXY, (ARI, CHANGES, F1))
    drawn = figure(panels, "our score, the best peer’s and the paper’s on every task, against the paper’s labels",
                   keys=figures.TASK_KEYS, name="proxy")  # fmt: skip
    numbers = claim_table(results, lines, (ARI, CHANGES), "Against the paper’s proxy labels, in full sight")
    words = (
        "The paper scores against a kinematic guess at contact, not contact itself; on these labels the comparison "
        "with its numbers is direct in kind, though the logs are our own."
    )
    words += ceiling_words(results)
    more = {"Task by task": drawn}
    if scores := figures.histogram_panels(results):
        keys = [Key(name, colour, "", "") for name, colour in REGIMES.items()]
        more["The kinematic score and its thresholds"] = figure(
            scores, "test rows of each true regime by the paper’s kinematic score", keys=keys, name="scores",
            caption="Test rows of each true regime by the paper’s kinematic score; each regime’s rows add up to one. "
            "Dotted: the two thresholds, medians over seeds. Where regimes lie on one another no thresholds could tell "
            "them apart.",
        )  # fmt: skip
    for labels in results.present("labels"):
        if labels != CONFIGURATION:
            more[f"Every method, metric and task against the {labels} labels"] = _every(results, labels)
    return Claim("Against the paper’s own labels", "Paper’s labels", words, numbers, more=more,
                 how="Proxy labels as the paper defines them, thresholds frozen on validation logs.")  # fmt: skip


def ceiling_words(results: Results) -> str:
    """What the simulator's own contacts score against the paper's labels: no finder of contacts can do better."""
    parts = []
    for family in results.present("family"):
        found = results.number(place_of(family, PROXY), "simulator", ARI.key)
        parts += [f"{ARI.text(found)} on {family}"] if found is not None else []
    return f" The simulator’s own contacts have an ARI of {', '.join(parts)} against them." if parts else ""


def _dark(results: Results) -> Claim:
    picture = figure(
        figures.sight_panels(results), "agreement with contacts in full sight and half hidden, for every method",
        keys=figures.SIGHT_KEYS[:2], name="dark",
    )  # fmt: skip
    numbers = claim_table(results, _family_lines(results, CONFIGURATION, HALF), [ARI],
                          "Bodies hidden half of the time, ARI against the contact configuration")  # fmt: skip
    words = loss_words(results) or "This run does not have both sights."
    return Claim("Half hidden", "Half hidden", escape(words), numbers, picture,
                 how="Every method learns in full sight; hand, fingers and joints are always seen.")  # fmt: skip


def loss(results: Results, family: str, method: str) -> float | None:
    """How much ARI is lost when half is hidden; None without both numbers, or with nothing to lose."""
    bright, dark = (results.number(place_of(family, CONFIGURATION, o), method, ARI.key) for o in (CLEAN, HALF))
    return None if bright is None or dark is None or bright < NOTHING else bright - dark


def loss_words(results: Results) -> str:
    """What ours loses in the dark, and between what the others lose, family by family."""
    parts = []
    for family in results.present("family"):
        lost, others = loss(results, family, MODES.ours), {m: loss(results, family, m) for m in MODES.rivals}
        there = {m: v for m, v in others.items() if v is not None}
        if lost is not None and there:
            least, most = (end(there, key=lambda m: there[m]) for end in (min, max))
            words = f"{least} {ARI.text(there[least])} to {most} {ARI.text(there[most])}"
            parts.append(f"on {family} {MODES.ours} loses {ARI.text(lost)} of its ARI (others {words})")
    return f"When half is hidden, {'; '.join(parts)}." if parts else ""


# --- the theorem ----------------------------------------------------------------------------------------------------


def _theorem(results: Results) -> Claim | None:
    panels = figures.theorem_panels(results)
    if not panels:
        return None
    picture = figure(
        panels,
        "the bound of Theorem 2 against the realised misassignment of held-out segments",
        keys=figures.THEOREM_KEYS,
        name="theorem",
        caption="On the line the bound would be the misassignment itself, above it the bound holds. Segments that "
        "would lie on one another are one dot; what is below 10⁻³⁰⁰ is at the edge.",
    )
    found, _, rest = theorem_words(results).partition(". ")
    more = {"More numbers": f"<p>{escape(rest)}</p>"} if rest else {}
    return Claim("Thm 2, measured", "Thm 2", escape(found.removesuffix(".")) + ".", picture=picture, more=more,
                 how="The paper states the theorem and does not measure it. Both sights.")  # fmt: skip


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
    words = "In how many cells labels chose each reading; of clean logs, scores as read and (italic) as they are."
    return f"<p class='quiet'>{words}</p>{reading_table(results)}"


def reading_table(results: Results) -> str:
    """How often each reading was chosen, and the scores as read and of the modes as they are, in full sight."""
    pairs = [(family, metric) for family in results.present("family") for metric in (ARI, CHANGES)]
    head = ["", *READINGS, *(f"{family}<br>{metric.title}" for family, metric in pairs)]
    body = [
        _reading_line(results, labels, m.key, pairs) for labels in results.present("labels") for m in results.methods
    ]
    return table_html(head, body, kind="dense")


def _reading_line(results: Results, labels: str, method: str, pairs: Sequence) -> list[str]:
    places = [place_of(family, labels, reading=CHOSEN) for family in results.present("family")]
    counts = Counter(c.get("read") for place in places for c in results.at(place, method))
    line = [f"{labels}, {method}", *(str(counts[reading] or "·") for reading in READINGS)]
    for family, metric in pairs:
        place = place_of(family, labels, reading=CHOSEN)
        raw = results.number(place, method, f"raw_{metric.key}")
        read = metric.text(results.number(place, method, metric.key))
        line.append(f"{read}<i>{metric.text(raw)}</i>")
    return line
