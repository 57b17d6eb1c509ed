"""The logs of a run on its page: a list with a ribbon each, and the browser of one log, which `run.js` draws."""

import json
import shlex
from collections.abc import Sequence
from html import escape

from vhydro.report.run_files import Run, RunEpisode
from vhydro.report.run_findings import mode_rows, mode_shares
from vhydro.report.traces import packed_all

PATTERNS = 8  # that modes are told apart by
MOST_SHOWN = 7  # channels that are shown at first
WORDS = {
    "segments": "Stretches of one mode each, by what the whole log says (smoothing). The number is the mode’s.",
    "likeliest mode": "The mode with the largest probability after each row.",
    "mode probabilities": "The probability of every mode after each row, stacked from mode 0 at the bottom.",
    "certified": "A thin line: the Monte Carlo error of this step, given its ancestors, is proven to be in bounds. A "
    "hatched block: it is not. It does not promise that the model is right.",
    "surprise": "How unlikely the most surprising reading of a row is under the model, on a logarithmic scale. Above "
    "the dashed line a reading is taken for a sensor fault, is not used, and the step is never certified.",
    "λ spent": "The share of the model’s own prediction that was mixed into the guide, so that no contact branch is "
    "lost.",
    "interval": "Calibrated on held-out logs where the fit had some: that share of the readings lies inside.",
}


def swatch(mode: int) -> str:
    """A small field with the colour, the pattern and the number of a mode."""
    return f"<span class='mode m{mode % PATTERNS}'><b>{mode}</b></span>"


def modes_key(run: Run) -> str:
    """Every mode with its sign, its words and its share of the time."""
    shares = mode_shares(run) if run.episodes else [None] * len(run.modes)
    items = (
        f"<li>{swatch(i)}<span>{escape(words)}</span>"
        f"{'' if share is None else f'<small>{share:.0%} of the time</small>'}</li>"
        for i, (words, share) in enumerate(zip(run.modes, shares, strict=False))
    )
    return f"<ul class='key' aria-label='Modes'>{''.join(items)}</ul>"


def browser(run: Run, episodes: Sequence[RunEpisode], total: int) -> str:
    """The list of logs and the bench on which one is looked at, with the numbers of those that fit a page."""
    texts, points = packed_all(episodes)
    shown = list(episodes)[: len(texts)]
    left = total - len(shown)
    note = ""
    if left:
        note = (
            f"<p class='note'>The page has {len(shown)} of {total} logs, so that it stays small. To see others: "
            f"<code>vhydro report {escape(shlex.quote(run.place))} --episodes {len(shown)}:{total}</code></p>"
        )
    longest = max((e.rows for e in shown), default=0)
    if longest > points:
        note += (
            f"<p class='quiet'>Signals are thinned to {points} points a log, and no peak is lost; the files have "
            "every row.</p>"
        )
    packs = "".join(f"<script type='text/plain' class='log'>{text}</script>" for text in texts)
    return f"{_list(shown)}{note}{_bench(run)}{_data(run, shown, total)}{packs}"


def _list(episodes: Sequence[RunEpisode]) -> str:
    longest = max((e.rows for e in episodes), default=1) or 1
    items = "".join(f"<li>{_entry(e, longest)}</li>" for e in episodes)
    return f"<div class='logs' role='group' aria-label='All logs'><ol>{items}</ol></div>"


def _entry(episode: RunEpisode, longest: int) -> str:
    rows = max(episode.rows, 1)
    cuts = "".join(
        f"<i class='mode m{mode % PATTERNS}' style='width:{100 * n / rows:.2f}%'></i>" for mode, n in mode_rows(episode)
    )
    ribbon = (
        f"<span class='bar' aria-hidden='true'><span style='width:{100 * rows / longest:.1f}%'>{cuts}</span></span>"
    )
    said = faults = ""
    if "certified" in episode.signals:
        bare = "certificate" in episode.signals and not episode.signals["certificate"].any()
        said = "no certificate" if bare else f"{episode.signals['certified'].mean():.0%} certified"
    if "faults" in episode.signals and (count := int(episode.signals["faults"].sum())):
        faults = f"{count} fault{'s' if count > 1 else ''}"
    name = escape(episode.name, quote=True)
    return (
        f"<button type='button'><span class='name' title='{name}'>{name}</span>{ribbon}"
        f"<span class='said'>{said}</span><span class='said faults'>{faults}</span></button>"
    )


