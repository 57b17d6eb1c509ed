"""One self-contained page: text, tables and figures that open without a network, in the light and in the dark."""

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from vhydro.report.files import staged

FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
INK, QUIET, HAIRLINE, SHADE, PAPER = "#1c1f23", "#626b79", "#e5e7eb", "#f1f2f4", "#ffffff"
WRONG = "#c81e1e"
NAMES = {"ink": INK, "quiet": QUIET, "hairline": HAIRLINE, "shade": SHADE, "paper": PAPER, "wrong": WRONG}
DARK = {"ink": "#e8eaed", "quiet": "#a3acb8", "hairline": "#3a414b", "shade": "#262b32", "paper": "#15181c"}
DARK |= {"wrong": "#ff8a80"}
NARROW = 720  # pixels below which a figure is scrolled and not squeezed


def _rgb(colour: str) -> str:
    """A colour as browsers write it into a drawing."""
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def _drawn(name: str) -> str:
    """In the dark, what a figure draws in one of the page's own colours follows the page."""
    colour, drawn = _rgb(NAMES[name]), ".figure :not(.heatmap-label text)"  # which stands on a colour of its own
    parts = (f"{drawn}[style*='{p}: {colour}'] {{ {p}: var(--{name}) !important; }}" for p in ("fill", "stroke"))
    return "\n".join(parts)


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = f"""
:root {{ {_variables(NAMES)} color-scheme: light dark; font: 16px/1.55 {FONT}; }}
html {{ color: var(--ink); background: var(--paper); }}
body {{ max-width: 1080px; margin: 0 auto; padding: 40px 28px 64px; }}
h1 {{ font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -.015em; margin: 0 0 10px; }}
h2 {{ font-size: 20px; font-weight: 650; letter-spacing: -.005em; margin: 52px 0 6px; }}
h3 {{ font-size: 15px; font-weight: 600; margin: 22px 0 0; }}
p {{ margin: 6px 0 12px; max-width: 78ch; }}
a {{ color: inherit; }}
code, pre {{ font: 13px/1.5 ui-monospace, 'DejaVu Sans Mono', Consolas, monospace; }}
pre {{ margin: 8px 0; padding: 10px 12px; background: var(--shade); border-radius: 6px; overflow-x: auto; }}
.lead {{ font-size: 18px; }}
.quiet {{ color: var(--quiet); font-size: 14px; max-width: 96ch; }}
.wide {{ overflow-x: auto; margin: 12px 0; }}
.figure {{ min-width: {NARROW}px; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; width: 100%; }}
th, td {{ text-align: right; padding: 6px 9px; white-space: nowrap; }}
thead th {{ font-weight: 500; color: var(--quiet); vertical-align: bottom; line-height: 1.25; white-space: normal; }}
td, tbody th {{ border-top: 1px solid var(--hairline); vertical-align: top; font-weight: 400; }}
th:first-child, td:first-child {{ padding-left: 0; position: sticky; left: 0; background: var(--paper); }}
th:first-child, td:first-child, .text th, .text td {{ text-align: left; }}
td small {{ color: var(--quiet); font-size: 12px; }}
td i {{ color: var(--quiet); font-size: 12px; padding-left: 3px; }}
.dense {{ font-size: 13px; }}
.dense th, .dense td {{ padding-top: 2px; padding-bottom: 2px; }}
.wrong {{ color: var(--wrong); }}
.comparison tr:last-child td {{ color: var(--quiet); }}
.text td + td {{ font: 15px/1.5 Cambria, 'STIX Two Text', 'Liberation Serif', Georgia, serif; }}
details {{ margin: 8px 0; }}
summary {{ cursor: pointer; color: var(--quiet); font-size: 14px; }}
summary:hover {{ color: var(--ink); }}
dl {{ font-size: 14px; display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 3px 1em; }}
dd {{ margin: 0; color: var(--quiet); }}
.legend {{ font-size: 13px; margin-top: 10px; }}
.legend span {{ white-space: nowrap; margin-right: 18px; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }}
.pair {{ display: grid; grid-template-columns: 1fr 1fr; gap: 4px 20px; margin: 8px 0 20px; }}
.pair pre {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
.pair span {{ color: var(--quiet); font-size: 13px; }}
footer {{ margin-top: 48px; padding-top: 14px; border-top: 1px solid var(--hairline); }}
footer {{ color: var(--quiet); font-size: 13px; overflow-wrap: anywhere; }}
@media (max-width: 900px) {{
  body {{ padding: 24px 16px 40px; }}
  h1 {{ font-size: 25px; }}
  .lead {{ font-size: 17px; }}
  table {{ font-size: 13px; }}
  td, th {{ padding: 5px 6px; }}
  td:first-child {{ white-space: normal; min-width: 96px; max-width: 36vw; }}
  .pair {{ grid-template-columns: 1fr; }}
}}
@media (prefers-color-scheme: dark) {{
  :root {{ {_variables(DARK)} }}
  {"".join(map(_drawn, NAMES))}
}}
"""
# Figures are drawn when they come near the window: a page opens at once, however many it has.
SCRIPT = """
const library = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  (0, eval)(await new Response(stream).text());
})();
const draw = async figure => {
  if (figure.dataset.drawn) return;
  figure.dataset.drawn = true;
  try {
    await library;
    const {data, layout} = JSON.parse(figure.nextElementSibling.textContent);
    await Plotly.newPlot(figure, data, layout, {displayModeBar: false, responsive: true});
  } catch (error) { figure.textContent = 'This browser cannot draw the figure: ' + error; }
};
const figures = [...document.querySelectorAll('.figure')];
const near = entries => entries.filter(e => e.isIntersecting).forEach(e => draw(e.target));
const watch = new IntersectionObserver(near, {rootMargin: '800px'});
figures.forEach(figure => watch.observe(figure));
addEventListener('beforeprint', () => figures.forEach(draw));
"""


@cache
def _library() -> str:
    """The drawing library, compressed: a quarter of its size."""
    return b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def page(title: str, sections: Sequence[str]) -> str:
    """The whole document."""
    body = "\n".join(sections)
    drawing = f"<script type='text/plain' id='plotly'>{_library()}</script><script>{SCRIPT}</script>"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            body,
            drawing if "class='figure'" in body else "",
            "</body></html>\n",
        ]
    )


def figure_html(figure: Figure, name: str) -> str:
    """A figure as wide as the page, drawn when it comes into view; on a narrow screen it scrolls sideways."""
    figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
    text = str(figure.to_json()).replace("<", "\\u003c")
    place = f"<div class='figure' id='{name}' style='height:{figure.layout.height}px'></div>"
    return f"<div class='wide'>{place}<script type='application/json'>{text}</script></div>"


def legend_html(colours: Mapping[str, str]) -> str:
    """A line of coloured squares with their names."""
    items = (f"<span><i style='background:{c}'></i>{escape(name)}</span> " for name, c in colours.items())
    return f"<div class='legend'>{''.join(items)}</div>"


def folded(title: str, content: str) -> str:
    """Content behind a line of HTML that opens it."""
    return f"<details><summary>{title}</summary>{content}</details>"


def write_page(folder: Path, text: str) -> Path:
    """The path of the page, `folder/index.html`, which holds the text whole or is as it was before."""
    with staged(folder) as scratch:
        (scratch / "index.html").write_text(text, "utf-8")
    return folder / "index.html"


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """A table from HTML cells; kind "text" aligns them to the left, "comparison" sets the last row apart."""
    heading = "".join(f"<th>{h}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    table = f"<table class='{kind}'><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide'>{table}</div>"
