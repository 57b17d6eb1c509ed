"""The page of the laws audit: what was recovered, how well, and beside whom."""

import json
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from vhydro.printable import printable_json
from vhydro.report.charts import Key, figure
from vhydro_audits.pages import laws_figures as figures
from vhydro_audits.pages.drawing import method_keys
from vhydro_audits.pages.frame import AuditPage, Card, Claim, write_audit_page
from vhydro_audits.pages.laws_figures import PARTS, SCATTERED, pictured, setting_title
from vhydro_audits.pages.results import Place, Record, Results, read_results
from vhydro_audits.pages.tables import Line, beside_table, claim_table, folded_tables, scores_of
from vhydro_audits.spec import LAWS, SPACE, written

F1, ERROR, FIELD, CONSTANTS = LAWS.metrics
NEEDED = ("status", "terms", "constants", "theorem")
COMMAND = "make audit-laws"
ABOUT = (
    "Logs are simulated, so that the true equations are known; a run that was stopped goes on where it was. "
    "<code>vhydro audit laws --quick --out quick</code> runs a small part in minutes, <code>vhydro audit page laws"
    "</code> writes this page. Methods were built while looking at seeds 0 to 5; seeds 6 and above were not looked at."
)
NEAR = 0.1  # of a true coefficient
SHOWN = 1  # systems whose equations are open
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
    return publish(folder)[0]


def publish(folder: Path) -> tuple[Path, Card]:
    """The path of the page that was written, and the audit's card for the index."""
    results, new, pairs = read_laws(folder)
    return write_audit_page(results, folder, laws_page(results, new, pairs))


def read_laws(folder: Path) -> tuple[Results, Results, list[Record]]:
    """The audit's checked result files: the four systems, the new ones, and equations side by side."""
    every = read_results(LAWS, folder, _check)
    equations = folder / "equations.json"
    pairs = printable_json(json.loads(equations.read_text("utf-8"))) if equations.exists() else []
    return every.of_family("four"), every.of_family("new"), pairs


def laws_page(results: Results, new: Results, pairs: Sequence[Record]) -> AuditPage:
    """All that the page says."""
    claims = [_equations(pairs), _noise(results), _coefficients(results), _trust(results), *_new_claims(new),
              _theorem(results)]  # fmt: skip
    said = escape(headline(results))
    return AuditPage("Laws a person can read, one for each contact mode", said, [c for c in claims if c],
                     _card(results, said), "", ABOUT, WORDS, COMMAND)  # fmt: skip


def _card(results: Results, answer: str) -> Card:
    place = _middle(results)
    scores = scores_of(results, Line("", place), ERROR, f"coefficient error, {setting_title(place)}")
    rows = dict([*figures.noise_rows(results).items()][:1])
    shown = [m for m in results.methods if m.kind in ("ours", "paper") or m.key == "sindy-stlsq"]
    panels = figures.overview_panels(results, (F1, ERROR), rows, columns=5, only=[m.key for m in shown])
    picture = figure(
        panels, "terms found and coefficient error against noise", keys=method_keys(LAWS, shown, paper=True)
    )
    return Card("laws", "Laws a person can read", answer, scores, picture)


def _middle(results: Results) -> Place:
    """The setting of the headline's numbers: modes given and 1 % noise, or the first that was run."""
    ideal = {"source": "given", "noise": 0.01, "missing": 0.0, "flips": 0.0}
    return next((p for p in results.settings if p == ideal), results.settings[0])


def _check(cell: Record) -> str:
    lacking = [name for name in NEEDED if name not in cell]
    return f"has no {', '.join(lacking)}; expected {', '.join(NEEDED)}" if lacking else ""


def headline(results: Results) -> str:
    """Ours at its best and at its worst setting."""
    ends = _ends(results)
    if not ends:
        return "No law of the full method has a coefficient error in this run."
    best, worst = ends
    words = f"From noisy positions the laws of {len(results.tasks())} systems come back "
    words += f"with {_scores(results, best)} at best ({setting_title(best)})"
    words += f" and {_scores(results, worst)} at worst ({setting_title(worst)})" if worst != best else ""
    return words + "."


def _ends(results: Results) -> list[Place]:
    """The settings with our smallest and our largest coefficient error; none without one."""
    rated = [
        (v, k) for k, p in enumerate(results.settings) if (v := results.number(p, LAWS.ours, ERROR.key)) is not None
    ]
    return [results.settings[end(rated)[1]] for end in (min, max)] if rated else []


def _scores(results: Results, place: Place) -> str:
    """`a coefficient error of 0.00016 and 100 % of the terms right`."""
    error, f1 = (results.number(place, LAWS.ours, m.key) for m in (ERROR, F1))
    return f"a coefficient error of {ERROR.text(error)} and a support F1 of {F1.text(f1)}"


