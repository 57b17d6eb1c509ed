"""The page of the support audit: what happens to a contact in the dark, and the paper's numbers beside ours."""

from collections.abc import Sequence
from html import escape
from math import hypot
from pathlib import Path

from vhydro.report.charts import figure
from vhydro.report.page import table_html
from vhydro_audits.pages import support_figures as figures
from vhydro_audits.pages.drawing import method_keys
from vhydro_audits.pages.frame import AuditPage, Card, Claim, write_audit_page
from vhydro_audits.pages.results import Place, Record, Results, read_results
from vhydro_audits.pages.support_figures import (
    CALIBRATION,
    FILMED,
    GATE,
    HARDEST,
    HIDDEN,
    LEVELS,
    NOMINAL,
    PLAIN,
    WEIGHTS,
    place_of,
    settings_of,
)
from vhydro_audits.pages.tables import Line, claim_table, folded_tables, paper_number, scores_of, standing_words
from vhydro_audits.spec import SUPPORT, percent

NLL, COV90, ECE = SUPPORT.metrics[:3]
ADAPTIVE, ABLATIONS = "adaptive", ("no-support", "smooth")
HARD_LEVELS = LEVELS[-2:]  # where the paper's no-support and smooth collapse
COLLAPSE = 1.0  # nats per channel above adaptive; the paper's smallest gap at the hard levels is 2.6
CERTAIN = 3.0  # standard errors of the difference
NEEDED = (*SUPPORT.numbers, "coverage", "film")
FILM = ("channel", "dt", "truth", "seen", "particles", "weights", "contact", "lost_at")
ABOUT = (
    "Logs are our own recordings of the paper’s tasks (<code>vhydro collect</code> records them); the sawyer-bridge "
    "tasks are scripted MuJoCo stand-ins. The setting is the paper’s, the data are not, and its numbers stand beside "
    "ours for orientation. A run that was stopped goes on where it was. <code>vhydro audit support --quick --out quick"
    "</code> runs a small part on the shipped sample; <code>vhydro audit page support</code> writes this page."
)
COMMAND = "make audit-support DATA=folder"
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
    return publish(folder)[0]


def publish(folder: Path) -> tuple[Path, Card]:
    """The path of the page that was written, and the audit's card for the index."""
    results = read_support(folder)
    return write_audit_page(results, folder, support_page(results))


def read_support(folder: Path) -> Results:
    """The audit's checked result files."""
    return read_results(SUPPORT, folder, _check)


def support_page(results: Results) -> AuditPage:
    """All that the page says."""
    films, loss, calibration = _films(results), _loss(results), _calibration(results)
    # Pictures come first: without a film those of calibration, above their table.
    drawn = calibration._replace(numbers=calibration.picture, picture=calibration.numbers)
    first = [drawn, loss] if films is None else [films, loss, calibration]
    claims = [*first, _certificates(results), _tasks(results)]
    return AuditPage(
        "Contacts that nobody sees are kept", escape(headline(results)), [c for c in claims if c], _card(results),
        "", ABOUT, WORDS, COMMAND,
    )  # fmt: skip


def _card(results: Results) -> Card:
    """The index shows the film or, without one, calibration; numbers are of the first family where most is hidden."""
    found, regime = figures.reels(results), figures.regimes(results)[0]
    if found:
        panels = figures.reel_panels(found[0], ("no-support", "adaptive"), columns=5)
        picture = figure(panels, reel_words(found[0]), caption=escape(reel_words(found[0])))
    else:
        some = [(results.present("family")[0], regime)]
        words = "coverage of 90 % intervals and calibration error of every method against the share that is hidden"
        panels = figures.occlusion_panels(results, some, (COV90, ECE), 2)
        picture = figure(panels, words, keys=method_keys(SUPPORT, results.methods, paper=True), caption=words)
    line = Line("", place_of(results.present("family")[0], regime))
    scores = scores_of(results, line, ECE, f"calibration error (ECE), {percent(HARDEST)} hidden")
    return Card("support", "Contacts that nobody sees are kept", escape(headline(results)), scores, picture)


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
    """The worst coverage and calibration error of ours over all levels and regimes, beside the paper's best."""
    numbers = _ranges(results)
    if not numbers:
        return "This run has no numbers of ours to compare."
    covers, _, paper = numbers
    words = f"From full sight to {percent(HARDEST)} hidden, our 90\u00a0% intervals hold {_share(min(covers))} to "
    words += f"{_share(max(covers))} of the true readings"
    if paper is not None:
        words += f" (the paper’s best with {percent(HARDEST)} hidden: {_share(paper)})"
    decided = [above for cell in results.cells if (above := figures.above_bound(cell)) is not None]
    if decided:
        words += f", and of {len(decided):,} cells with a certificate {sum(decided) or 'none'} is above its bound"
    return words + "."


