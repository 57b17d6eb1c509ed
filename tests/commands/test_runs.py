"""A run is a folder: one model, what every verb wrote, and one page of all of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_mapping import kept

from known_logs import spring_log
from vhydro.cli import main
from vhydro.commands.filter import FilterCommand, run_filter
from vhydro.commands.fit import FitCommand, divided, run_fit
from vhydro.commands.laws import LawsCommand, run_laws
from vhydro.commands.plan import PlanCommand, run_plan
from vhydro.commands.report import ReportCommand, run_report
from vhydro.commands.segment import SegmentCommand, run_segment
from vhydro.fitted import digest, load
from vhydro.report.run_files import read_run
from vhydro.usage import UsageError

TASK = """
import jax.numpy as jnp, vhydro as vh
task = vh.Task(cost=lambda z, mode, a: jnp.clip(jnp.abs(z["cart.position"]), 0, 1), bound=1.0, actions=(-1.0, 1.0))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, Path]:
    """A run through every verb, and its logs."""
    folder = tmp_path_factory.mktemp("runs")
    data = kept(folder / "cart.npz", *(spring_log(seed) for seed in range(4)))
    out = folder / "run"
    run_fit(FitCommand(data, out=out, modes=1, refine=False))
    run_filter(FilterCommand(out, data, out=out, hide=0.5))
    run_segment(SegmentCommand(out, data, out=out))
    run_laws(LawsCommand(out, data, out=out))
    (folder / "task.py").write_text(TASK)
    run_plan(PlanCommand(out, data, folder / "task.py", out=out, horizon=4, candidates=16, particles=8))
    return out, data


def test_everything_is_in_one_folder_and_on_one_page(run):
    out, _ = run
    page = (out / "index.html").read_text("utf-8")
    for words in (
        "What was fitted",
        "class='log'",
        "Segments of this log",
        "<math",
        "The plan",
        "What it could not do",
    ):
        assert words in page
    assert not list(out.glob(".*"))  # nothing is left of the writing
    got = read_run(out)
    assert (got.unread, got.stale) == ((), ())
    assert {d["model"] for d in (got.fit, got.filtered, got.law, got.plan)} == {digest(out)}
    assert got.modes == load(out).names == load(out / "model.vhydro").names
    assert [e.name for e in got.episodes] == [f"log {i}" for i in range(4)]
    assert all(e.signals and e.segments and e.path is not None for e in got.episodes)
    assert run_report(ReportCommand(out)).read_text("utf-8") == page


def test_what_was_hidden_is_kept_apart_from_what_was_seen(run):
    out, _ = run
    with np.load(out / "beliefs.npz") as held:
        seen, hidden = held["observations"], held["hidden"]
        assert not (np.isfinite(seen) & np.isfinite(hidden)).any()
        assert 0.4 < np.isfinite(hidden).mean() < 0.6
        first = spring_log(0).observations[:, 0]
        both = np.where(np.isfinite(seen), seen, hidden)[: len(first), 0]
        np.testing.assert_allclose(both, first, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"), [({"hide": 1.0}, "--hide 1;"), ({"hide": 0.5, "to": "parquet"}, "--hide with")]
)
def test_what_cannot_be_hidden_is_refused(options, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        FilterCommand(tmp_path, tmp_path, **options)


def test_a_law_is_followed_on_a_log_that_it_was_not_fitted_to(run):
    told = json.loads((run[0] / "laws.json").read_text("utf-8"))
    shown = told["prediction"]
    assert (shown["held_out"], shown["others"], shown["names"]) == (True, 3, ["cart.position"])
    assert shown["rms"][0] < 0.05 * shown["spread"][0]  # a cart on a spring is predicted for a second
    assert told["modes"][0]["status"] == "identified"
    assert any(r"\dot" in line for line in told["modes"][0]["equations"])
    assert {c["name"] for c in told["constants"]} >= {"mass", "stiffness"}


def test_the_pictures_of_a_law_are_on_the_page_with_its_files(run):
    told = json.loads((run[0] / "laws.json").read_text("utf-8"))
    ((portrait,), (friction,)) = told["phase"], told["friction"]
    assert (portrait["name"], portrait["unit"], portrait["rate"]) == ("cart.position", "m", "m/s")
    constant = next(c["value"] for c in told["constants"] if c["name"] == "friction")
    (curve,) = friction["curves"]
    np.testing.assert_allclose(curve["f"], constant * np.array(curve["v"]), rtol=1e-4)
    whole = told["prediction"]["whole"]
    assert whole["holds"] == pytest.approx(60 * 0.05)  # a true law, to the end
    assert whole["all"]
    assert not whole["told"]
    page = (run[0] / "index.html").read_text("utf-8")
    assert all(words in page for words in ("How does it move?", "Where does friction show?", "Does it predict?"))
    assert all(f"<a href='law.{kind}'>" in page for kind in ("txt", "tex", "json", "c", "py"))


def test_a_report_of_nothing_says_how_to_make_a_run(tmp_path, capsys):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(SystemExit):
            main(["report", str(folder)])
        assert "vhydro fit LOGS --out RUN" in capsys.readouterr().err


def test_a_report_is_divided_into_what_was_done_and_what_was_not():
    did, did_not = divided(("saw 3 logs", "  mode 0: free", "mode 1 hardly occurs, or …", "not used: a, b"))
    assert (did, did_not) == (["saw 3 logs"], ["mode 1 hardly occurs, or …", "not used: a, b"])
