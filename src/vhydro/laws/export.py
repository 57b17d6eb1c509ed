"""Laws as functions for a controller: C or Python that needs nothing but sine, cosine, exponential and absolute value.

`accelerations(mode, q, v, u, a)` writes how fast velocities change in a mode, from positions, velocities and inputs, in
the law's units. Masses are solved for by elimination, which for a positive definite M needs no pivots.
"""

from collections.abc import Sequence
from math import perm

from vhydro.lagrangian import Friction, Inertia, Potential, Remainder
from vhydro.laws.as_model import masses
from vhydro.laws.form import is_kinetic, momentum_degree
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law
from vhydro.library import Cosine, Custom, Monomial, Penetration, Sine, Term

NEWTON_STEPS = 8  # to the momentum of a velocity, where one is not a multiple of the other


def c_code(law: AnyLaw) -> str:
    """The law as a C function `void accelerations(int mode, …)`; include nothing but it and math.h."""
    n, modes = law.positions, range(len(law.modes))
    lines = [
        *_comment(law, "// "),
        "#include <math.h>",
        "",
        f"/* q[{n}] positions, v[{n}] velocities, u[{max(len(law.inputs), 1)}] inputs; a[{n}] is written. */",
        "static void accelerations(int mode, const double *q, const double *v, const double *u, double *a) {",
        f"    double M[{n}][{n}] = {{{{0.0}}}}, F[{n}] = {{0.0}};",
        "    (void)u;",
    ]
    for mode in modes:
        lines.append(f"    {'if' if mode == 0 else '} else if'} (mode == {mode}) {{  /* {_plain(law.modes[mode])} */")
        lines += [f"        {x};" for x in _statements(law, mode)]
    lines += ["    }", *_solve_c(n), "}", ""]
    return "\n".join(lines)


def numpy_code(law: AnyLaw) -> str:
    """The law as a Python function of numbers or NumPy arrays; it imports `math` alone for numbers."""
    n = law.positions
    lines = [
        *_comment(law, "# "),
        "from math import cos, exp, fabs, sin  # of NumPy, where arrays are given",
        "",
        "",
        "def accelerations(mode, q, v, u):",
        f'    """How fast the {n} velocities change in a mode: a list."""',
        f"    M = [[0.0] * {n} for _ in range({n})]",
        f"    F = [0.0] * {n}",
    ]
    for mode in range(len(law.modes)):
        statements = _statements(law, mode)
        lines.append(f"    {'if' if mode == 0 else 'elif'} mode == {mode}:  # {_plain(law.modes[mode])}")
        lines += [f"        {x}" for x in statements]
    lines += [
        f"    for i in range({n}):",
        f"        for j in range(i + 1, {n}):",
        "            k = M[j][i] / M[i][i]",
        f"            M[j] = [M[j][c] - k * M[i][c] for c in range({n})]",
        "            F[j] = F[j] - k * F[i]",
        f"    a = [0.0] * {n}",
        f"    for i in reversed(range({n})):",
        f"        a[i] = (F[i] - sum(M[i][j] * a[j] for j in range(i + 1, {n}))) / M[i][i]",
        "    return a",
        "",
    ]
    return "\n".join(lines)


def _comment(law: AnyLaw, mark: str) -> list[str]:
    """What is in the file, and which modes are not to be trusted."""
    names = ", ".join(f"{c} ({u})" if u else c for c, u in zip(law.coordinates, law.units, strict=True))
    lines = [f"Accelerations of a law found by vhydro; coordinates: {names}; inputs: {', '.join(law.inputs) or 'none'}"]
    lines += [f"mode {m} ({_plain(law.modes[m])}) is not identified: {_plain(why)}" for m, why in law.problems]
    return [mark + line for line in lines]


def _plain(words: str) -> str:
    """Words that cannot end a comment."""
    return words.replace("*/", "").replace("\n", " ")


def _statements(law: AnyLaw, mode: int) -> list[str]:
    """Assignments of M and F in one mode; a mode at rest has unit masses and no force."""
    n = law.positions
    if mode in law.form.resting:
        return [f"M[{i}][{i}] = 1.0" for i in range(n)]
    return _of_equations(law, mode) if isinstance(law, LagrangeLaw) else _of_energy(law, mode)


