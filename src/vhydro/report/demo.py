"""The demo's table, words and page, from its summary and one run as plain numbers."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from vhydro.report.equations import energy_text, matrix_text, motion_text, number
from vhydro.report.film import COLOURS, MODE_COLOURS, film_figure
from vhydro.report.page import figure_html, page, table_html

# --- the comparison -----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column: its heads in a terminal and on the page, its format, and its good end (0: neither)."""

    key: str
    short: str
    title: str
    write: str
    good: int = 0


COLUMNS = (
    Column("log_evidence", "log evidence\nper obs.", "log evidence per observation", "{:.3f}", 1),
    Column("log_evidence_worst", "worst\nrun", "worst run", "{:.2f}", 1),
    Column("log_evidence_spread", "spread\n(keys)", "spread over keys", "{:.2f}", -1),
    Column("step_ess", "\nESS/N", "ESS/N", "{:.2f}", 1),
    Column("mixing", "mean\nλ", "mean λ", "{:.2f}"),
    Column("certified", "certi-\nfied", "certified steps", "{:.1%}", 1),
    Column("relative_variance_worst", "worst\nvariance", "worst weight variance", "{:.1f}", -1),
    Column("coverage90", "hidden\n90 %", "hidden 90 % coverage", "{:.1%}"),
    Column("rmse", "hidden\nRMSE", "hidden RMSE (m)", "{:.3f}", -1),
    Column("lost", "lost\nruns", "puck lost (runs)", "{}", -1),
)


def _error(row: dict, column: Column) -> str:
    return f"± {row[column.key + '_se']:.3f}" if column.key == "log_evidence" else ""


