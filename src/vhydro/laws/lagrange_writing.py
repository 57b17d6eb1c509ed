"""Lagrange's equations as a person writes them: text, LaTeX and a table of constants."""

from vhydro.lagrangian import Friction, Inertia, Potential, Remainder
from vhydro.laws.lagrange_law import LagrangeLaw
from vhydro.laws.law import Number
from vhydro.laws.writing import fit_lines, name_of, rounded, summed

LEFT = "M(q) v̇ + Ṁ v − ½ ∂(vᵀ M v)/∂q = −∂V/∂q − friction + input"
LEFT_TEX = r"M(q)\dot v + \dot M v - \tfrac12 \partial_q (v^\top M v) &= -\partial_q V - \text{friction} + \text{input}"


def equations_text(law: LagrangeLaw) -> str:
    """The equations of every mode as lines of text: M, V, friction and inputs, then what each contact adds."""
    left = LEFT.replace("− friction", "− friction − (not port-Hamiltonian)") if _has_remainder(law) else LEFT
    parts = [left, *("\n".join(_mode_lines(law, mode, latex=False)) for mode in range(len(law.modes)))]
    return "\n\n".join([*parts, "\n".join([*fit_lines(law), *law.notes])]).strip() + "\n"


def equations_latex(law: LagrangeLaw) -> str:
    """The same as a LaTeX `align*`."""
    extra = r"\text{friction} - \text{(not port-Hamiltonian)}"
    lines = [LEFT_TEX.replace(r"\text{friction}", extra) if _has_remainder(law) else LEFT_TEX]
    for mode in range(len(law.modes)):
        head, *rest = _mode_lines(law, mode, latex=True)
        lines.append(rf"&\text{{{head}:}}")
        lines += [line.strip().replace(" = ", " &= ", 1) for line in rest]
    body = " \\\\\n".join(lines).replace("−", "-")
    return "\\begin{align*}\n" + body + "\n\\end{align*}\n"


def _mode_lines(law: LagrangeLaw, mode: int, *, latex: bool) -> list[str]:
    reasons = "; ".join(reason for m, reason in law.problems if m == mode)
    status = {"identified": "", "at rest": " (at rest)", "unidentified": f" (unidentified: {reasons})"}
    head = law.modes[mode] + status[law.status(mode)]
    if mode not in law.form.resting and _has_remainder(law):
        head += " (not port-Hamiltonian)"
    if mode in law.form.resting:
        return [head, "  v = 0"]
    contact = law.contact(mode)
    if contact is not None:
        return [head, f"  as {law.modes[law.form.base]}, and {_contact(law, contact, latex)}"]
    if mode != law.form.base:
        return [head, f"  as {law.modes[law.form.base]}"]
    return [head, *(f"  {line}" for line in (*_inertia(law, latex), *_potential(law, latex), *_forces(law, latex)))]


def _names(law: LagrangeLaw, latex: bool) -> tuple[list[str], list[str]]:
    q = [name_of(c, latex) for c in law.coordinates[: law.positions]]
    return q, [rf"\dot{{{x}}}" for x in q] if latex else list(law.coordinates[law.positions :])


def _has_remainder(law: LagrangeLaw) -> bool:
    return any(law.support[i] for i in law.form.of("remainder"))


def _kept(law: LagrangeLaw, kind: str) -> list[tuple[int, Number, object]]:
    return [(i, law.number(i), law.form.entries[i].term) for i in law.form.of(kind) if law.support[i]]


def fading_speed(law: LagrangeLaw, friction: int) -> str:
    """The speed over which a Stribeck friction fades, as a number."""
    at = law.form.speeds.get(friction)
    return "s" if at is None else rounded(law.number(at))