def _equations(pairs: Sequence[Record]) -> Claim | None:
    """Each system's recovered law beside the true one, where the audit wrote them."""
    found = [
        f"<h3>{escape(e['task'])}</h3><div class='pair'><div><span>true</span><pre tabindex='0'>"
        f"{escape(e['true'].strip())}</pre></div><div><span>recovered, {escape(e['condition'])}</span>"
        f"<pre tabindex='0'>{escape(e['recovered'].strip())}</pre></div></div>"
        for e in pairs
    ]
    if not found:
        return None
    words = "From positions alone, with noise on them and velocities hidden, the equations come back term by term."
    more = {f"The other systems: {', '.join(escape(e['task']) for e in pairs[SHOWN:])}": "".join(found[SHOWN:])}
    return Claim("The equations, beside the true ones", "Equations", words, picture="".join(found[:SHOWN]),
                 more=more, how="One seed of each system.")  # fmt: skip


def _noise(results: Results) -> Claim:
    lines = [Line(setting_title(place), place) for place in results.settings]
    few = [line for line in lines if line.place in [*pictured(results), _middle(results), *_ends(results)[1:]]]
    keys = method_keys(LAWS, results.methods, paper=True)
    first, rest = _rows_apart(results)
    picture = figure(
        figures.overview_panels(results, (F1, ERROR, FIELD), first, columns=3),
        "terms found, coefficient error and error of the vector field of every method against noise",
        keys=keys,
        name="overview",
        caption="Means over systems and seeds. The dotted line is what the paper reports for its full method, on logs "
        "of its own.",
    )
    more = {
        "Vector field and constants, and harder data": figure(
            figures.overview_panels(results, LAWS.metrics, {**first, **rest}), "every metric against noise", keys=keys,
            name="overview-all",
        ),
        "Tables of every method and setting": folded_tables(results, lines, LAWS.metrics),
    }  # fmt: skip
    numbers = claim_table(results, few, (F1, ERROR))
    how = "20 logs of 5 s at 200 Hz of each system; smoothing and thresholds of every method as the words below say."
    return Claim("Right terms and right numbers, from clean to bad data", "Noise", escape(noise_words(results)),
                 numbers, picture, more, how)  # fmt: skip


def _rows_apart(results: Results) -> tuple[dict, dict]:
    """The settings along the noise that are drawn first, modes given and found with nothing else done, and the rest."""
    rows = figures.noise_rows(results)
    easy = {title: places for title, places in rows.items() if not places[0]["missing"] and not places[0]["flips"]}
    first = easy or dict([*rows.items()][:1])
    return first, {title: places for title, places in rows.items() if title not in first}


def noise_words(results: Results) -> str:
    """In how many settings ours is better than the paper's and than the best peer."""
    parts = []
    for metric in (F1, ERROR):
        ours = [(p, v) for p in results.settings if (v := results.number(p, LAWS.ours, metric.key)) is not None]
        paper = [metric.merit(v) > metric.merit(t) for p, v in ours
                 if (t := results.paper(p, LAWS.ours, metric.key)) is not None]  # fmt: skip
        peers = [m.key for m in LAWS.methods if m.kind == "peer"]
        best = [metric.merit(v) > metric.merit(b[1]) for p, v in ours if (b := results.best(p, metric, peers))]
        said = [f"the best peer’s in {sum(best)} of {len(best)} settings"] if best else []
        said += [f"the paper’s in {sum(paper)} of {len(paper)}"] if paper else []
        parts += [f"{metric.title} is better than {' and '.join(said)}"] if said else []
    return (
        f"Ours: {'; '.join(parts)}. The paper has one setting, its own." if parts else "Ours stands alone in this run."
    )


def _coefficients(results: Results) -> Claim:
    given = [p for p in pictured(results) if p["source"] == "given"]
    hardest = (given or pictured(results))[-1]
    keys = method_keys(LAWS, reversed(SCATTERED))
    alt = "estimated against true coefficients of every term and seed"
    drawn = {setting_title(p): figure(figures.scatter_panels(results, p), alt, keys=keys, name=f"scatter-{k}")
             for k, p in enumerate(pictured(results))}  # fmt: skip
    shown = setting_title(hardest)
    caption = (
        "Every term and seed: estimate against truth, on the line when right. At true 0 are terms that should not be "
        "there, at estimate 0 terms that were missed. Logarithmic beyond ±0.001; what is beyond ±10⁴ is at the edge. "
        "Lasso stands a little to the left, no-sparsity to the right."
    )
    more = {f"The same with {escape(title)}": html for title, html in drawn.items() if title != shown}
    more["Physical constants, cell by cell"] = figure(
        figures.strip_panels(results, CONSTANTS.key, log=True),
        "relative error of each law’s constants by method",
        name="constants",
        caption="A dot per system and seed, a tick at the median. What is outside 10⁻⁶ to 10² is at the edge.",
    )
    more["How often each term is selected"] = figure(
        figures.heat_panels(results, hardest),
        "how often every method selects every term, from never to always",
        name="supports",
        caption=f"Over seeds, with {escape(shown)}: from never (pale) to always (blue). The first line "
        "is the true law; its terms are dark.",
    )
    more["Support precision, cell by cell: the share of the selected terms that are true"] = figure(
        figures.strip_panels(results, "support_precision", log=False),
        "share of selected terms that are true",
        name="precision",
    )
    near = {m.name: near_share(results, hardest, m.key) for m in reversed(SCATTERED)}
    said = [f"{name} {100 * share:.0f}{SPACE}%" for name, share in near.items() if share is not None]
    words = f"With {shown}, coefficients within a tenth of the truth, terms that are not there counted as wrong: "
    words = escape(f"{words}{', '.join(said)}." if said else f"With {shown}, no coefficient was found.")
    return Claim("Coefficient by coefficient", "Coefficients", words,
                 claim_table(results, [Line(shown, hardest)], LAWS.metrics),
                 drawn[shown].replace("</figure>", f"<figcaption>{caption}</figcaption></figure>"), more)  # fmt: skip


