"""Laws as text."""

from vhydro.report.equations import energy_text, linear_text, matrix_text, motion_text, number


def test_signs_and_vanishing_terms():
    assert linear_text([(-1.0, "x"), (0.004, "y"), (-0.5, "z"), (2.0, "")]) == "−1.00 x − 0.50 z + 2.00"
    assert linear_text([(0.001, "x")]) == "0"


def test_a_spring_is_written_with_its_rest():
    spring = {"stiffness": 12.0, "damping": 0.55, "gain": 1.0, "push": -6.0}
    assert motion_text(spring) == "q̈ = −12.00 (q + 0.50) − 0.55 q̇ + 1.00 a"


def test_a_free_mode_is_not():
    free = {"stiffness": 0.2, "damping": 0.05, "gain": 1.0, "push": 0.1}
    assert motion_text(free) == "q̈ = −0.20 q − 0.05 q̇ + 1.00 a + 0.10"


def test_energy_matrix_and_missing_number():
    assert energy_text({"q^2": 6.0, "p^2": 0.5}) == "6.00 q² + 0.50 p²"
    assert matrix_text([[1.0, -0.5], [-0.5, 2.0]]) == "[1.00, −0.50; −0.50, 2.00]"
    assert number("{:.1f}", None) == "−∞"
