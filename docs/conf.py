"""The documentation site: Markdown pages as they are on disk, and an API reference from the docstrings.

Sphinx, because it is old, kept and has what an API reference needs; no theme or extension fetches anything.
"""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

project = "VHyDRO"
author = "the VHyDRO authors"
project_copyright = "the VHyDRO authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name none: commands and what they print

html_theme = "furo"
html_title = "VHyDRO"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "github-dark"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

SPECIAL = re.compile(r"([*_|\\])")


def _escaped(text: str) -> str:
    """A line of a docstring as reStructuredText: what stands in backticks is code, nothing else is markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is a backtick
        return SPECIAL.sub(r"\\\1", text.replace("`", r"\`"))
    return "".join(f"``{part}``" if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def in_rst(app, what, name, obj, options, lines: list[str]) -> None:  # noqa: ARG001 (Sphinx names them)
    """Turns docstrings, which are plain text with `code`, lists and examples here, into what Sphinx reads."""
    if what == "attribute" and (not any(lines) or lines[0].startswith("Alias for field number")):
        lines[:] = [said] if (said := comment_of(name)) else []
    out: list[str] = []
    for paragraph in "\n".join(lines).strip("\n").split("\n\n"):
        rows = paragraph.split("\n")
        if not any(rows):
            continue
        if any(row.lstrip().startswith(">>>") for row in rows):
            out += [*rows, ""]
            continue
        if all(row.startswith("    ") for row in rows if row):  # a formula or a table, as it stands
            out += ["::", "", *rows, ""]
            continue
        text = _escaped("\n".join(rows)).split("\n")
        for i, row in enumerate(text):
            if row.startswith("- ") and i and not text[i - 1].startswith(("- ", "  ")):
                out.append("")
            out.append(row)
        out.append("")
    lines[:] = out


def comment_of(name: str) -> str:
    """What is said of a field behind it, in the source of its class."""
    module, owner, field = name.rsplit(".", 2)
    try:
        source = inspect.getsource(getattr(import_module(module), owner))
    except (AttributeError, ImportError, OSError):
        return ""
    found = re.search(rf"^    {field}:.*?  # (.+)$", source, re.MULTILINE)
    return found[1] if found else ""


MADE_BY_FUNCTIONS = ("Fitted", "FittedStream", "HybridModel", "Law", "Belief", "Dataset", "Plan", "Proof")


def shown_signature(app, what, name, obj, options, signature, returned):  # noqa: ARG001 (Sphinx names them)
    """Signatures that a reader can use: none of what a function makes, and defaults that can be read."""
    if what == "class" and name.rpartition(".")[2] in MADE_BY_FUNCTIONS:
        return "", ""
    return tuple(KEY.sub("PRNGKeyArray", s.replace("<factory>", "...")) if s else s for s in (signature, returned))


KEY = re.compile(r"~?(jaxtyping\.)?Key\[[^|]*\] \| ~?(jaxtyping\.)?UInt32\[[^|]*\] \| ~?(jaxtyping\.)?UInt32\[[^\]]*\]")


def shorten(app, doctree) -> None:  # noqa: ARG001 (Sphinx names them)
    """Arrays are called what a user calls them."""
    for text in list(doctree.findall(nodes.Text)):
        if "jaxlib._jax." in text:
            text.parent.replace(text, nodes.Text(text.replace("jaxlib._jax.", "")))


def setup(app) -> None:
    app.connect("autodoc-process-docstring", in_rst)
    app.connect("autodoc-process-signature", shown_signature)
    app.connect("doctree-read", shorten)