def near_share(results: Results, place: Place, method: str) -> float | None:
    """The share of coefficients, true or found, that are within a tenth of the truth."""
    terms = [t for c in results.at(place, method) for t in c["terms"] if t["true"] or t["estimate"]]
    near = [abs((t["estimate"] or 0.0) - t["true"]) <= NEAR * abs(t["true"]) for t in terms]
    return fmean(near) if near else None


def _trust(results: Results) -> Claim:
    """How many laws are wrong, and how many of these say so."""
    picture = figure(
        [figures.trust_panel(results)], "share of our laws with wrong terms, marked and not marked, by setting",
        keys=figures.TRUST_KEYS, name="trust",
    )  # fmt: skip
    return Claim("A wrong law says that it is", "Trust", escape(trust_words(results)), picture=picture,
                 how="A law is identified where it predicts held-out logs as well as sensor noise allows.")  # fmt: skip


def _new_claims(results: Results) -> list[Claim]:
    """Systems beyond separable inertia, where the run has them: a table of every method and setting."""
    if not results.cells:
        return []
    lines = [Line(setting_title(place), place) for place in results.settings]
    shown = [line for line in lines if not line.place["missing"]]
    metrics = (*LAWS.metrics, LAWS.metric("confident_wrong"))
    told = [c["support_f1"] for c in results.cells if c["method"] == LAWS.ours and c["source"] == "given"]
    words = (
        f"{len(results.tasks())} systems whose inertia couples, changes with the pose, or is driven in part; two "
        f"frictions; an impact map. Modes given, full’s mean support F1 is {fmean(told):.3f} over {len(told):,} laws. "
        f"{escape(trust_words(results))}"
    )
    how = (
        "Full is told which position an input drives and finds M(q), V and friction; weak is its weak form alone. The "
        "Lasso and PySINDy have no word for a coupled inertia: of them only the field is compared."
    )
    every = beside_table(results, lines, metrics)
    return [Claim("Beyond separable inertia", "New systems", words, claim_table(results, shown, (FIELD,)),
                  more={"Every metric": every}, how=how)]  # fmt: skip


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


def _theorem(results: Results) -> Claim | None:
    entries = figures.regressions(results)
    if not entries:
        return None
    picture = figure(
        figures.bound_panels(entries),
        "the theorem’s bound against the true error, and κ by columns of the library",
        keys=figures.BOUND_KEYS,
        name="bound",
        caption="A dot per mode, system, seed and setting; on the line the bound would be the error itself, above it "
        "the bound holds. Dots that would lie on one another are drawn once.",
    )
    parts = figure(
        [figures.parts_panel(entries)],
        "share of each part in the noise level, by setting",
        keys=[Key(name, colour) for name, colour in PARTS.values()],
        name="parts",
        caption="Share of each part in the noise level ν, mean over regressions; at the end the median of their sum, "
        "in columns of unit root mean square.",
    )
    more = {"More numbers": f"<p>{escape(theorem_words(entries))}</p>", "Where the noise level comes from": parts}
    return Claim("The recovery theorem, measured", "Theorem", escape(looseness(entries)), picture=picture, more=more,
                 how="Of the paper’s estimator, the Lasso; constants are computed and not assumed.")  # fmt: skip


def looseness(entries: Sequence[Record]) -> str:
    """How often the bound holds where its conditions do, and how far above the error it is with few and many."""
    met = [e for e in entries if e["conditions"]]
    if not met:
        return "The theorem’s conditions hold in no regression."
    words = f"Where its conditions hold ({_of(len(met), len(entries))} regressions), the bound holds in "
    words += f"{_of(sum(bool(e['holds']) for e in met), len(met))}"
    ratios = _ratios(met)
    if ratios:
        few, many = min(ratios), max(ratios)
        words += (
            f", but it is loose: in the median {written(median(ratios[few]), 2)} times the error with {few} columns"
        )
        words += f" and {written(median(ratios[many]), 2)} times with {many}" if many != few else ""
    return words + "."


def _ratios(met: Sequence[Record]) -> dict[int, list[float]]:
    """Bound over true error by the number of columns."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for e in met:
        if e["bound"] is not None and e["error"]:
            ratios[e["columns"]].append(e["bound"] / e["error"])
    return ratios


def theorem_words(entries: Sequence[Record]) -> str:
    """How often the conditions and the bound held, and how wide the bound was."""
    met = [e for e in entries if e["conditions"]]
    held, supports = sum(bool(e["holds"]) for e in met), [e for e in met if e["support_condition"]]
    ratios = _ratios(met)
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
