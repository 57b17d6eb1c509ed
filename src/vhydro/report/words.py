"""Numbers and lists as a person writes them."""

from collections.abc import Sequence


def number(pattern: str, value: float | int | None) -> str:
    """The value with a true minus sign; a missing one was not finite."""
    return "−∞" if value is None else pattern.format(value).replace("-", "−")


def plural(count: int, word: str, many: str = "") -> str:
    """`1 log`, `2,406 logs`; `many` is the plural where an s does not make it."""
    return f"{count:,} {word if count == 1 else many or f'{word}s'}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
