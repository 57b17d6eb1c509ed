"""The laws audit in words and tables: the verdict, the bars, and every method in every setting."""

from statistics import fmean

from vhydro.report.laws_results import (
    ABSENT,
    BARS,
    COEFFICIENTS,
    F1,
    FULL,
    METHODS,
    METRICS,
    Bar,
    Metric,
    Results,
    Row,
    Setting,
    standing,
    written,
)
from vhydro.report.page import table_html

SEEDS = 20  # of the audit in full
NAMED = 6  # settings in which full is behind, in words
SIGNS = {1: "≥", -1: "≤"}


# --- the verdict --------------------------------------------------------------------------------------------


def _meets(bar: Bar, row: Row) -> list[bool]:
    """Whether each metric of `METRICS` reaches the bar; one without a number does not."""
    pairs = zip(METRICS, bar.limits, strict=True)
    return [row[m.key] is not None and m.good * row[m.key] >= m.good * limit for m, limit in pairs]


def headline(results: Results) -> str:
    """Full at its best and at its worst setting, and how many bars it meets."""
    ours = {s: results.rows[s, FULL] for s in results.settings if (s, FULL) in results.rows}
    rated = sorted((row[COEFFICIENTS.key], s) for s, row in ours.items() if row[COEFFICIENTS.key] is not None)
    if not rated:
        return "No law of the full method has a coefficient error in this run."
    best, worst = rated[0][1], rated[-1][1]
    words = f"At its best ({best.title}) full recovers the laws with {_scores(ours[best])}"
    words += f"; at its worst ({worst.title}) with {_scores(ours[worst])}. " if worst != best else ". "
    run = [bar for bar in BARS if bar.setting in ours]
    met = sum(all(_meets(bar, ours[bar.setting])) for bar in run)
    verdict = "Every bar is met" if met == len(BARS) else f"{met} of {len(BARS)} bars are met"
    lacking = len(BARS) - len(run)
    return words + verdict + (f"; {lacking} had no run." if lacking else ".")


def _scores(row: Row) -> str:
    parts = [f"{m.title} {_value(row, m)}" for m in METRICS]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _value(row: Row, metric: Metric, digits: int = 2) -> str:
    return written(row.get(metric.key), share=metric.good > 0, digits=digits)


def bar_table(results: Results) -> str:
    """What full was asked for and what it reached, with a plain yes or no."""
    body = []
    paper = next((row["published"] for (_, m), row in results.rows.items() if m == FULL and row.get("published")), None)
    if paper:
        body.append(["<span class='paper'>paper, full</span>", *(_value(paper, m) for m in METRICS), "", ""])
    for bar in BARS:
        row = results.rows.get((bar.setting, FULL))
        limits = [f"<small>{SIGNS[m.good]} {limit:g}</small>" for m, limit in zip(METRICS, bar.limits, strict=True)]
        name = f"{bar.setting.title} <small>{bar.word}</small>"
        if row is None:
            body.append([name, *(f"{ABSENT} {limit}" for limit in limits), ABSENT, "not run"])
            continue
        met = _meets(bar, row)
        marks = ["" if good else " class='no'" for good in met]
        values = [f"<span{mark}>{_value(row, m, 3)}</span>" for mark, m in zip(marks, METRICS, strict=True)]
        cells = [f"{value} {limit}" for value, limit in zip(values, limits, strict=True)]
        body.append([name, *cells, _unidentified(results, bar.setting), "yes" if all(met) else "<b class='no'>no</b>"])
    return table_html(["full", *(m.title for m in METRICS), "unidentified", "met"], body, kind="bars")


def _unidentified(results: Results, setting: Setting) -> str:
    cells = results.at(setting, FULL)
    return f"{sum(cell['status'] != 'identified' for cell in cells)} of {len(cells)}"


def caveats(results: Results) -> str:
    """What a reader should know of the numbers before believing them."""
    words = [f"{results.meta['seeds']} seeds on {len(results.tasks)} systems: {', '.join(results.tasks)}."]
    if results.meta["seeds"] < SEEDS:
        words.append(f"A small run: the audit in full has {SEEDS} seeds.")
    ours = [cell for cell in results.cells if cell["method"] == FULL]
    wrong = [cell for cell in ours if cell[F1.key] is not None and cell[F1.key] < 1]
    sure = sum(cell["status"] == "identified" for cell in wrong)
    count = f"{len(wrong):,} of full’s {len(ours):,} laws have wrong terms"
    words.append(f"{count}; {sure} of these are not marked unidentified.")
    shares = [cell.get("modes_accuracy") for cell in ours]
    if filtered := [100 * share for share in shares if share is not None]:
        mean, worst = fmean(filtered), min(filtered)
        words.append(f"Filtered modes are the true ones in {mean:.1f} % of samples ({worst:.1f} % in the worst cell).")
    return " ".join(words)


# --- the comparison -----------------------------------------------------------------------------------------


def comparison_words(results: Results) -> str:
    """How often full is ahead of every other method, and by name where it is not."""
    found = [(m, s, standing(results, s, m)) for m in METRICS for s in results.settings]
    contests = [(m, s, side, best) for m, s, result in found if result for side, best in [result]]
    main = [c for c in contests if c[0] in (F1, COEFFICIENTS)]
    ahead, level, behind = (sum(c[2] == side for c in main) for side in (1, 0, -1))
    words = (
        f"In support F1 and coefficient error, full is ahead of every other method in {ahead} of {len(main)} lines, "
        f"level in {level} and behind in {behind}."
    )
    lost = [f"{m.title}, {s.title} ({', '.join(_title(b) for b in best)})" for m, s, side, best in contests if side < 0]
    if not lost:
        return f"{words} It is behind in none of the four metrics."
    more = f"; and {len(lost) - NAMED} more, in red below" if len(lost) > NAMED else ""
    return f"{words} Over all four metrics it is behind in {len(lost)}: {'; '.join(lost[:NAMED])}{more}."


def _title(method: str) -> str:
    return next(m.title for m in METHODS if m.key == method)


def comparison_table(results: Results, metric: Metric) -> str:
    """One metric: a line per setting, a column per method, and the paper's numbers below."""
    methods = [m.key for m in results.methods()]
    body = [_comparison_line(results, metric, setting, methods) for setting in results.settings]
    published = {m: row["published"] for (_, m), row in results.rows.items() if row.get("published")}
    if published:
        values = [_value(published[m], metric) if m in published else "" for m in methods]
        body.append([f"<span class='paper'>{text}</span>" for text in ("paper", *values)])
    sign = "larger is better" if metric.good > 0 else "smaller is better"
    return f"<h3>{metric.title}</h3>" + table_html([sign, *(_title(m) for m in methods)], body, kind="matrix")


def _comparison_line(results: Results, metric: Metric, setting: Setting, methods: list[str]) -> list[str]:
    side, best = standing(results, setting, metric) or (1, [])
    line = [setting.title]
    for method in methods:
        row = results.rows.get((setting, method), {})
        text = _value(row, metric) + ("†" if row.get(f"{metric.key}_missing") and row[metric.key] is not None else "")
        text = f"<b>{text}</b>" if method in best else text
        if method == FULL and best and side < 1:
            text = f"<span class='no'>{text}</span>" if side < 0 else f"= {text}"
        spread = row.get(f"{metric.key}_sd")
        line.append(text if spread is None else f"<span title='± {written(spread)}'>{text}</span>")
    return line