def _inertia(law: LagrangeLaw, latex: bool) -> list[str]:
    """One line for each place of M that is not 0."""
    q, _ = _names(law, latex)
    out = []
    for row in range(law.positions):
        for column in range(row, law.positions):
            here = [
                (number, t.shape.text(q, latex=latex))
                for _, number, t in _kept(law, "inertia")
                if isinstance(t, Inertia) and (t.row, t.column) == (row, column)
            ]
            if here:
                where = f"M_{{{row + 1}{column + 1}}}" if latex else f"M[{q[row]},{q[column]}]"
                out.append(f"{where} = {summed(here)}")
    return out


def _potential(law: LagrangeLaw, latex: bool) -> list[str]:
    q, _ = _names(law, latex)
    kept = _kept(law, "potential")
    pieces = [(number, t.shape.text(q, latex=latex)) for _, number, t in kept if isinstance(t, Potential)]
    return [f"V = {summed(pieces)}"]


def _forces(law: LagrangeLaw, latex: bool) -> list[str]:
    """Friction and inputs along every position."""
    q, v = _names(law, latex)
    out = []
    for axis in range(law.positions):
        rubs = [
            (Number(dict(t.weights)[axis] * c.value, c.error), t.text(v, latex=latex, speed=fading_speed(law, i)))
            for i, c, t in _kept(law, "friction")
            if isinstance(t, Friction) and axis in dict(t.weights)
        ]
        rest = [
            (c, t.text(q, v, latex=latex))
            for _, c, t in _kept(law, "remainder")
            if isinstance(t, Remainder) and t.axis == axis
        ]
        ports = [i for i, e in enumerate(law.form.entries) if e.kind == "port" and e.axis == axis and law.theta[i]]
        pushes = [(law.number(i), name_of(law.inputs[law.form.entries[i].column], latex)) for i in ports]
        along = rf"\text{{ along }} {q[axis]}" if latex else f" along {q[axis]}"
        kinds = [("friction", rubs), ("not port-Hamiltonian", rest), ("input", pushes)]
        kinds = [(rf"\text{{{what}}}" if latex else what, pieces) for what, pieces in kinds]
        out += [f"{what}{along} = {summed(pieces)}" for what, pieces in kinds if pieces]
    return out


def _contact(law: LagrangeLaw, block: int, latex: bool) -> str:
    """What a contact adds, in words."""
    guard = law.form.blocks[block].guard
    q, v = _names(law, latex)

    def line(names: list[str]) -> str:
        return names[guard.axis] if guard.other is None else f"{names[guard.axis]} − {names[guard.other]}"

    stiffness, damping, place = (law.number(law.form.of(k, block)[0]) for k in ("stiffness", "damping", "place"))
    at = f"{line(q)} {'−' if place.value >= 0 else '+'} {abs(place.value):.4g}"
    speed = line(v) if guard.other is None else f"({line(v)})"
    pieces = [(Number(-stiffness.value, stiffness.error), f"({at})")]
    if damping.value:
        pieces.append((Number(-damping.value, damping.error), speed))
    where = f"{at} {'>' if guard.side == 'above' else '<'} 0"
    return f"where {where}, along {line(q)}: {summed(pieces)}"


def equations_table(law: LagrangeLaw) -> str:
    """The constants as lines of text: name, value and 95 % interval, and whether their mode is identified."""
    rows = []
    for mode, name in enumerate(law.modes):
        contact = law.contact(mode)
        if mode != law.form.base and contact is None:
            continue
        mark = "  unidentified" if law.status(mode) == "unidentified" else ""
        own = -1 if contact is None else contact
        for i, e in enumerate(law.form.entries):
            if e.block == own and law.support[i] and law.form.free[i]:
                what = law.entry_name(e) + ("" if contact is None else f" of {name}")
                low, high = law.number(i).interval
                rows.append((what, f"{law.theta[i]:11.6g}  [{low:.6g}, {high:.6g}]{mark}"))
    width = max((len(what) for what, _ in rows), default=0)
    return "".join(f"{what:<{width}}  {value}\n" for what, value in rows) or "no constant is determined\n"