def demo_table(summary: dict) -> Table:
    """The comparison for a terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("", no_wrap=True)
    for c in COLUMNS:
        table.add_column(c.short, justify="right", no_wrap=True)
    for r in summary["rows"]:
        table.add_row(r["method"], *(f"{number(c.write, r[c.key])} {_error(r, c)}".strip() for c in COLUMNS))
    return table


def comparison_table(rows: Sequence[dict]) -> str:
    """The comparison for the page; bold is the best, as written, of the first three, which share a guide."""

    def best(c: Column) -> str:
        values = [r[c.key] for r in rows[:3] if r[c.key] is not None]
        return number(c.write, max(values, key=lambda v: c.good * v)) if c.good and values else ""

    def cell(r: dict, c: Column) -> str:
        text = number(c.write, r[c.key])
        written = f"<b>{text}</b>" if r in rows[:3] and text == best(c) else text
        return f"{written} <small>{_error(r, c)}</small>".removesuffix(" <small></small>")

    body = [[escape(r["method"]), *(cell(r, c) for c in COLUMNS)] for r in rows]
    return table_html(["", *(escape(c.title) for c in COLUMNS)], body, kind="comparison")


# --- words --------------------------------------------------------------------------------------------------


def demo_words(summary: dict, folder: Path) -> list[str]:
    """What happened, and where to look."""
    seconds = summary["meta"]["seconds"]
    where = f"{seconds:.0f} s. Open {folder / 'index.html'}; every number is in {folder / 'summary.json'}."
    return ["", verdict(summary), losses(summary), where]


def verdict(summary: dict) -> str:
    """Adaptive against no-support in one sentence, whoever is ahead."""
    gap, runs = summary["adaptive_over_no_support"], summary["rows"][0]["runs"]
    mean, best, worst = (gap[k] for k in ("mean", "best_run", "worst_run"))
    side = "above" if mean > 0 else "below"
    clear = "" if abs(mean) > 2 * gap["se"] else " (within two standard errors)"
    return (
        f"In the dark, adaptive is {abs(mean):.3f} ± {gap['se']:.3f} {side} no-support in log evidence per "
        f"observation{clear}, and ahead in {gap['runs_ahead']} of {runs} runs: by {number('{:+.2f}', best)} "
        f"in its best run and {number('{:+.2f}', worst)} in its worst."
    )


def losses(summary: dict) -> str:
    """How often each method lost the puck."""
    counts = ", ".join(f"{r['method']} {r['lost']}" for r in summary["rows"])
    return f"Of {summary['rows'][0]['runs']} runs each, these lost the puck: {counts}."


def _introduction(config: dict) -> str:
    share = config["guide_occlusion"]
    light = f"at most {share:.0%} was hidden" if share else "nothing was hidden"
    return (
        "A puck bounces between two soft bumpers. A noisy sensor sees its position, and for long spans sees "
        f"nothing: {config['occlusion']:.0%} of all positions are hidden. A model with three modes was "
        f"learned from logs without labels, then a guide for it from logs in which {light}. Both filters "
        "below use that model and that guide. <b>No-support</b> trusts the guide alone. <b>Adaptive</b> "
        "mixes in as much of the model’s own prediction, λ, as its certificate asks for."
    )


def _limits() -> str:
    return (
        "A guide that meets the dark for the first time is the case the gate is made for. The more of it the "
        "guide has seen while learning (<code>--guide-occlusion</code>), the less the gate has to add. Conservative "
        "gives half of every step to the model's own prediction, whether it is needed or not; adaptive gives what the "
        "certificate asks for."
    )


def _caption(film: dict, config: dict) -> str:
    values = ", ".join(f"{name} {number('{:.2f}', s['log_evidence'])}" for name, s in film["sides"].items())
    return (
        f"Episode {film['episode']} with key {film['key']}: {escape(film['rule'])}. An extreme, not a "
        f"typical run. Log evidence per observation: {values}. Each point stands for an equal share of the "
        f"weight of {config['particles']} particles; dotted lines are the bumpers."
    )


# --- the page -----------------------------------------------------------------------------------------------


def demo_page(summary: dict, film: dict) -> str:
    """The whole page: one run, the comparison over all runs, and the learned law."""
    config = summary["meta"]["config"]
    return page(
        "A puck in the dark",
        [
            "<h1>A puck in the dark</h1>",
            f"<p class='lead'>{_introduction(config)}</p>",
            f"<p>{escape(verdict(summary))} {escape(losses(summary))}</p>",
            f"<h2>One run</h2><p class='quiet'>{_caption(film, config)}</p>",
            _legend(film),
            figure_html(film_figure(film, config["tolerance"]), "film"),
            f"<h2>All runs</h2><p class='quiet'>{config['test']} episodes, {config['repeats']} keys each. "
            "The first three rows share model, guide, masks and random numbers and differ in λ only; bold is "
            "the best of these. The last row has the model’s own exact conditional as its guide, for "
            "reference.</p>",
            comparison_table(summary["rows"]),
            _meanings(summary["definitions"]),
            f"<p class='quiet'>{_limits()}</p>",
            f"<h2>The whole log</h2><p class='quiet'>{_promise(summary)}</p>",
            path_table(summary["paths"]),
            "<h2>The learned law</h2><p class='quiet'>From positions alone. The scale of the momentum p "
            "cannot be seen, so only accelerations compare with the truth; a is the known force.</p>",
            law_tables(summary["law"]),
            _footer(summary["meta"]),
        ],
    )


def _promise(summary: dict) -> str:
    """What a certified step does not promise, and what is said instead."""
    confidence = summary["paths"][0]["confidence"]
    return (
        "A certified step bounds that step’s error given its ancestors; it does not promise that no branch was lost "
        "before it. For the log shown above eight islands with random numbers of their own say how far the whole can "
        f"be trusted: an interval for its log evidence, a value that log Z exceeds (proven, at {confidence:.0%}), and "
        "how far apart the islands’ mode probabilities lie at their worst row. Gaussian branches are what "
        "<code>filter</code> takes by itself for this model."
    )


def path_table(paths: Sequence[dict]) -> str:
    """One row for each way to filter the log."""
    heads = ["", "log Z, nats", "proven: at least", "islands apart by", "certified steps"]
    body = [
        [
            escape(p["method"]), f"{p['log_evidence']:.2f} ± {number('{:.2f}', p['half_width'])}",
            number("{:.2f}", p["lower"]), f"{p['spread']:.2f}", f"{p['certified']:.1%}",
        ]
        for p in paths
    ]  # fmt: skip
    return table_html(heads, body, kind="comparison")


def law_tables(laws: Sequence[dict]) -> str:
    """Every mode's motion beside the true one, and its energy, resistance and port as learned."""
    motions = [[x["mode"], motion_text(x["motion"]), motion_text(x["true_motion"])] for x in laws]
    parts = [
        [x["mode"], energy_text(x["energy"]), matrix_text(x["resistance"]), matrix_text([x["port"]])] for x in laws
    ]
    return table_html(["mode", "learned", "true"], motions, kind="text") + table_html(
        ["ż = (J − R) ∇H + G a", "H(q, p)", "R", "G"], parts, kind="text"
    )


def _legend(film: dict) -> str:
    line = "height:0;width:18px;border-top:2px solid var(--ink);border-radius:0;vertical-align:4px"
    dot = "height:7px;width:7px;border-radius:4px;background:var(--ink);vertical-align:1px"
    marks = {"true position": line, "observed": dot, "hidden": "background:var(--hairline)"}
    marks |= {name: f"background:{c}" for name, c in zip(film["sides"], COLOURS, strict=True)}
    marks |= {f"mode: {m}": f"background:{c}" for m, c in zip(film["modes"], MODE_COLOURS, strict=True)}
    items = (f"<span><i style='{style}'></i>{escape(name)}</span> " for name, style in marks.items())
    return f"<div class='legend'>{''.join(items)}</div>"


def _meanings(definitions: dict[str, str]) -> str:
    items = "".join(f"<dt>{escape(c.title)}</dt><dd>{escape(definitions[c.key])}</dd>" for c in COLUMNS)
    return f"<details><summary class='quiet'>What the columns mean</summary><dl>{items}</dl></details>"


def _footer(meta: dict) -> str:
    config = {k.replace("_", " "): v for k, v in meta["config"].items() if k != "out"}
    settings = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in config.items())
    words = f"vhydro {meta['version']} · {meta['device']} · {meta['seconds']:.0f} s · {settings}"
    return f"<footer>{escape(words)}</footer>"