def _share(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"


def _ranges(results: Results) -> tuple[list[float], list[float], float | None] | None:
    """Coverages and calibration errors of ours wherever they are compared, and the paper's best coverage."""
    places = [p for p in results.settings if p["regime"] != PLAIN]
    covers, errors = (
        [v for p in places if (v := results.number(p, SUPPORT.ours, m.key)) is not None] for m in (COV90, ECE)
    )
    if not covers or not errors:
        return None
    lines = [Line("", place_of(f, r)) for f, r in settings_of(results)]
    theirs = [v for line in lines if (v := paper_number(results, line, SUPPORT.ours, COV90)) is not None]
    return covers, errors, max(theirs, key=COV90.merit) if theirs else None


def place_title(place: Place) -> str:
    return f"{place['family']}, {place['regime']}, {percent(place['occlusion'])} hidden"


# --- a contact lost or kept -----------------------------------------------------------------------------------------


def _films(results: Results) -> Claim | None:
    found = figures.reels(results)
    if not found:
        return None
    first, *more = [
        figure(
            figures.reel_panels(r),
            reel_words(r),
            keys=figures.FILM_KEYS,
            caption=escape(reel_words(r)),
            name=f"film-{k}",
        )
        for k, r in enumerate(found, 1)
    ]
    words = (
        "A filter whose guide follows the data alone can delete the branch on which a body moves while nobody sees it. "
        "Mixing in a little of the model’s own prediction keeps it."
    )
    others = {
        f"The same on another robot, {i}" if i > 1 else "The same on another robot": m for i, m in enumerate(more, 1)
    }
    how = (
        f"Regime {found[0].cell['regime']}: chosen to show a loss, the contact that no-support loses for longest while "
        "the others keep it. Adaptive and no-support differ in the gate alone."
    )
    return Claim("A contact in the dark, lost and kept", "A contact kept", words, picture=first, more=others, how=how)


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


def _loss(results: Results) -> Claim:
    lines = [Line(place_title(p), p) for p in results.settings if p["occlusion"] in HARD_LEVELS]
    tables = folded_tables(results, lines, (NLL, SUPPORT.metric("lost")))
    how = "A collapse is an NLL more than 1 nat per channel above adaptive’s, and by more than three standard errors."
    return Claim(
        "How often a contact is lost without support", "How often", escape(loss_words(results)),
        numbers=collapse_table(results), more={"NLL and lost readings, case by case": tables}, how=how,
    )  # fmt: skip


def collapse_table(results: Results) -> str:
    """Regime by regime, in how many cases each ablation collapses, here and in the paper."""
    meanings = {"matched": "trained at every level", "shift": "trained with at most 25 % hidden",
                "lit": "trained in full light", PLAIN: "in full light, trained longer, no look-ahead"}  # fmt: skip
    body = []
    for regime in results.present("regime"):
        counts = [_collapse_count(results, regime, method) for method in ABLATIONS]
        if any(counts):
            name = f"{regime} <small>{meanings[regime]}</small>"
            body.append([name, *(f"{c[0]} of {c[1]}" if c else "–" for c in counts)])
    if not body:
        return ""
    whole = len(results.present("family")) * len(HARD_LEVELS)
    body.append(["the paper", *[f"{whole} of {whole}"] * len(ABLATIONS)])
    levels = " and ".join(percent(level) for level in HARD_LEVELS)
    caption = f"Cases (family and level) that collapse, with {levels} hidden"
    return table_html(["", *ABLATIONS], body, kind="claims comparison", caption=caption)


def collapses(results: Results, place: Place, method: str) -> bool | None:
    """Whether a method's NLL is far above adaptive's, beyond sampling error; None without both numbers."""
    ours, theirs = (results.number(place, m, NLL.key) for m in (method, ADAPTIVE))
    if ours is None or theirs is None:
        return None
    errors = [results.number(place, m, f"{NLL.key}_sem") or 0.0 for m in (method, ADAPTIVE)]
    return ours - theirs > max(COLLAPSE, CERTAIN * hypot(*errors))


def _collapse_count(results: Results, regime: str, method: str) -> tuple[int, int] | None:
    """In how many cases of a regime a method collapses, and of how many."""
    places = [place_of(f, regime, o) for f in results.present("family") for o in HARD_LEVELS]
    found = [verdict for place in places if (verdict := collapses(results, place, method)) is not None]
    return (sum(found), len(found)) if found else None


def loss_words(results: Results) -> str:
    """In how many cases the ablations collapse, and where most is lost."""
    parts = []
    for method in ABLATIONS:
        counts = [c for r in results.present("regime") if (c := _collapse_count(results, r, method))]
        if counts:
            parts.append(f"{method} collapses in {sum(c[0] for c in counts)} of {sum(c[1] for c in counts)} cases")
    if not parts:
        return "This run cannot say whether branches are lost: it lacks adaptive beside no-support or smooth."
    levels = " and ".join(percent(level) for level in HARD_LEVELS)
    paper = "in the paper both collapse in all of them; here the data are not the paper’s."
    return f"With {levels} hidden, {' and '.join(parts)}; {paper} {_most_lost(results)}"


def _most_lost(results: Results) -> str:
    rows = [row for row in results.rows if row.get("task") is None and row.get("lost")]
    if not rows:
        return "No reading of any method was lost."
    worst = max(rows, key=lambda row: row["lost"])
    where = f"{worst['method']} on {worst['family']}, {worst['regime']}, {percent(worst['occlusion'])} hidden"
    return f"The largest share of hidden readings with no particle near is {100 * worst['lost']:.3g} %: {where}."


# --- calibration, gate and certificates -----------------------------------------------------------------------------


def _calibration(results: Results) -> Claim:
    settings, keys = settings_of(results), method_keys(SUPPORT, results.methods, paper=True)
    by_regime = {r: [s for s in settings if s[1] == r] for r in figures.regimes(results)}
    first = "shift" if "shift" in by_regime else next(iter(by_regime))
    drawn = {
        r: figure(
            figures.occlusion_panels(results, some, CALIBRATION), "coverage, calibration error and negative "
            "log-likelihood of every method against the share that is hidden", keys=keys, name=f"metrics-{r}",
            caption="Means with their standard errors. Cov90 belongs on its dotted line.",
        )
        for r, some in by_regime.items()
    }  # fmt: skip
    lines = [Line(f"{f}, {r}", place_of(f, r)) for f, r in settings if results.row(place_of(f, r), SUPPORT.ours)]
    easy = [line for line in lines if line.place["regime"] == "matched"]
    hard = [line for line in lines if line not in easy] or easy
    numbers = claim_table(results, hard, (COV90, ECE, NLL), f"With {percent(HARDEST)} hidden")
    more = {f"The same in {r}": drawn[r] for r in drawn if r != first}
    if easy and hard is not easy:
        more["The same in matched"] = claim_table(results, easy, (COV90, ECE, NLL)) + more.get(
            "The same in matched", ""
        )
    more["Calibration curves"] = figure(
        figures.reliability_panels(results),
        "empirical against nominal coverage of every method",
        keys=keys,
        name="reliability",
        caption="Share of true readings inside each central interval; below the line a belief is too sure of itself, "
        "above it not sure enough.",
    )
    more["Hidden readings alone"] = figure(
        figures.occlusion_panels(results, settings, HIDDEN, 4),
        "the same metrics over hidden readings alone",
        keys=keys,
        name="hidden",
    )
    every = [Line(place_title(p), p) for p in results.settings]
    more["Tables of every method, level and regime"] = folded_tables(results, every, SUPPORT.metrics)
    how = (
        "two-sided and two-sided+conformal share a filter and differ in their intervals; no other method is "
        "calibrated, so NLL, Cov90 and ECE compare a calibrated belief with raw ones."
    )
    return Claim("From full sight to nearly dark, intervals hold what they promise", "Calibration",
                 escape(_calibration_words(results)), numbers, drawn[first], more, how)  # fmt: skip


def _calibration_words(results: Results) -> str:
    numbers = _ranges(results)
    if not numbers:
        return "Ours was not run here; the other methods are below."
    covers, errors, _ = numbers
    return (
        f"Over all families, regimes and levels Cov90 of {SUPPORT.ours} is {COV90.text(min(covers))} to "
        f"{COV90.text(max(covers))} (0.9 is right) and its calibration error (ECE) at most {ECE.text(max(errors))}. "
        "No other method is calibrated."
    )


def _certificates(results: Results) -> Claim:
    settings, keys = settings_of(results), method_keys(SUPPORT, results.methods)
    decided = [above for cell in results.cells if (above := figures.above_bound(cell)) is not None]
    words = f"Of {len(decided):,} cells with a certificate {sum(decided) or 'none'} is above its bound beyond sampling "
    words += "error. The paper states the bound and does not measure it."
    picture = figure(
        figures.certificate_panels(results),
        "the stated bound of every cell against the variance that it has",
        keys=keys,
        name="certificate",
        caption="A dot for each cell: the bound that a filter states against the variance that it has, over 32 "
        "repeated draws. On the line the bound would be the variance itself, above it the bound holds. Dots that would "
        "lie on one another are drawn once.",
    )
    gate = figure(
        figures.occlusion_panels(results, settings, GATE, 4),
        "share of the model’s own prediction, certified steps, "
        "heavy tails and realised variance against the share that is hidden",
        keys=keys,
        name="gate",
    )
    weights = figure(
        figures.occlusion_panels(results, settings, WEIGHTS, 4),
        "effective sample size and weight variance against the share that is hidden",
        keys=method_keys(SUPPORT, results.methods, paper=True),
        name="weights",
    )
    more = {"Effective particles and weight variance": weights,
            "What the gate spends: λ, certified steps, heavy tails, variance": gate}  # fmt: skip
    how = (
        "A certificate speaks of Monte Carlo error alone: where the model is wrong, a certified step can be wrong too."
    )
    return Claim("What a certificate says is so", "Certificates", escape(words), picture=picture, more=more, how=how)


def _tasks(results: Results) -> Claim | None:
    lines = [
        Line(f"{SUPPORT.paper_tasks.get(task, task)}, {r}", place_of(f, r), task)
        for f, r in settings_of(results)
        for task in results.tasks(f)
        if any(results.row(place_of(f, r), m.key, task) for m in results.methods)
    ]
    if not lines:
        return None
    first = [line for line in lines if line.place["regime"] == ("shift" if "shift" in figures.regimes(results) else
             figures.regimes(results)[0])]  # fmt: skip
    numbers = claim_table(results, first, [ECE], f"Calibration error (ECE), {percent(HARDEST)} hidden")
    tables = folded_tables(results, lines, SUPPORT.metrics)
    words = standing_sentence(results, lines, ECE)
    return Claim("Task by task", "Tasks", escape(words), numbers, more={"Every metric, method and regime": tables},
                 how="The tasks have the paper’s names here.")  # fmt: skip


def standing_sentence(results: Results, lines: Sequence[Line], metric=ECE) -> str:
    """In how many of these lines ours is ahead of all others, and against the paper."""
    ahead, behind = standing_words(results, lines, metric)
    return f"By {metric.title}, {ahead}. {behind}" if ahead else "Ours was not run task by task."
