"""Laws as a person writes them: text and LaTeX."""

from math import floor, log10
from typing import Any

from vhydro.laws.law import Law, Number
from vhydro.library import Cosine, Custom, Monomial, Penetration, Sine, Term


def rounded(number: Number) -> str:
    """The value to the last digit its error leaves, at least two."""
    value, error = number
    if value == 0:
        return "0"
    size = floor(log10(abs(value)))
    digits = max(2, size - floor(log10(error)) + 1) if 0 < error < abs(value) else (2 if error > 0 else 6)
    short = f"{value:.{min(digits, 7)}g}"
    return f"{float(short):.0f}" if "e+" in short and abs(value) < 1e7 else short


def text(law: Any) -> str:
    """The law of every mode as lines of text: its Hamiltonian, then its equations of motion."""
    if not isinstance(law, Law):
        return str(law)
    parts = [_mode_text(law, mode, latex=False) for mode in range(len(law.modes))]
    fit = fit_lines(law)
    return "\n\n".join(["\n".join(p) for p in parts] + ["\n".join([*fit, *law.notes])]).strip() + "\n"


def fit_lines(law: Any) -> list[str]:
    """How well a law fits, and how well it predicts what it was not fitted to."""
    out = [] if law.chi_square is None else [f"misfit over sensor noise: χ² = {law.chi_square:.3f}"]
    if law.held_out:
        each = "; ".join(f"{h.excess:.3g} over {h.seconds:.3g} s" for h in law.held_out)
        out.append(f"held-out episodes, misfit of nine windows in ten over what noise leaves: {each}")
    return out


def latex(law: Any) -> str:
    """The same as a LaTeX `align*`."""
    if not isinstance(law, Law):
        return law.latex()
    lines = []
    for mode in range(len(law.modes)):
        head, *equations = _mode_text(law, mode, latex=True)
        lines.append(rf"&\text{{{head}:}}")
        lines += [line.replace(" = ", " &= ", 1) for line in equations]
    body = " \\\\\n".join(lines).replace("−", "-")  # LaTeX has no character for the sign
    return "\\begin{align*}\n" + body + "\n\\end{align*}\n"


def _mode_text(law: Law, mode: int, *, latex: bool) -> list[str]:
    status = law.status(mode)
    reasons = "; ".join(reason for m, reason in law.problems if m == mode)
    head = (
        f"{law.modes[mode]}"
        + {"identified": "", "at rest": " (at rest)", "unidentified": f" (unidentified: {reasons})"}[status]
    )
    n, dot = law.positions, (r"\dot " if latex else "")
    rate = [f"{dot}{name_of(c, latex)}" if latex else f"{c}̇" if len(c) == 1 else f"d{c}/dt" for c in law.coordinates]
    if status == "at rest":
        return [head, *(f"  {rate[i]} = 0" for i in range(n))]
    energy = law.energy(mode)
    names = [name_of(c, latex) for c in law.coordinates]
    lines = [f"  H = {summed([(c, _term(t, names, latex)) for t, c in energy.items()])}"]
    port, drag = law.port(mode), law.dissipation(mode)
    for i in range(2 * n):
        pieces = []
        if i < n:
            pieces += _slopes(energy, n + i, names, 1.0, latex)
        else:
            pieces += _slopes(energy, i - n, names, -1.0, latex)
            pieces += _dragged(energy, i, names, drag[i - n], latex)
        pieces += [(g, name_of(a, latex)) for g, a in zip(port[i], law.inputs, strict=True) if g.value]
        lines.append(f"  {rate[i]} = {summed(pieces)}")
    return [head, *lines]


def name_of(name: str, latex: bool) -> str:
    return rf"\mathit{{{name}}}" if latex and len(name) > 1 else name


def _term(term: Term, names: list[str], latex: bool) -> str:
    if not latex:
        return term.text(names)
    match term:
        case Monomial(powers):
            return " ".join(f"{n}^{k}" if k > 1 else n for n, k in zip(names, powers, strict=True) if k)
        case Sine(axis):
            return rf"\sin {names[axis]}"
        case Cosine(axis):
            return rf"\cos {names[axis]}"
        case Penetration(axis, at, side, power):
            depth = rf"{names[axis]} {-at:+.4g}" if side == "above" else rf"{at:.4g} - {names[axis]}"
            return rf"\tfrac{{1}}{{{power}}} [{depth}]_+^{{{power}}}"
        case Custom(label=label):
            return rf"\text{{{label}}}"


def _slopes(energy: dict[Term, Number], axis: int, names: list[str], sign: float, latex: bool) -> list:
    """The pieces of ±∂H/∂z_axis: coefficient and what it multiplies."""
    out = []
    for term, c in energy.items():
        piece = _slope(term, axis, names, latex)
        if piece:
            factor, words = piece
            out.append((Number(sign * factor * c.value, abs(factor) * c.error), words))
    return out


def _dragged(energy: dict[Term, Number], axis: int, names: list[str], drag: Number, latex: bool) -> list:
    """The pieces of −R ∂H/∂p, their errors those of R."""
    if not drag.value:
        return []
    pieces = _slopes(energy, axis, names, 1.0, latex)
    return [(Number(-drag.value * c.value, abs(c.value) * drag.error), words) for c, words in pieces]


def _slope(term: Term, axis: int, names: list[str], latex: bool) -> tuple[float, str] | None:
    match term:
        case Custom(label=label):
            if axis >= len(names) // 2:
                return None
            return 1.0, rf"\partial_{{{names[axis]}}} \text{{{label}}}" if latex else f"∂({label})/∂{names[axis]}"
        case Monomial(powers):
            if not powers[axis]:
                return None
            lowered = Monomial(tuple(n - (i == axis) for i, n in enumerate(powers)))
            return float(powers[axis]), _term(lowered, names, latex) if sum(lowered.powers) else ""
        case Sine(at_axis):
            return (1.0, rf"\cos {names[axis]}" if latex else f"cos({names[axis]})") if at_axis == axis else None
        case Cosine(at_axis):
            return (-1.0, rf"\sin {names[axis]}" if latex else f"sin({names[axis]})") if at_axis == axis else None
        case Penetration(at_axis, at, side, power):
            if at_axis != axis:
                return None
            inner = f"({names[axis]} {'−' if at >= 0 else '+'} {abs(at):.4g})" if abs(at) > 5e-5 else names[axis]
            inner = inner.replace("−", "-") if latex else inner
            if power == 1:
                return (1.0 if side == "above" else -1.0), ""
            sign = 1.0 if side == "above" else (-1.0) ** power
            return (
                sign,
                inner
                if power == 2
                else f"{inner}^{power - 1}"
                if latex
                else f"{inner}{'²' if power == 3 else f'^{power - 1}'}",
            )


def summed(pieces: list[tuple[Number, str]]) -> str:
    if not pieces:
        return "0"
    out = ""
    for number, words in pieces:
        sign = "−" if number.value < 0 else "+"
        size = rounded(Number(abs(number.value), number.error))
        body = words if size == "1" and words else f"{size} {words}".strip()
        out += f" {sign} {body}" if out else (f"−{body}" if sign == "−" else body)
    return out