def _add(where: str, value: float, *factors: str) -> str:
    body = " * ".join([f"({value!r})", *(f for f in factors if f != "1.0")])
    return f"{where} += {body}"


def _of_equations(law: LagrangeLaw, mode: int) -> list[str]:
    n, form = law.positions, law.form
    q, v = [f"q[{i}]" for i in range(n)], [f"v[{i}]" for i in range(n)]
    out = []
    for i, e in enumerate(form.entries):
        c, t = float(law.theta[i]), e.term
        if not c:
            continue
        if isinstance(t, Inertia):
            out += _of_inertia(t, c, q, v)
        elif isinstance(t, Potential):
            out += [_add(f"F[{k}]", -c, s) for k, s in enumerate(_shape_slopes(t.shape, q)) if s]
        elif isinstance(t, Friction):
            u = v[t.axis] if t.other is None else f"({v[t.axis]} - {v[t.other]})"
            small = f"fabs({u}) + 1e-12"
            felt = {"viscous": u, "quadratic": f"fabs({u}) * {u}"}.get(t.kind, f"({u} / ({small}))")
            if i in form.speeds:
                felt += f" * exp(-fabs({u}) / {float(law.theta[form.speeds[i]])!r})"
            out += [_add(f"F[{k}]", -w * c, felt) for k, w in t.weights]
        elif isinstance(t, Remainder):
            out.append(_add(f"F[{t.axis}]", -c, t.shape.code(q), *([v[t.axis]] * t.power)))
        elif e.kind == "port":
            out.append(_add(f"F[{e.axis}]", c, f"u[{e.column}]"))
    contact = law.contact(mode)
    if contact is not None:
        guard = form.blocks[contact].guard
        k, c, place = (float(law.theta[form.of(kind, contact)[0]]) for kind in ("stiffness", "damping", "place"))
        along = [x[guard.axis] if guard.other is None else f"({x[guard.axis]} - {x[guard.other]})" for x in (q, v)]
        for axis, w in guard.weights:
            out += [_add(f"F[{axis}]", -w * k, f"({along[0]} - ({place!r}))"), _add(f"F[{axis}]", -w * c, along[1])]
    return out


def _of_inertia(t: Inertia, c: float, q: Sequence[str], v: Sequence[str]) -> list[str]:
    value = t.shape.code(q)
    out = [_add(f"M[{t.row}][{t.column}]", c, value)]
    out += [_add(f"M[{t.column}][{t.row}]", c, value)] if t.row != t.column else []
    for k, slope in enumerate(_shape_slopes(t.shape, q)):
        if not slope:
            continue
        pairs = {(t.row, t.column), (t.column, t.row)}
        out += [_add(f"F[{i}]", -c, slope, v[k], v[j]) for i, j in sorted(pairs)]
        out.append(_add(f"F[{k}]", (0.5 if t.row == t.column else 1.0) * c, slope, v[t.row], v[t.column]))
    return out


def _shape_slopes(shape, q: Sequence[str]) -> list[str]:
    """The derivative of a shape along every position as an expression; empty where it is 0."""
    out = []
    power = [x for x, n in zip(q, shape.powers, strict=True) for _ in range(n)]
    angle = " + ".join(f"{k} * {x}" for x, k in zip(q, shape.along or [0] * len(q), strict=True) if k)
    for axis, x in enumerate(q):
        parts = []
        if shape.powers[axis]:
            rest = list(power)
            rest.remove(x)
            parts.append(" * ".join([f"{shape.powers[axis]}.0", *rest, *([f"{shape.wave}({angle})"] if angle else [])]))
        if shape.wave and shape.along[axis]:
            wave = f"cos({angle})" if shape.wave == "sin" else f"-sin({angle})"
            parts.append(" * ".join([f"{shape.along[axis]}.0", *power, f"({wave})"]))
        out.append(f"({' + '.join(parts)})" if parts else "")
    return out


