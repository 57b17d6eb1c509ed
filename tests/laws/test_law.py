"""A law read, evaluated, simulated and kept: against the systems whose exact law it is."""

import json
from dataclasses import replace
from unicodedata import normalize

import numpy as np
import pytest
from law_logs import puck

from vhydro import systems
from vhydro.commands.law_reading import law_reading
from vhydro.laws import load_law
from vhydro.laws.constants import constants, table
from vhydro.laws.form import form_of
from vhydro.laws.law import Law, Number
from vhydro.laws.writing import latex, rounded, text
from vhydro.library import Custom, Monomial
from vhydro_audits.laws_truth import SYSTEMS, problem_of, true_law

PUCK_TEXT = """\
free
  H = p^2
  q̇ = 2 p
  ṗ = −0.2 p + force

left wall
  H = p^2 + 1200 ½[−1 − q]₊²
  q̇ = 2 p
  ṗ = −1200 (q + 1) − 11.2 p + force

right wall
  H = p^2 + 1200 ½[q − 1]₊²
  q̇ = 2 p
  ṗ = −1200 (q − 1) − 11.2 p + force
"""


def given(law: Law) -> Law:
    """The law as exactly known, so that its numbers are written in full."""
    return replace(law, covariance=0 * law.covariance)


def spring_law(term: Custom) -> Law:
    """A mass of 1 held by one term of one's own, whose coefficient is 3."""
    problem = replace(
        problem_of("puck"), modes=("only",), library=(Monomial((0, 2)), term), dissipation=np.array([0.0])
    )
    form = form_of(problem, 0, {}, ())
    theta, support = np.array([0.5, 3.0, 0.0, 1.0]), np.array([True, True, False, False])
    names = problem.coordinates, problem.units, problem.inputs, problem.modes
    return Law(*names, form, theta, support, np.zeros((4, 4)), "weak")


# --- evaluated and simulated --------------------------------------------------------------------------------


def stiff_puck(springs: float) -> Law:
    """The puck's law with walls of so many N/m."""
    law = true_law("puck")
    walls = [law.support[i] and law.theta[i] > 100 for i in range(len(law.theta))]
    return replace(law, theta=np.where(walls, springs, law.theta))


def test_a_law_as_stiff_as_a_hard_wall_is_followed_by_itself():
    """Four steps a sample would leave the numbers at the first touch."""
    path = stiff_puck(1.2e7).simulate(np.array([0.9, 0.5]), np.zeros((100, 1)), 0.005)
    assert np.isfinite(path).all()
    assert path[:, 0].max() > 0.995
    assert np.abs(path[:, 0]).max() < 1.001
    assert path[-1, 1] < 0


def test_a_simulation_says_where_it_leaves_the_numbers():
    path = stiff_puck(1.2e9).simulate(np.array([0.9, 0.5]), np.zeros((100, 1)), 0.005, substeps=1)
    assert np.isfinite(path[0]).all()
    assert np.isnan(path[-1]).all()
    first = int(np.isnan(path).any(1).argmax())
    assert np.isnan(path[first:]).all()
    assert (np.abs(path[:first]) < 1e6).all()


@pytest.mark.parametrize("task", SYSTEMS)
def test_a_true_law_is_the_law_of_its_system(task):
    law, system = true_law(task), systems.law(SYSTEMS[task])
    for mode, energy in enumerate(system.energies):
        if law.status(mode) == "at rest":
            assert not energy
            continue
        found = {t: c.value for t, c in law.energy(mode).items()}
        assert found == pytest.approx(energy)
        n = law.positions
        np.testing.assert_allclose([r.value for r in law.dissipation(mode)], np.diag(system.dissipation[mode])[n:])
        np.testing.assert_allclose([[g.value for g in row] for row in law.port(mode)], system.port[mode])


@pytest.mark.parametrize("task", ["puck", "pushing"])
def test_accelerations_are_those_of_the_system(task):
    law, system = true_law(task), systems.law(SYSTEMS[task])
    rng, n = np.random.default_rng(0), law.positions
    z, a = rng.standard_normal((50, 2 * n)), rng.standard_normal((50, len(law.inputs)))
    for mode, energy in enumerate(system.energies):
        inverse_mass = np.array([2 * energy[Monomial(tuple(2 * (j == n + i) for j in range(2 * n)))] for i in range(n)])
        rate = np.stack(system.velocity(mode, tuple(z.T), tuple(a.T)), -1)
        found = law.acceleration(mode, z[:, :n], inverse_mass * z[:, n:], a)
        np.testing.assert_allclose(found, inverse_mass * rate[:, n:], rtol=1e-10)


