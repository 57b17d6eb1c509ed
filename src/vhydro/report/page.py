"""One self-contained page: text, tables and figures that open without a network."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure

from vhydro.report.files import staged

FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
INK, QUIET, HAIRLINE, SHADE = "#1c1f23", "#6b7280", "#e5e7eb", "#f1f2f4"

STYLE = f"""
:root {{ color: {INK}; background: #fff; font: 16px/1.55 {FONT}; }}
body {{ max-width: 1080px; margin: 0 auto; padding: 40px 28px 64px; }}
h1 {{ font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -.015em; margin: 0 0 10px; }}
h2 {{ font-size: 19px; font-weight: 650; letter-spacing: -.005em; margin: 44px 0 6px; }}
p {{ margin: 6px 0 12px; max-width: 78ch; }}
.lead {{ font-size: 17px; }}
.quiet {{ color: {QUIET}; font-size: 14px; max-width: 96ch; }}
.wide {{ overflow-x: auto; margin: 12px 0; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; width: 100%; }}
th, td {{ text-align: right; padding: 8px 9px; white-space: nowrap; }}
th {{ font-weight: 500; color: {QUIET}; vertical-align: bottom; line-height: 1.25; white-space: normal; }}
td {{ border-top: 1px solid {HAIRLINE}; }}
th:first-child, td:first-child {{ padding-left: 0; }}
th:first-child, td:first-child, .text th, .text td {{ text-align: left; }}
td small {{ color: {QUIET}; font-size: 12px; }}
.comparison tr:last-child td {{ color: {QUIET}; border-top-color: #9ca3af; }}
.text td + td {{ font: 15px/1.5 Cambria, 'STIX Two Text', 'Liberation Serif', Georgia, serif; }}
details {{ margin: 10px 0; }}
dl {{ font-size: 14px; color: {QUIET}; display: grid; grid-template-columns: max-content 1fr; gap: 3px 1em; }}
dt {{ color: {INK}; }}
dd {{ margin: 0; }}
.legend {{ font-size: 13px; margin-top: 10px; }}
.legend span {{ white-space: nowrap; margin-right: 18px; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }}
footer {{ margin-top: 48px; padding-top: 14px; border-top: 1px solid {HAIRLINE}; }}
footer {{ color: {QUIET}; font-size: 13px; }}
@media (max-width: 900px) {{
  body {{ padding: 24px 16px 40px; }}
  h1 {{ font-size: 25px; }}
  table {{ font-size: 13px; }}
  td, th {{ padding: 6px 5px; }}
}}
"""


def page(title: str, sections: Sequence[str]) -> str:
    """The whole document."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            *sections,
            "</body></html>\n",
        ]
    )


def figure_html(figure: Figure, name: str, *, library: bool = True) -> str:
    """A figure as wide as the page, with the drawing library it needs; a page's first figure brings that for all."""
    return figure.to_html(
        include_plotlyjs=library,
        full_html=False,
        div_id=name,
        default_width="100%",
        config={"displayModeBar": False, "responsive": True},
    )


def legend_html(colours: Mapping[str, str]) -> str:
    """A line of coloured squares with their names."""
    items = (f"<span><i style='background:{c}'></i>{escape(name)}</span> " for name, c in colours.items())
    return f"<div class='legend'>{''.join(items)}</div>"


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
