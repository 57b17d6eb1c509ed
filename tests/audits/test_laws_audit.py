"""The laws audit: its logs are drawn from the seed alone, the truth has perfect marks, every cell is there once."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from vhydro import systems
from vhydro.laws.tracks import prepared
from vhydro.library import Monomial
from vhydro_audits.laws import (
    OURS,
    PEERS,
    LawsAuditConfig,
    condition,
    groups,
    theorem_rows,
    work,
)
from vhydro_audits.laws_theorem import theorem_of
from vhydro_audits.laws_truth import (
    SYSTEMS,
    answer_of,
    confident_wrong,
    held_out,
    matched,
    problem_of,
    scored,
    trial,
    true_law,
)
from vhydro_audits.spec import LAWS
from vhydro_audits.summary import summary_rows

STEPS, DT = 400, 0.005
SIZE = {"episodes": 6, "steps": STEPS, "dt": DT}


def true_answer(task: str):
    return answer_of(true_law(task), list(range(len(problem_of(task).modes))), task)


# --- logs ---------------------------------------------------------------------------------------------------


def test_a_trial_is_drawn_from_its_seed_alone():
    one, again = (trial("puck", 3, 0.01, 0.2, 0.02, **SIZE) for _ in range(2))
    np.testing.assert_array_equal(one.recording.positions, again.recording.positions)
    np.testing.assert_array_equal(one.recording.modes, again.recording.modes)
    other = trial("puck", 4, 0.01, 0.2, 0.02, **SIZE)
    assert not np.array_equal(one.truth.states, other.truth.states)


def test_levels_of_one_seed_are_compared_like_for_like():
    clean, noisy = trial("puck", 0, 0.01, 0.0, 0.0, **SIZE), trial("puck", 0, 0.05, 0.2, 0.02, **SIZE)
    np.testing.assert_array_equal(clean.truth.states, noisy.truth.states)
    q = clean.truth.states[..., :1]
    errors = [log.recording.positions - q for log in (clean, noisy)]
    seen = np.isfinite(errors[1])
    np.testing.assert_allclose(errors[1][seen], 5 * errors[0][seen], rtol=1e-9)
    count = seen.size
    assert abs(np.mean(seen) - 0.8) < 4 * np.sqrt(0.16 / count)
    assert abs(errors[0].std() / q.std() - 0.01) < 4 * 0.01 / np.sqrt(2 * count)
    flipped = np.argmax(noisy.recording.modes, -1) != noisy.truth.modes
    assert abs(flipped.mean() - 0.02) < 4 * np.sqrt(0.02 * 0.98 / count)
    np.testing.assert_array_equal(np.argmax(clean.recording.modes, -1), clean.truth.modes)


@pytest.mark.parametrize("task", SYSTEMS)
def test_a_problem_tells_no_more_than_it_may(task):
    problem, law = problem_of(task), systems.law(SYSTEMS[task])
    known = np.isfinite(problem.port) & (problem.port != 0)
    np.testing.assert_allclose(problem.port[known], law.port[-1][known])
    unknown = {t for e in law.energies for t in e if isinstance(t, Monomial)} - set(problem.library)
    assert not unknown  # every true term is on offer, walls apart
    scale = np.isfinite(problem.dissipation).any() or known[law.positions :].any()
    assert scale


def test_held_out_states_are_those_of_no_trial():
    one, log = held_out("puck", 0, STEPS, DT), trial("puck", 0, 0.0, 0.0, 0.0, **SIZE)
    assert one is held_out("puck", 0, STEPS, DT)
    assert not np.isin(one.states[:, 0], log.truth.states[:, 0]).any()


# --- marks --------------------------------------------------------------------------------------------------


def test_labels_are_matched_one_to_one():
    truth = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    found = np.array([2, 2, 2, 0, 0, 0, 1, 1, 1, 2])
    order, agreement = matched(found, truth, 3)
    assert order == [2, 0, 1]
    assert agreement == pytest.approx(0.8)
    assert matched(truth, truth, 3) == ([0, 1, 2], 1.0)


@pytest.mark.parametrize("task", ["puck", "block"])
def test_the_truth_has_perfect_marks(task):
    marks = scored(true_answer(task), task, 0, STEPS, DT)
    assert (marks["support_f1"], marks["support_precision"]) == (1.0, 1.0)
    for name in ("coefficient_error", "vector_field_nrmse", "physical_constant_error"):
        assert marks[name] == pytest.approx(0, abs=1e-9), name
    assert marks["status"] == "identified"
    assert all(t["true"] == pytest.approx(t["estimate"]) for t in marks["terms"])
    assert marks["constants"]
    assert all(c["true"] == pytest.approx(c["estimate"]) for c in marks["constants"])


def test_a_wrong_law_has_worse_marks():
    law = true_law("puck")
    square = next(i for i, e in enumerate(law.form.entries) if e.term == Monomial((2, 0)))
    spring = next(i for i, e in enumerate(law.form.entries) if getattr(e.term, "power", 0) == 2)
    theta, support = law.theta.copy(), law.support.copy()
    theta[square], support[square] = 3.0, True
    spurious = scored(answer_of(replace(law, theta=theta, support=support), [0, 1, 2], "puck"), "puck", 0, STEPS, DT)
    assert spurious["support_f1"] == pytest.approx(np.mean([2 * 1 / (1 + 2), 2 * 2 / (2 + 3), 2 * 2 / (2 + 3)]))
    assert spurious["support_precision"] == pytest.approx(np.mean([1 / 2, 2 / 3, 2 / 3]))
    assert spurious["vector_field_nrmse"] > 0.01
    theta = law.theta.copy()
    theta[spring] *= 1.1
    stiff = scored(answer_of(replace(law, theta=theta), [0, 1, 2], "puck"), "puck", 0, STEPS, DT)
    assert stiff["support_f1"] == 1.0
    assert stiff["coefficient_error"] == pytest.approx(0.1 / 3, rel=0.01)  # one of three modes
    eight = 8  # mass, friction; stiffness, damping and place of each wall
    assert stiff["physical_constant_error"] == pytest.approx(0.1 / eight, rel=0.01)
    swapped = scored(answer_of(law, [0, 2, 1], "puck"), "puck", 0, STEPS, DT)
    assert swapped["support_f1"] < 1
    assert swapped["vector_field_nrmse"] > 1


def test_a_term_that_hardly_acts_does_not_count():
    law = true_law("puck")
    line = next(i for i, e in enumerate(law.form.entries) if e.term == Monomial((1, 0)))
    theta, support = law.theta.copy(), law.support.copy()
    support[line] = True
    marks = []
    for force in (0.001, 0.1):  # N, beside a drive of up to 3 N
        theta[line] = force
        marks.append(
            scored(answer_of(replace(law, theta=theta, support=support), [0, 1, 2], "puck"), "puck", 0, STEPS, DT)
        )
    assert marks[0]["support_f1"] == 1.0
    assert marks[1]["support_f1"] < 1.0


# --- cells --------------------------------------------------------------------------------------------------


def test_the_full_audit_has_every_cell_once():
    methods = OURS + PEERS
    every = groups(LawsAuditConfig(), methods)
    made = [g for g in every if g.cells[0]["family"] == "four"]
    new = [g for g in every if g.cells[0]["family"] == "new"]
    assert len(made) == 4 * 20 * (12 + 6)
    assert len(new) == len(LAWS.families["new"]) * 20 * (6 + 2)
    alone = [g for g in new if g.key["source"] == "filtered"]
    assert {(g.key["noise"], g.key["missing"], len(g.cells)) for g in alone} == {(0.001, 0.0, 1), (0.01, 0.0, 1)}
    assert {g.key["seed"] for g in new} == set(range(100, 120))  # none that the method was built on
    count = Counter((g.key["task"], g.key["seed"], g.key["source"]) for g in made)
    assert set(count.values()) == {12, 6}
    assert all(n == (12 if source == "given" else 6) for (_, _, source), n in count.items())
    assert len({tuple(sorted(g.key.items())) for g in made}) == len(made)
    assert [cell["method"] for cell in made[0].cells] == list(methods)
    assert all(cell["condition"] == condition(g.key) for g in made for cell in g.cells)


def test_the_quick_audit_is_small():
    made = groups(LawsAuditConfig(quick=True), OURS)
    keys = [(g.key["task"], g.key["source"], g.key["noise"], g.key["missing"], g.key["flips"]) for g in made]
    hard, easy, blind = ("given", 0.05, 0.2, 0.02), ("given", 0.001, 0.0, 0.0), ("filtered", 0.01, 0.0, 0.0)
    assert keys == [*((task, *rest) for task in ("puck", "block") for rest in (easy, hard, blind)), ("bowl", *easy)]
    assert {g.key["seed"] for g in made} == {0, 100}


def test_conditions_in_words():
    key = {"noise": 0.001, "missing": 0.2, "flips": 0.02, "source": "given"}
    assert condition(key) == "noise 0.1 %, missing 20 %, flips 2 %"
    assert condition(key | {"source": "filtered", "noise": 0.05}) == "noise 5 %, missing 20 %"


def test_work_gives_one_record_for_every_method():
    key = {"task": "puck", "source": "given", "noise": 0.001, "missing": 0.0, "flips": 0.0, "seed": 0}
    methods = ["weak", "lasso", "no-ph"]
    records = work(key, SIZE | {"methods": methods})
    assert [r["method"] for r in records] == methods
    weak, lasso, field = records
    assert weak["support_f1"] == 1.0
    assert weak["coefficient_error"] < 0.05
    assert lasso["coefficient_error"] > weak["coefficient_error"]
    assert field["support_f1"] is None
    assert 0 < field["vector_field_nrmse"] < 1
    rows = summary_rows(LAWS, records)
    whole = {r["method"]: r["published"] for r in rows if "task" not in r}
    assert list(whole) == methods
    assert whole["no-ph"]["method"] == "no-ph"
    assert whole["weak"] is None
    assert [r["published"] for r in rows if "task" in r] == [None] * 3


def test_the_theorem_is_counted_where_its_conditions_hold():
    cell = {"source": "given", "theorem": None}
    held = {"library": "few columns", "conditions": True, "holds": True, "support_condition": False}
    numbers = {"kappa": 0.4, "bound": 8.0, "error": 2.0}
    other = held | numbers | {"conditions": False, "holds": False, "kappa": None}
    whole, few = theorem_rows([cell, cell | {"theorem": [held | numbers, other]}])
    assert (whole["library"], whole["modes"], whole["median_kappa"]) == ("whole library", 0, None)
    assert (few["modes"], few["conditions_hold"], few["bound_holds"]) == (2, 1, 1)
    assert few["median_bound_over_error"] == pytest.approx(4.0)
    assert few["median_kappa"] == pytest.approx(0.2)


def test_the_theorem_is_measured_on_a_log():
    log, full, problem = trial("puck", 0, 0.001, 0.0, 0.0, **SIZE), true_law("puck"), problem_of("puck")
    tracks = prepared(log.recording, problem)
    measured = theorem_of(tracks, problem, [0, 1, 2], full, "puck", log.truth)
    sizes = [(m["mode"], m["library"], m["columns"]) for m in measured]
    # The right wall has too few samples here; of the whole library every term acts.
    assert sizes == [
        *[("free", "whole library", 7), ("free", "few columns", 3)],
        *[("left wall", "whole library", 8), ("left wall", "few columns", 4)],
    ]
    for few, whole in ((measured[1], measured[0]), (measured[3], measured[2])):
        assert few["kappa"] >= whole["kappa"] >= 0  # a cone in more dimensions holds more directions
        assert few["nu_structure"] == pytest.approx(0, abs=1e-9)  # R and G are the true ones
        assert few["holds"] or not few["conditions"]
        assert few["score"] <= few["nu_filtering"] + few["nu_derivative"] + few["nu_mode"] + few["nu_structure"] + 1e-9
    assert theorem_of(tracks, problem, [0, 1, 2], None, "puck", log.truth) == []


# --- systems beyond separable inertia -----------------------------------------------------------------------


def test_the_bowl_has_the_textbooks_terms_and_its_lasso_is_not_believed():
    key = {"task": "bowl", "source": "given", "noise": 0.001, "missing": 0.0, "flips": 0.0, "seed": 100}
    full, lasso = work(key, SIZE | {"methods": ["full", "lasso", "no-mode"]})
    assert (full["family"], full["support_f1"], full["status"], full["confident_wrong"]) == ("new", 1, "identified", 0)
    assert full["vector_field_nrmse"] < 0.01
    assert lasso["status"] != "identified"
    assert lasso["confident_wrong"] == 0


def test_confident_and_wrong_is_what_it_says():
    right = {"support_f1": 1.0, "vector_field_nrmse": 0.01, "status": "identified"}
    assert confident_wrong(right) == 0
    assert confident_wrong(right | {"support_f1": 0.9}) == 1
    assert confident_wrong(right | {"vector_field_nrmse": 0.2}) == 1
    assert confident_wrong(right | {"vector_field_nrmse": float("nan")}) == 1
    assert confident_wrong(right | {"vector_field_nrmse": 0.2, "status": "free: too short"}) == 0
