"""The page of a run, `RUN/index.html`: a pure function of the files that fit, filter, segment, laws and plan wrote."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vhydro.report.page import ASSETS, Section, folded, page, terms_html, write_page
from vhydro.report.run_episodes import browser, modes_key
from vhydro.report.run_files import Run, chosen, read_run
from vhydro.report.run_findings import findings
from vhydro.report.run_laws import laws_html
from vhydro.report.run_plan import plan_html
from vhydro.report.words import listed

NEXT = {
    "filter": "Signals, calibrated intervals, mode probabilities and certificates of every log",
    "segment": "Every log cut into segments, with how sure the model is",
    "laws": "The law of every mode from these logs, with pictures, and how it predicts one that it was not fitted to",
    "plan": "Actions for a task of yours, with what can be proven of their risk",
}
FILES = {
    "model.vhydro": "the model: `vhydro.load(…)`",
    "fit.json": "what was fitted, on what, with which settings",
    "beliefs.npz": "what is believed of every row",
    "summary.json": "a line about every filtered log",
    "segments.csv": "the segments as a table",
    "segments.json": "the segments with words",
    "posteriors.npz": "mode probabilities, filtered and smoothed, and the likeliest path",
    "timeline.svg": "the segments as a picture",
    "law.json": "the law: `vhydro.laws.load_law(…)`",
    "law.txt": "the law as text",
    "law.tex": "the law in LaTeX",
    "law.c": "the accelerations as a C function",
    "law.py": "the accelerations as a Python function, of numbers or NumPy arrays",
    "actions.csv": "the plan as a table",
    "plan.json": "the plan and its proof",
    "run.rrd": "all of it for Rerun’s viewer: `rerun run.rrd`",
}
WRITTEN = {
    "law.txt": "text",
    "law.tex": "LaTeX",
    "law.json": "JSON",
    "law.c": "a C function for a controller",
    "law.py": "a Python function for numbers or NumPy arrays",
}


def refuse_foreign_page(folder: Path) -> None:
    """Raises, before any work, where the page would take the place of somebody else's."""
    there = folder / "index.html"
    if there.is_dir() or (there.is_file() and b"vhydro" not in there.read_bytes().lower()):
        raise FileExistsError(
            f"{there} is not a page of this program; expected a new folder or an old run. Give another --out."
        )


def write_run_page(folder: Path, asked: Sequence[str] = ()) -> Path:
    """The path of the page, which is written from everything that the folder holds."""
    refuse_foreign_page(folder)
    there = [name for name in FILES if (folder / name).is_file()]
    return write_page(folder, run_page(read_run(folder), asked, files=there))


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def run_page(run: Run, asked: Sequence[str] = (), *, files: Sequence[str] = ()) -> str:
    """The whole page, of all episodes or of those that were asked for."""
    episodes, said = chosen(run.episodes, asked), findings(run)
    middle = [_logs(run, episodes, asked), _laws(run, files), _plan(run)]
    sections = [*middle, _fit(run), _limits(run), _next(run), _folder(files)]
    more = "".join(f"<p>{escape(sentence)}</p>" for sentence in said[1:])
    kicker = "A run inside <a href='../index.html'>another</a>" if run.above else "A run"
    return page(
        run.name, [s for s in sections if s is not None], answer="".join(map(escape, said[:1])), kicker=kicker,
        intro=more + _intro(run), home="../index.html" if run.above else "", style=_asset("run.css"),
        script=_asset("run.js") if run.episodes else "",
        footer="This page was written from the files of its folder; <code>vhydro report</code> writes it again.",
    )  # fmt: skip


def _intro(run: Run) -> str:
    stale = "".join(
        f"<p class='note'><b>{escape(name)} is of another model</b> than the one here, which was fitted later."
        " Run its verb again to renew it.</p>"
        for name in run.stale
    )
    return stale + (modes_key(run) if run.modes else "") + _others(run)


def _others(run: Run) -> str:
    """Links to the runs in this one's folder."""
    links = [f"<a href='{quote(name)}/index.html'>{escape(name)}</a>" for name in run.inside]
    return f"<p>Further runs in this folder: {listed(links)}.</p>" if links else ""


def _logs(run: Run, episodes: Sequence[Any], asked: Sequence[str]) -> Section | None:
    if not episodes:
        return None
    where = (run.filtered or {}).get("logs_from", "")
    said = f"<p class='quiet'>From <code>{escape(str(where))}</code>.</p>" if where else ""
    total = len(episodes) if asked else len(run.episodes)
    return Section("The logs", said + browser(run, episodes, total), "Logs")


def _laws(run: Run, files: Sequence[str]) -> Section | None:
    if run.law is None:
        return None
    try:
        return Section("The law", laws_html(run.law) + _written(files), "Law")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return Section("The law", _damaged("laws.json", error), "Law")


