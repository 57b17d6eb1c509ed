"""Text from files made safe to show: one line, nothing that steers a terminal, a page or a spreadsheet."""

import unicodedata
from typing import Any

FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of a formula


def printable(text: str) -> str:
    """The text on one line; characters that control, reorder or are not there become `\N{REPLACEMENT CHARACTER}`."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) == "Zs" else "\N{REPLACEMENT CHARACTER}"


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which it keeps."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any) -> Any:
    """A value read from JSON with every text in it, names included, printable."""
    match value:
        case str():
            return printable_lines(value)
        case dict():
            return {printable_lines(name): printable_json(inner) for name, inner in value.items()}
        case list():
            return [printable_json(inner) for inner in value]
    return value


def spreadsheet_text(text: str) -> str:
    """The text as a cell of a CSV file that a spreadsheet shows and does not evaluate."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(FORMULA) else shown