def test_what_rests_does_not_accelerate():
    law = true_law("block")
    q, v, a = np.ones((3, 1)), np.ones((3, 1)), np.ones((3, 1))
    assert law.status(0) == "at rest"
    assert not law.acceleration(0, q, v, a).any()
    assert not law.energy(0)
    assert law.port(0)[1][0].value == 0
    assert law.acceleration(1, q, v, a).all()


def test_a_law_simulates_as_its_system_does():
    truth, law = puck().truth, true_law("puck")
    episode = int(np.argmax((truth.modes == 2).sum(1)))
    assert set(truth.modes[episode]) > {0, 2}
    found = law.simulate(truth.states[episode, 0], truth.actions[episode], truth.dt)
    np.testing.assert_allclose(found, truth.states[episode], atol=1e-6)


# --- constants ----------------------------------------------------------------------------------------------


def test_constants_of_the_systems():
    wall, found = systems.Puck(), constants(true_law("puck"))
    expected = {
        "mass": 0.5, "friction": 0.1, "stiffness of left wall": 1200, "place of left wall": -1,
        "damping of right wall": 5.5, "place of right wall": 1, "restitution of right wall": wall.restitution,
    }  # fmt: skip
    assert {name: found[name].value for name in expected} == pytest.approx(expected)
    assert found["stiffness of left wall"].unit == "N/m"
    block, sliding = systems.Block(), constants(true_law("block"))
    assert sliding["friction coefficient"].value == pytest.approx(block.kinetic_friction)
    swing = constants(true_law("pendulum"))
    assert swing["inertia"].unit == "kg m²"
    assert swing["weight times length"].value > 0
    assert "mass along" in " ".join(constants(true_law("pushing")))


def test_errors_of_constants_are_propagated():
    law = true_law("puck")
    index = {law.form.entries[i].kind + str(law.form.entries[i].block): i for i in range(len(law.theta))}
    kinetic, spring = 0, next(i for i, e in enumerate(law.form.entries) if getattr(e.term, "power", 0) == 2)
    covariance = np.zeros_like(law.covariance)
    covariance[kinetic, kinetic], covariance[spring, spring] = 0.01**2, 5.0**2
    covariance[index["dissipation-1"], index["dissipation-1"]] = 0.02**2
    found = constants(replace(law, covariance=covariance))
    assert found["mass"].error == pytest.approx(0.5 / law.theta[kinetic] ** 2 * 0.01, rel=1e-3)
    assert found["friction"].error == pytest.approx(0.02)
    assert found["stiffness of left wall"].error == pytest.approx(5.0)
    assert found["stiffness of right wall"].error == 0
    assert found["damping of left wall"].error == pytest.approx(0, abs=1e-9)  # what the wall adds to the friction
    low, high = found["stiffness of left wall"].interval
    assert (high - low) / 2 == pytest.approx(1.96 * 5.0, rel=1e-3)
    assert "stiffness of left wall" in table(law)
    assert "N/m" in table(law)


def test_constants_of_a_mode_that_is_not_identified_are_marked():
    law = replace(true_law("puck"), problems=((2, "only 3 samples"),))
    line = next(line for line in table(law).splitlines() if line.startswith("stiffness of right wall"))
    assert "unidentified" in line
    assert "unidentified" not in next(x for x in table(law).splitlines() if x.startswith("stiffness of left"))


def marked(law: Law) -> set[str]:
    """The constants that the table marks; the page of a run and the table of Parquet are read the same way."""
    told = {one["name"] for one in law_reading(law)["constants"] if not one["identified"]}
    rows = [line for line in table(law).splitlines() if line.endswith("unidentified")]
    assert len(rows) == len(told)
    assert all(row.startswith(tuple(told)) for row in rows)
    return told


def test_constants_of_a_base_that_is_not_identified_are_marked():
    """A constant of the base law names no mode."""
    puck = replace(true_law("puck"), problems=((0, "its mass is vague"),))
    assert {"mass", "friction"} < marked(puck)
    assert "stiffness of left wall" not in marked(puck)
    block = true_law("block")
    mode = next(b.mode for b in block.form.blocks if b.guard is None)
    assert {"sliding friction", "friction coefficient"} <= marked(replace(block, problems=((mode, "why"),)))


