"""The page of a run is a function of its files: complete, escaped, small, and there after every verb alone."""

import gzip
import json
import re
import struct
from base64 import b64decode

import numpy as np
import pytest

from made_runs import HOSTILE, MODES, made_run
from vhydro.report.mathml import mathml
from vhydro.report.run_files import chosen, read_run
from vhydro.report.run_findings import findings, in_the_dark
from vhydro.report.run_laws import laws_html
from vhydro.report.run_page import refuse_foreign_page, run_page, write_run_page
from vhydro.report.traces import FINE, extremes, filled, packed, packed_all, runs, scales

VERBS = ("fit", "filter", "segment", "laws", "plan")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(made_run(tmp_path_factory.mktemp("runs") / "run"))


def unpacked(text: str) -> dict:
    """What `run.js` reads of a packed log."""
    data = gzip.decompress(b64decode(text))
    (length,) = struct.unpack_from("<I", data)
    out = json.loads(data[4 : 4 + length])
    at = 4 + length
    for name, kind, rows, size in out["arrays"]:
        part = np.frombuffer(data[at : at + size], np.uint8)
        at += size
        if kind == "u1":
            out[name] = part.reshape(rows, -1)
        else:
            out[name] = np.cumsum(np.ascontiguousarray(part.reshape(2, -1).T).view("<i2").reshape(rows, -1), axis=1)
    return out


# --- traces -----------------------------------------------------------------------------------------------------------


def test_a_packed_log_has_its_numbers_to_a_step_of_the_screen(run):
    episode = run.episodes[0]
    got, low, high = unpacked(packed(episode, 600, FINE)), *scales(filled(episode))
    step = ((high - low) / FINE)[:, None]
    np.testing.assert_allclose(low[:, None] + got["mean"] * step, episode.signals["mean"].T, atol=step.max())
    known = np.isfinite(episode.signals["observations"])
    np.testing.assert_array_equal(got["seen_known"].astype(bool), known.T)
    assert got["faults"] == [[60, 0]]
    assert got["low"][0] > -10  # a fault of a million does not flatten the picture
    assert [s[:3] for s in got["segments"]] == got["path"]


def test_thinning_keeps_every_peak_in_its_order():
    random = np.random.default_rng(0)
    values = random.normal(size=(1003, 2))
    values[500, 0], values[501, 1], values[700:760, 1] = 50, -50, np.nan
    thin = extremes(values, 10)
    assert thin.shape == (101, 2)
    assert (thin[:, 0].max(), np.nanmin(thin[:, 1])) == (50, -50)
    assert np.isnan(thin[70:76, 1]).all()
    for pair in range(50):
        part = values[20 * pair : 20 * pair + 20, 0]
        assert sorted(thin[2 * pair : 2 * pair + 2, 0]) == [part.min(), part.max()]
        assert (thin[2 * pair, 0] == part.min()) == (part.argmin() < part.argmax())
    np.testing.assert_array_equal(extremes(values, 1), values)


def test_what_does_not_fit_is_thinned_and_then_left_out(run):
    every = list(run.episodes) * 20
    whole, points = packed_all(every)
    assert (len(whole), points) == (60, 600)
    size = len(whole[0])
    some, fewer = packed_all(every, budget=10 * size)
    assert fewer == 110
    assert 0 < len(some) < 60
    assert sum(map(len, some)) <= 10 * size


def test_stretches_are_runs_of_one_code():
    assert runs(np.array([1, 1, 2, 2, 2, 0])) == [[0, 2, 1], [2, 5, 2], [5, 6, 0]]
    assert runs(np.array([])) == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_findings_are_computed(run):
    dark = in_the_dark(run)
    hidden = np.concatenate([e.signals["hidden"] for e in run.episodes])
    low, high = (np.concatenate([e.signals[k] for e in run.episodes]) for k in ("low", "high"))
    known = np.isfinite(hidden)
    assert dark.readings == known.sum()
    assert dark.covered == ((low <= hidden) & (hidden <= high))[known].mean()
    first, second, third, fourth = findings(run)
    assert "9 segments of 3 modes were found in 3 logs" in first
    assert f"hold {dark.covered:.0%} of the {dark.readings:,} hidden readings" in second
    assert "90% of the steps are certified, and 3 readings were set aside" in second
    assert third == "The law is identified in 1 of 2 modes: stiffness 1203 N/m (1198 to 1209)."
    assert "was refused a proof: 0.4 > 0.3" in fourth


def test_logs_are_joined_by_name_and_length(tmp_path):
    made_run(tmp_path / "run", verbs="filter")
    made_run(tmp_path / "run", verbs="segment", rows=90)
    got = read_run(tmp_path / "run")
    assert len(got.episodes) == 6  # of other logs of the same names
    assert [bool(e.signals) for e in got.episodes] == [True] * 3 + [False] * 3
    assert [bool(e.segments) for e in got.episodes] == [False] * 3 + [True] * 3
    assert "plot" in run_page(got)


def test_episodes_are_chosen_by_name_number_and_range(run):
    assert [e.name for e in chosen(run.episodes, ("log 1", "0", "1:3"))] == ["log 1", "log 0", "log 1", HOSTILE]
    with pytest.raises(ValueError, match="there is no episode 'log 7'; expected a name, a number below 3"):
        chosen(run.episodes, ("log 7",))


