"""How a law predicts a log: from its first sample through its contacts, and second by second."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vhydro.report.charts import Key, Panel, figure, straight
from vhydro.report.words import listed, number, plural

WIDE = 700.0  # so that its words can be read on a phone
LAW = "#1d4ed8"


def prediction_html(
    found: Mapping[str, Any] | None, modes: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]
) -> str:
    """Both pictures of one log, with what held-out windows say of the law; empty where it could not be followed."""
    if not found:
        return ""
    doubtful = [escape(str(m["name"])) for m in modes if m["status"] == "unidentified"]
    marked = f"<p class='wrong'>The law is not identified in {listed(doubtful)}.</p>" if doubtful else ""
    return f"<h3>Does it predict?</h3>{marked}{_whole(found, modes, held_out)}{_by_second(found)}"


def _by(found: Mapping[str, Any]) -> str:
    return (
        f"a law that was fitted to the other {plural(int(found['others']), 'log')} only"
        if found["held_out"]
        else "the law, which was fitted to this log as well"
    )


def _whole(found: Mapping[str, Any], modes: Sequence, held_out: Sequence[Mapping[str, Any]]) -> str:
    """The log from its first sample, left alone with the inputs."""
    whole = found.get("whole")
    if not whole:
        return ""
    panels = [_panel(found, whole, axis) for axis in range(len(found["names"]))]
    for panel in panels:
        if not whole["all"]:
            panel.rule("x", whole["holds"])
            words = f"holds for {whole['holds']:.2g} s"
            panel.words(whole["holds"], panel.y.high, words, kind="halo", shift=(4, 8))
    through = " through all contacts" if len(modes) > 1 else ""
    long = f"{whole['seconds']:.3g} s"
    held = (
        f"It stays within a tenth of the log’s own spread to the end, for {long}."
        if whole["all"]
        else f"It stays within a tenth of the log’s own spread for {whole['holds']:.2g} s of {long}."
    )
    caption = (
        f"{escape(str(found['log']))} from its first sample (a ring){through}, simulated with the inputs alone by "
        f"{_by(found)}. {held}"
    )
    if whole.get("told"):
        caption += " The law does not say by itself when its mode changes: the modes are those of the log."
    for one in held_out[:1]:
        caption += (
            f" In held-out windows of {one['seconds']:.3g} s nine in ten deviate by at most "
            f"{one['excess']:.3g} times what noise alone would leave."
        )
    return figure(panels, _title(found), keys=_keys("simulated"), caption=caption)


def _by_second(found: Mapping[str, Any]) -> str:
    panels = [_panel(found, found, axis) for axis in range(len(found["names"]))]
    off = ", ".join(
        f"{name} by {number('{:.2g}', rms)}{f' {unit}' if unit else ''} of {number('{:.2g}', spread)}"
        for name, rms, spread, unit in zip(found["names"], found["rms"], found["spread"], found["units"], strict=True)
    )
    caption = (
        f"{escape(str(found['log']))}, second by second: each stretch starts from the smoothed state (a ring) and is "
        f"then left alone with the inputs, by {_by(found)}. RMS deviation: {escape(off)}, the log’s own spread."
    )
    if found.get("lost"):
        caption += (
            f" In {found['lost']} of {plural(int(found['stretches']), 'stretch', 'stretches')} the law runs off or "
            "cannot be followed: they are drawn, and counted, as far as it goes."
        )
    return figure(panels, _title(found), keys=_keys("predicted"), caption=caption)


def _title(found: Mapping[str, Any]) -> str:
    return "held-out log and prediction" if found["held_out"] else "log and prediction"


def _keys(course: str) -> list[Key]:
    return [Key("measured", "var(--quiet)", "circle"), Key(course, LAW, dash=""), Key("start", LAW, "ring")]


def _panel(found: Mapping[str, Any], drawn: Mapping[str, Any], axis: int) -> Panel:
    seen, course = ([row[axis] for row in drawn[k]] for k in ("seen", "predicted"))
    times = drawn.get("times") or [i * found["dt"] for i in range(len(seen))]
    there = [v for v in (*seen, *course) if v is not None]
    unit = found["units"][axis]
    title = f"{found['names'][axis]}{f' ({unit})' if unit else ''}"
    panel = Panel(straight(times, "s"), straight(there), title, width=WIDE, height=230.0)
    known = [(t, v) for t, v in zip(times, seen, strict=True) if v is not None]
    panel.cloud([t for t, _ in known], [v for _, v in known], "var(--quiet)", name="seen", size=3.4, opacity=0.6)
    starts = [int(s) for s in drawn.get("starts", (0,))]
    _course(panel, times, course, starts)
    ends = [s for s in starts if course[s] is not None]
    return panel.dots([times[s] for s in ends], [course[s] for s in ends], LAW, name="start", symbol="ring", size=7.0)


def _course(panel: Panel, times: Sequence[float], course: Sequence[float | None], starts: Sequence[int]) -> None:
    """A line for each stretch that begins anew."""
    for first, end in zip(starts, [*starts[1:], len(course) - 1], strict=True):
        span = slice(first + (first > 0), end + 1)
        panel.line(times[span], course[span], LAW, name="predicted", width=1.8)