def test_a_mode_whose_name_begins_like_another_is_not_marked_with_it():
    law = true_law("puck")
    law = replace(law, modes=("free", "wall 1", "wall 10"), problems=((1, "too few contacts"),))
    assert marked(law)
    assert not any("wall 10" in name for name in marked(law))


# --- written ------------------------------------------------------------------------------------------------


def test_the_law_of_the_puck_as_a_person_writes_it():
    assert normalize("NFC", text(given(true_law("puck")))) == normalize("NFC", PUCK_TEXT)
    written = latex(given(true_law("puck")))
    assert written.isascii()  # what LaTeX reads without further packages
    assert r"\dot p &= -1200 (q - 1) - 11.2 p + \mathit{force}" in written
    assert r"\tfrac{1}{2} [q -1]_+^{2}" in written
    assert written.count(r"\text{") == 3
    assert written.startswith("\\begin{align*}")
    assert written.rstrip().endswith("\\end{align*}")


def test_a_reason_is_written_beside_its_mode():
    law = replace(true_law("puck"), problems=((1, "too few contacts"),), notes=("a note",), chi_square=1.25)
    written = text(law)
    assert "left wall (unidentified: too few contacts)" in written
    assert written.rstrip().endswith("misfit over sensor noise: χ² = 1.250\na note")
    assert law.status(1) == "unidentified"
    assert law.status(0) == "identified"
    assert "at rest" in text(true_law("block"))
    assert "cos(angle)" in text(true_law("pendulum")).replace("θ", "angle")


def test_a_latex_law_marks_what_is_not_identified():
    law = replace(true_law("puck"), problems=((1, "too few contacts"),))
    assert "unidentified" in latex(law)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (Number(1.23456789, 0.0), "1.23457"),
        (Number(1.23456789, 0.01), "1.23"),
        (Number(1200.4, 4.2), "1200"),
        (Number(0.001234, 0.1), "0.0012"),
        (Number(0.0, 1.0), "0"),
    ],
)
def test_a_number_is_rounded_to_what_its_error_leaves(number, expected):
    assert rounded(number) == expected


def test_a_term_of_ones_own_is_part_of_the_equation():
    law = spring_law(Custom(lambda z: z[0] ** 3 / 3, "my spring"))
    np.testing.assert_allclose(law.acceleration(0, np.array([[2.0]]), np.ones((1, 1)), np.zeros((1, 1))), [[-12.0]])
    momentum = next(line for line in normalize("NFC", text(law)).splitlines() if line.startswith("  ṗ"))
    assert "my spring" in momentum
    assert "my spring" in latex(law)
    assert "None" not in latex(law)


# --- kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SYSTEMS)
def test_a_law_comes_back_as_it_was(task, tmp_path):
    law = replace(true_law(task), problems=((1, "why"),), notes=("note",), chi_square=1.1)
    law.save(tmp_path / "law.json")
    back = load_law(tmp_path / "law.json")
    for name in Law.__dataclass_fields__:
        if name in ("theta", "support", "covariance"):
            np.testing.assert_array_equal(getattr(back, name), getattr(law, name))
        else:
            assert getattr(back, name) == getattr(law, name), name
    assert text(back) == text(law)
    assert [p.name for p in tmp_path.iterdir()] == ["law.json"]


def test_files_that_hold_no_law_are_refused(tmp_path):
    path = tmp_path / "law.json"
    true_law("puck").save(path)
    document = json.loads(path.read_text("utf-8"))
    damaged = [document | {"theta": document["theta"][:-1]}, {k: v for k, v in document.items() if k != "form"}]
    damaged += [document | {"format": "another"}, document | {"problems": [1]}, document | {"surprise": 1}, [], 3]
    for content in ["", "{", *map(json.dumps, damaged)]:
        path.write_text(content, "utf-8")
        with pytest.raises(ValueError, match="does not hold a law"):
            load_law(path)


def test_a_term_of_ones_own_cannot_be_kept(tmp_path):
    with pytest.raises(ValueError, match="'my spring' is a function"):
        spring_law(Custom(lambda z: z[0] ** 3, "my spring")).save(tmp_path / "law.json")
    assert not list(tmp_path.iterdir())