def _of_energy(law: Law, mode: int) -> list[str]:
    """M and F of a port-Hamiltonian law: of several positions only where momenta are masses times velocities."""
    n, mass = law.positions, masses(law)
    energy = {t: c.value for t, c in law.energy(mode).items()}
    odd = [t for t in energy if momentum_degree(t) and not is_kinetic(t)]
    if odd and n == 1:
        return _of_any_momentum(law, mode, energy, float(mass[0]))
    if odd:
        raise ValueError(
            f"the law has {odd[0].text(law.coordinates)!r}, whose momenta are not masses times velocities; "
            "expected squares of momenta. Find it with estimator='lagrange', and export that."
        )
    out = [f"M[{i}][{i}] = {float(mass[i])!r}" for i in range(n)]
    for term, c in energy.items():
        if is_kinetic(term):
            continue
        out += [_add(f"F[{k}]", -c, s) for k in range(n) if (s := _energy_slope(term, k))]
    out += [_add(f"F[{i}]", -r.value, f"v[{i}]") for i, r in enumerate(law.dissipation(mode)) if r.value]
    port = law.port(mode)[n:]
    out += [_add(f"F[{i}]", g.value, f"u[{j}]") for i, row in enumerate(port) for j, g in enumerate(row) if g.value]
    return out


def _of_any_momentum(law: Law, mode: int, energy: dict[Term, float], mass: float) -> list[str]:
    """M and F of a single position whatever powers its momentum has; F is the momentum until it is the force.

    The momentum is where `∂H/∂p` is the velocity, by Newton's method; then `v̇ = H_pp ṗ + H_pq v`.
    """
    drag, (_, push) = law.dissipation(mode)[0].value, law.port(mode)

    def slope(q: int, p: int) -> str:
        """The derivative of H by q and p, so many times each."""
        parts = [_add("", c, s).removeprefix(" += ") for t, c in energy.items() if (s := _derivative(t, q, p))]
        return " + ".join(parts) or "0.0"

    inputs = "".join(f" + ({g.value!r}) * u[{j}]" for j, g in enumerate(push) if g.value)
    force = f"-({slope(1, 0)}) - ({drag!r}) * v[0]{inputs}"
    newton = f"F[0] -= ({slope(0, 1)} - v[0]) / ({slope(0, 2)})"
    last = [f"M[0][0] = 1.0 / ({slope(0, 2)})", f"F[0] = M[0][0] * ({slope(1, 1)}) * v[0] + {force}"]
    return [f"F[0] = ({mass!r}) * v[0]", *[newton] * NEWTON_STEPS, *last]


def _derivative(term: Term, by_q: int, by_p: int) -> str:
    """A derivative of a term of one position q and its momentum, which stands in F; empty where it is 0."""
    if not isinstance(term, Monomial):
        return "" if by_p or by_q != 1 else _energy_slope(term, 0)
    factor, out = 1.0, []
    for name, power, times in zip(("q[0]", "F[0]"), term.powers, (by_q, by_p), strict=True):
        if power < times:
            return ""
        factor *= perm(power, times)
        out += [name] * (power - times)
    return " * ".join([repr(float(factor)), *out])


def _energy_slope(term: Term, axis: int) -> str:
    match term:
        case Monomial(powers):
            if not powers[axis]:
                return ""
            rest = [f"q[{i}]" for i, k in enumerate(powers) for _ in range(k - (i == axis))]
            return " * ".join([f"{powers[axis]}.0", *rest])
        case Sine(at):
            return f"cos(q[{axis}])" if at == axis else ""
        case Cosine(at):
            return f"(-sin(q[{axis}]))" if at == axis else ""
        case Penetration(at_axis, at, side, power):
            if at_axis != axis:
                return ""
            sign = 1.0 if side == "above" else -1.0
            depth = [f"({sign!r} * (q[{axis}] - ({at!r})))"] * (power - 1)
            return " * ".join([f"({sign!r})", *depth])
        case Custom(label=label):
            raise ValueError(
                f"the law has {label!r}, a function of one's own, which cannot be written as C; expected monomials, "
                "sines, cosines and contacts. Evaluate the law in Python."
            )


def _solve_c(n: int) -> list[str]:
    return [
        f"    for (int i = 0; i < {n}; i++)",
        f"        for (int j = i + 1; j < {n}; j++) {{",
        "            const double k = M[j][i] / M[i][i];",
        f"            for (int c = 0; c < {n}; c++) M[j][c] -= k * M[i][c];",
        "            F[j] -= k * F[i];",
        "        }",
        f"    for (int i = {n} - 1; i >= 0; i--) {{",
        "        double left = F[i];",
        f"        for (int j = i + 1; j < {n}; j++) left -= M[i][j] * a[j];",
        "        a[i] = left / M[i][i];",
        "    }",
    ]
