"""A law as C and as Python: the accelerations that the law itself gives, in every mode."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from vhydro.lagrangian import Friction, Lagrangian, Surface, Touch
from vhydro.laws import LagrangeLaw, Law, Problem, candidates
from vhydro.laws.export import c_code, numpy_code
from vhydro.laws.form import form_of
from vhydro.laws.lagrange_weak import lagrange_candidates
from vhydro.laws.richer import remainder_candidates
from vhydro_audits.laws_truth import true_law


def equations() -> LagrangeLaw:
    """Every candidate of a length and an angle at once, with a contact, Stribeck friction and a remainder."""
    terms = lagrange_candidates(("length", "angle"))
    terms = terms._replace(friction=(*terms.friction, Friction("Stribeck", 0, None, 0.3)))
    form = Lagrangian(
        2, 1, 0, *terms, (Touch(1, Surface(0, "above")),), (None,) * len(terms.inertia), (None,) * len(terms.friction),
        ((1.0,), (None,)), (1e-9, 1e-9), remainder=remainder_candidates(2),
    )  # fmt: skip
    theta = np.random.default_rng(0).normal(scale=0.05, size=len(form.entries))
    theta[[i for i, t in enumerate(form.inertia) if t.row == t.column and t.shape.constant]] = 2.0, 3.0
    theta[[*form.speeds.values()]] = 0.3
    names = ("x", "angle", "v_x", "v_angle"), ("m", "rad", "m/s", "rad/s"), ("force",), ("free", "wall")
    every = np.ones(len(theta), bool)
    return LagrangeLaw(*names, form, theta, every, np.zeros(2 * (len(theta),)), "lagrange")


def heavier_away() -> Law:
    """A mass on a spring whose momentum is no multiple of its velocity, and two that rub differently either way."""
    library = candidates(("length",))
    problem = Problem(("q", "p"), ("m", "kg m/s"), ("force",), ("there", "back"), library, np.array([np.nan]), PORT)
    form = form_of(problem, 0, {1: None}, ())
    values = {"p^2": 0.8, "q p^2": 0.05, "p^4": 0.002, "q": 0.3, "q^2": 2.0, "q^3": -0.1}
    theta = np.array([_value(e, values) for e in form.entries])
    names = problem.coordinates, problem.units, problem.inputs, problem.modes
    return Law(*names, form, theta, theta != 0, np.zeros((len(theta), len(theta))), "shooting")


PORT = np.array([[0.0], [1.0]])


def _value(entry, values) -> float:
    if entry.kind == "energy":
        return values.get(entry.term.text(("q", "p")), 0.0) if entry.block < 0 else 0.1
    return {"dissipation": 0.2, "port": 1.0 if entry.block < 0 else 0.0}[entry.kind]


LAWS = {
    "equations": equations(),
    "heavier away": heavier_away(),
    **{name: true_law(name) for name in ("block", "pendulum", "pushing")},
}


def points(law, number: int = 5):
    generator = np.random.default_rng(1)
    n = law.positions
    return (generator.normal(size=(number, k)) for k in (n, n, len(law.inputs)))


@pytest.mark.parametrize("name", LAWS)
def test_python_gives_the_laws_accelerations(name):
    law, space = LAWS[name], {}
    exec(numpy_code(law), space)
    q, v, u = points(law)
    for mode in range(len(law.modes)):
        own = law.acceleration(mode, q, v, u)
        found = [space["accelerations"](mode, *row) for row in zip(q, v, u, strict=True)]
        assert np.allclose(found, own, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("name", LAWS)
def test_c_gives_the_laws_accelerations(name, tmp_path):
    law = LAWS[name]
    source = tmp_path / "law.c"
    source.write_text(c_code(law).replace("static void", "void"))
    subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "law.so"), "-lm"],
        check=True,
    )
    function = ctypes.CDLL(str(tmp_path / "law.so")).accelerations
    q, v, u = points(law)
    for mode in range(len(law.modes)):
        own = law.acceleration(mode, q, v, u)
        for row, expected in zip(zip(q, v, u, strict=True), own, strict=True):
            out = np.zeros(law.positions)
            pointers = [x.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for x in (*row, out)]
            function(ctypes.c_int(mode), *pointers)
            assert np.allclose(out, expected, rtol=1e-9, atol=1e-9)


def test_what_is_not_identified_is_said():
    marked = LagrangeLaw(**(vars(equations()) | {"problems": ((1, "seen once"),)}))
    assert "mode 1 (wall) is not identified: seen once" in c_code(marked)