def _written(files: Sequence[str]) -> str:
    """Where the law is to be had for other programs."""
    there = [f"<a href='{name}'>{words}</a>" for name, words in WRITTEN.items() if name in files]
    if not there:
        return ""
    needs = "the functions need nothing but sine, cosine, exponential and absolute value"
    return f"<h3>To take along</h3><p>The law as {listed(there)}; {needs}.</p>"


def _plan(run: Run) -> Section | None:
    if run.plan is None:
        return None
    try:
        return Section("The plan", plan_html(run.plan), "Plan")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return Section("The plan", _damaged("plan.json", error), "Plan")


def _damaged(name: str, error: Exception) -> str:
    said = escape(f"{type(error).__name__}: {error}")
    return f"<p class='note'>{name} does not hold what its verb writes ({said}). Run the verb again.</p>"


def _fit(run: Run) -> Section | None:
    fit = run.fit
    if fit is None:
        return None
    words = "".join(f"<p>{escape(_sentence(str(w)))}</p>" for w in fit.get("words", ()))
    said = {
        "logs": str(fit.get("logs_from", "")), "format": str(fit.get("format", "")), "view": str(fit.get("view", "")),
        "time step": f"{float(fit.get('dt') or 0):g} s", "states": str(fit.get("latent", "")),
        "channels": _names(fit.get("channels", ())), "inputs": _names(fit.get("inputs", ())) or "none",
        "took": f"{fit.get('seconds', 0):g} s", "version": str(fit.get("version", "")),
    }  # fmt: skip
    settings = _flat(fit.get("asked", {})) | _flat(fit.get("settings", {}))
    content = words + terms_html(said) + folded("Every setting", terms_html(settings))
    return Section("What was fitted", content, "Fit")


def _sentence(line: str) -> str:
    """A line of a report with a capital and a full stop."""
    return f"{line[:1].upper()}{line[1:]}".rstrip(".") + "."


def _names(channels: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{c['name']}{' (' + c['unit'] + ')' if c.get('unit') else ''}" for c in channels)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Names and values on one level, as plain text."""
    out: dict[str, str] = {}
    for name, value in values.items():
        key = f"{before}{str(name).replace('_', ' ')}"
        out |= (
            _flat(value, f"{key}: ") if isinstance(value, Mapping) else {key: "none" if value is None else str(value)}
        )
    return out


def _limits(run: Run) -> Section | None:
    """What the fit could not do, what could not be read, and what is not certified."""
    lines = [_sentence(str(line)) for line in (run.fit or {}).get("limits", ())]
    lines += [_sentence(line) for line in run.unread]
    for mode in (run.law or {}).get("modes", ()):
        lines += [f"The law of “{mode.get('name')}” is not identified: {r}." for r in mode.get("reasons", ())]
    if run.filtered and not run.filtered.get("calibrated", True):
        lines.append("The intervals are the belief’s own and not calibrated: no held-out log was there to do it with.")
    bare = [e.name for e in run.episodes if "certificate" in e.signals and not e.signals["certificate"].any()]
    if bare:
        lines.append(
            f"The filter of {len(bare)} logs certifies nothing: its modes are not linear, and its branches are "
            "linearised without a correction."
        )
    if not lines:
        return None
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return Section("What it could not do", f"<ul class='limits'>{items}</ul>", "Limits")


def _next(run: Run) -> Section | None:
    """The verbs that have not been used yet and could be, ready to be copied."""
    done = {"filter": run.filtered, "segment": run.segmented, "laws": (run.law or {}).get("logs_from")}
    view = (run.fit or {}).get("view", "")
    can = {"filter": True, "segment": len(run.modes) != 1, "laws": view == "mechanics"}
    can |= {"plan": view in ("mechanics", "plain") and bool((run.fit or {}).get("inputs")) and not run.plan}
    left = [verb for verb in NEXT if can[verb] and not done.get(verb)]
    if not left:
        return None
    named, logs = (escape(shlex.quote(x)) for x in (run.place, str((run.fit or {}).get("logs_from") or "LOGS")))
    after = dict.fromkeys(NEXT, "") | {"plan": " TASK.py"}
    items = "".join(
        f"<p>{NEXT[verb]}:</p><pre><code>vhydro {verb} {named} {logs}{after[verb]} --out {named}</code></pre>"
        for verb in left
    )
    return Section("What could come next", items, "Next")


def _folder(files: Sequence[str]) -> Section | None:
    listed = "".join(f"<dt><a href='{name}'>{name}</a></dt><dd>{_code(FILES[name])}</dd>" for name in files)
    return Section("Files", f"<dl>{listed}</dl>", "Files") if listed else None


def _code(words: str) -> str:
    """Plain text with what stands between backticks as code."""
    parts = escape(words).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
