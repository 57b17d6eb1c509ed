"""What was asked for and cannot be meant: the error of it, and the name that was probably meant."""

from collections.abc import Iterable
from difflib import SequenceMatcher

ALIKE = 0.6  # how much of two names has to agree for one to be taken for the other
TIE = 0.02  # difference of that below which both may be meant
LISTED = 12  # names that are listed where none is near


class UsageError(ValueError):
    """A request that is wrong whatever the files hold: an unknown name, a value out of range, options that exclude
    each other. The command line ends with status 2 on it, with 1 on every other failure."""


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
