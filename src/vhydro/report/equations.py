"""Learned laws as a person would write them."""

from collections.abc import Mapping, Sequence

FLAT = 1.0  # 1/s²: a spring softer than this has no place of rest worth naming


def number(pattern: str, value: float | int | None) -> str:
    """The value with a true minus sign; a missing one was not finite."""
    return "−∞" if value is None else pattern.format(value).replace("-", "−")


def linear_text(terms: Sequence[tuple[float, str]], digits: int = 2) -> str:
    """`1.20 x − 0.50 y`, without what rounds to 0."""
    kept = [(c, t) for c, t in terms if round(abs(c), digits)]
    if not kept:
        return "0"
    first, *others = (("−" if c < 0 else "+", f"{abs(c):.{digits}f} {t}".strip()) for c, t in kept)
    return " ".join([first[1] if first[0] == "+" else "−" + first[1], *(f"{sign} {t}" for sign, t in others)])


def motion_text(m: Mapping[str, float]) -> str:
    """A mode's acceleration; a real spring is written with the place where it rests."""
    damper, port = (-m["damping"], "q̇"), (m["gain"], "a")
    if m["stiffness"] < FLAT:
        return "q̈ = " + linear_text([(-m["stiffness"], "q"), damper, port, (m["push"], "")])
    rest = m["push"] / m["stiffness"]
    spring = f"(q {'−' if rest > 0 else '+'} {abs(rest):.2f})"
    return "q̈ = " + linear_text([(-m["stiffness"], spring), damper, port])


def energy_text(coefficients: Mapping[str, float]) -> str:
    """A mode's Hamiltonian."""
    return linear_text([(c, term.replace("^2", "²")) for term, c in coefficients.items()])


def matrix_text(rows: Sequence[Sequence[float]]) -> str:
    """`[1.00, 0.00; 0.00, 1.00]`."""
    return "[" + "; ".join(", ".join(number("{:.2f}", v) for v in row) for row in rows) + "]"