def test_damaged_and_foreign_files_are_named(tmp_path):
    folder = made_run(tmp_path / "run")
    (folder / "beliefs.npz").write_bytes(b"PK not an archive")
    (folder / "laws.json").write_text('{"modes": [{"name": 1}]}')
    got = read_run(folder)
    assert got.unread[0].startswith("beliefs.npz could not be read")
    text = run_page(got)
    assert "Beliefs.npz could not be read" in text
    assert "laws.json does not hold what its verb writes" in text
    with pytest.raises(FileNotFoundError, match="holds no result of fit"):
        read_run(made_run(tmp_path / "empty", verbs=""))
    (tmp_path / "empty" / "index.html").write_text("<p>my own page")
    with pytest.raises(FileExistsError, match="is not a page of this program"):
        refuse_foreign_page(tmp_path / "empty")


def test_results_of_another_model_are_marked(tmp_path):
    folder = made_run(tmp_path / "run")
    fit = json.loads((folder / "fit.json").read_text())
    (folder / "fit.json").write_text(json.dumps(fit | {"model": "b"}))
    got = read_run(folder)
    assert got.stale == ("summary.json", "posteriors.npz", "laws.json", "plan.json")
    assert run_page(got).count("is of another model") == 4


# --- the page ---------------------------------------------------------------------------------------------------------


def test_names_from_files_are_escaped(run):
    text = run_page(run)
    assert HOSTILE not in text
    assert "<img" not in text
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert "cube &amp; &lt;peg&gt; with the hand" in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_is_there_after_every_verb_alone(verb, tmp_path):
    folder = made_run(tmp_path / "run", verbs=verb)
    page = write_run_page(folder).read_text("utf-8")
    shown = {
        "fit": "What was fitted",
        "filter": "class='log'",
        "segment": "class='log'",
        "laws": "<math",
        "plan": "The plan",
    }
    for other, words in shown.items():
        there = other == verb or {other, verb} == {"filter", "segment"}
        assert (words in page) == there, (verb, other, re.findall("does not hold[^<]*", page))
    assert (MODES[1] in page) == (verb in ("fit", "filter", "segment"))
    assert write_run_page(folder).read_text("utf-8") == page  # a function of the files, of itself not


def test_every_log_of_a_large_run_says_how_it_is_seen(tmp_path):
    folder = made_run(tmp_path / "run", episodes=12, rows=50, verbs="filter")
    text = run_page(read_run(folder), ("0:4",))
    assert len(re.findall("class='log'", text)) == 4


# --- mathematics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("H &= 0.5 p^2", "<mi>H</mi><mo>=</mo><mn>0.5</mn> <msup><mi>p</mi><mn>2</mn></msup>"),
        (r"\dot q &= -2 p",
         "<mover><mi>q</mi><mo>.</mo></mover><mo>=</mo>"
         "<mo form='prefix'>−</mo><mn>2</mn> <mi>p</mi>"),
        (r"\tfrac{1}{2} [q -1]_+^{2}",
         "<mstyle displaystyle='false'><mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac></mstyle> "
         "<msubsup><mrow><mo stretchy='false'>[</mo>"
         "<mi>q</mi><mo>−</mo><mn>1</mn><mo stretchy='false'>]</mo></mrow><mo>+</mo><mrow><mn>2</mn></mrow></msubsup>"),
        (r"\tfrac12 \partial_q",
         "<mstyle displaystyle='false'><mfrac><mn>1</mn><mn>2</mn></mfrac></mstyle> <msub><mo>∂</mo><mi>q</mi></msub>"),
        (r"\dot \mathit{arm}",
         "<mfrac><mrow><mi>d</mi><mi class='name'>arm</mi></mrow><mrow><mi>d</mi><mi>t</mi></mrow></mfrac>"),
        (r"\mathit{a<b}_1", "<msub><mi class='name'>a&lt;b</mi><mn>1</mn></msub>"),
        (r"\text{friction along } x", "<mtext>friction&#xa0;along&#xa0;</mtext><mi>x</mi>"),
        ("1.5e-05 x", "<mrow><mn>1.5</mn><mo>×</mo><msup><mn>10</mn><mn>−5</mn></msup></mrow> <mi>x</mi>"),
        (r"\sin(2 a)", "<mi>sin</mi><mo>&#x2061;</mo><mrow><mo stretchy='false'>(</mo><mn>2</mn> <mi>a</mi>"
         "<mo stretchy='false'>)</mo></mrow>"),
    ],
)  # fmt: skip
def test_equations_become_mathematics(line, inner):
    assert (
        mathml(line).replace("<mspace width='0.17em'/>", " ")
        == f"<math displaystyle='true'><mrow>{inner}</mrow></math>"
    )


def test_what_a_contact_adds_is_words_and_mathematics():
    line = r"as apart, and where \mathit{gap} - 2e-05 < 0, along \mathit{gap}: -901 \mathit{gap} - 4 \dot{x}"
    law = {"modes": [{"name": "touching", "status": "identified", "reasons": [], "equations": [line]}]}
    text = laws_html(law | {"constants": []})
    assert "<p>As apart, and where <math" in text
    assert "<mn>4</mn><mspace width='0.17em'/><mover>" in text
    assert "mathit" not in text


@pytest.mark.parametrize("line", ["{{{", "x^", r"\mathit{", "a_{b", r"\tfrac", "](", r"\<script>", "}" * 9])
def test_broken_mathematics_stays_well_formed(line):
    from xml.etree import ElementTree

    ElementTree.fromstring(mathml(line))