def _bench(run: Run) -> str:
    head = (
        "<div class='bench'><h3><span id='log-name'>A log</span><small id='log-said'></small></h3>"
        "<button type='button' id='before'>← Previous</button><button type='button' id='after'>Next →</button>"
        "<button type='button' id='whole' disabled>Whole log</button></div>"
        "<p class='quiet keys'>Click a segment or drag across to look closely, double-click for the whole log. Keys: "
        "<kbd>n</kbd> and <kbd>p</kbd> next and previous log, <kbd>+</kbd> <kbd>−</kbd> <kbd>Esc</kbd> zoom, arrows "
        "move the line when the plot is chosen.</p>"
    )
    plot = (
        "<div id='plot' tabindex='0' role='group' aria-label='The chosen log; arrow keys move along it'>"
        "<div class='areas' id='areas'></div><div id='drag'></div><div id='cursor'><b></b></div></div>"
        "<p class='hush' id='spoken' aria-live='polite'></p>"
    )
    table = (
        "<h3>Segments of this log</h3><p class='quiet' id='cut-words'></p>"
        "<div class='sheet wide' tabindex='0' role='group' aria-label='Segments of the chosen log'>"
        "<table id='segments' class='dense'><thead><tr><th scope='col'>what</th><th scope='col'>from</th>"
        "<th scope='col'>to</th><th scope='col'>lasts</th><th scope='col'>how sure</th></tr></thead><tbody></tbody>"
        "</table></div>"
    )
    terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in WORDS.items())
    reading = f"<details><summary>How to read this</summary><dl>{terms}</dl></details>"
    blind = (
        "<noscript><p class='note'>The signals are drawn by a script, which this browser does not run.</p></noscript>"
    )
    return f"{_patterns()}{head}{_signs(run)}{_chips(run)}{blind}{plot}{reading}{table}"


def _signs(run: Run) -> str:
    """The marks of a signal's picture, each with its words."""
    if not run.channels:
        return ""
    level = round(100 * float((run.filtered or {}).get("level", 0.9)))
    ring = "M13 7m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0"
    marks = {
        "seen": "<path class='seen' d='M5 7h0M13 5h0M21 8h0'/>",
        "believed": "<path class='believed' d='M1 8C9 2 17 12 25 6'/>",
        f"{level} % interval": "<path class='band' d='M1 3H25V11H1z'/>",
        "hidden from the model": f"<path class='truth' d='{ring}'/>" if (run.filtered or {}).get("hide") else "",
        "taken for a fault": "<path class='fault' d='M8 2l10 10m0-10l-10 10'/>",
    }
    items = (
        f"<li><svg viewBox='0 0 26 14' aria-hidden='true'>{mark}</svg>{escape(words)}</li>"
        for words, mark in marks.items()
        if mark
    )
    return f"<ul class='signs'>{''.join(items)}</ul>"


def _chips(run: Run) -> str:
    """A switch for each group of channels; the first that fit are on."""
    groups = list(dict.fromkeys(run.groups))
    if not groups:
        return ""
    shown, count = [], 0
    for group in groups:
        count += run.groups.count(group)
        if count <= MOST_SHOWN or not shown:
            shown.append(group)
    buttons = "".join(
        f"<button type='button' data-group='{escape(g, quote=True)}' aria-pressed='{str(g in shown).lower()}'>"
        f"{escape(g.replace('_', ' ') or 'channels')} ({run.groups.count(g)})</button>"
        for g in groups
    )
    return f"<div class='chips' role='group' aria-label='Channels to show'>Channels: {buttons}</div>"


def _patterns() -> str:
    """The patterns of modes, and that of steps without a certificate, for what is drawn as SVG."""
    lines = (
        "", "M0 0L6 6", "M0 6L6 0", "M3 3h.01", "M3 0V6", "M0 0L6 6M0 6L6 0", "M0 3H6", "M3 0V6M0 3H6",
    )  # fmt: skip
    modes = "".join(
        f"<pattern id='mode-{i}' class='m{i}' width='6' height='6' patternUnits='userSpaceOnUse'>"
        "<rect width='6' height='6' style='fill:color-mix(in srgb, var(--c) 48%, var(--paper))'/>"
        f"<path d='{path}' style='stroke:color-mix(in srgb, var(--c) 90%, var(--ink))' stroke-linecap='round' "
        f"stroke-width='{2 if i == 3 else 1}'/></pattern>"
        for i, path in enumerate(lines)
    )
    off = (
        "<pattern id='uncertified' width='5' height='5' patternUnits='userSpaceOnUse'>"
        "<rect width='5' height='5' style='fill:var(--paper)'/><path d='M0 5L5 0' style='stroke:var(--wrong)' "
        "stroke-width='1.6'/></pattern>"
    )
    return f"<svg class='defs' aria-hidden='true'><defs>{modes}{off}</defs></svg>"


def _data(run: Run, episodes: Sequence[RunEpisode], total: int) -> str:
    """What all logs share, as JSON that cannot end its script."""
    limit = min(run.surprise_limit, default=6.0)
    shared = {
        "dt": run.dt or 1.0, "modes": run.modes, "channels": run.channels, "units": run.units, "groups": run.groups,
        "names": [e.name for e in episodes], "total": total, "surprise": limit if limit < 1e6 else 6.0,
        "level": float((run.filtered or {}).get("level", 0.9)),
    }  # fmt: skip
    text = json.dumps(shared, allow_nan=False).replace("<", "\\u003c")
    return f"<script type='application/json' id='run-data'>{text}</script>"
