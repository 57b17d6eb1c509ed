"""What was asked for and cannot be meant: the error of it, and the name that was probably meant."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

ALIKE = 0.6  # how much of two names has to agree for one to be taken for the other
TIE = 0.02  # difference of that below which both may be meant
LISTED = 12  # names that are listed where none is near


class UsageError(ValueError):
    """A request that is wrong whatever the files hold: an unknown name, a value out of range, options that exclude
    each other. The command line ends with status 2 on it, with 1 on every other failure."""


class Incomplete(SystemExit):
    """The end of work that left something out, which it has told of: `result` is the rest. The status is 1."""

    def __init__(self, result: Any):
        super().__init__(1)
        self.result = result


def at_least(name: str, value: float | int, least: float | int) -> None:
    """Raises where the value of an option is smaller than it can be."""
    if value < least:
        raise UsageError(f"--{name} {value:g}; expected at least {least:g}. Give --{name} {least:g} or more.")


def share(name: str, value: float | int) -> None:
    """Raises where the value of an option is no share strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"--{name} {value:g}; expected a share strictly between 0 and 1, such as --{name} 0.9.")


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str, where: str = "") -> None:
    """Raises on the first of the given names that is none of the known ones."""
    names = list(known)
    for name in given:
        if name not in names:
            raise UsageError(f"there is no {what} {name!r}{where}; expected {', '.join(names)}.{_hint(name, names)}")


def _hint(name: str, names: list[str]) -> str:
    return f" {did_you_mean(name, names)}" if nearest(name, names) else " Leave it out, or take one of these."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`Did you mean X?` where known names are near the given one, else a sentence that lists them."""
    names = list(known)
    if near := nearest(given, names):
        return f"Did you mean {' or '.join(near)}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"There are {', '.join(names[:LISTED])}{more}." if names else "There are none."


def nearest(given: str, known: Iterable[str]) -> list[str]:
    """The known name nearest to the given one, whatever its case, or two where they are as near; none where none is."""
    word, names = given.casefold(), list(dict.fromkeys(known))
    alike = {name: SequenceMatcher(None, word, name.casefold()).ratio() for name in names}
    best = max(alike.values(), default=0.0)
    if best >= ALIKE:
        return [name for name in names if alike[name] > best - TIE][:2]
    return [n for n in names if len(word) > 2 and (word in n.casefold() or n.casefold() in word)][:1]
