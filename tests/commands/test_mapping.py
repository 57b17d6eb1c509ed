"""Naming the channels of a log: what `inspect` says of every view, the draft it writes, and what a mapping does."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from known_logs import valve_log
from vhydro.cli import VERBS, main
from vhydro.commands.fit import FitCommand, run_fit
from vhydro.commands.mapping import Naming, draft, read_mapping, renamed, renames, with_units
from vhydro.data import DataError, read
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.data.sample import SHIPPED, sample
from vhydro.usage import UsageError
from vhydro.views import BodyView, ContactView, MechanicsView, PlainView, choose_view
from vhydro.views.needs import needs, triples


def kept(path, *episodes):
    write_npz(Dataset("made", path, tuple(f"log {i}" for i in range(len(episodes))), lambda i: episodes[i]), path)
    return path


def shown(arguments, capsys, monkeypatch, columns=80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    main([str(a) for a in arguments])
    return capsys.readouterr().out.splitlines()


def test_a_place_is_named_with_commas_or_without():
    """As the places of bodies are."""
    body = ("cup=a,b,c",)
    assert Naming(hand=("x,y,z",), body=body) == Naming(hand=("x", "y", "z"), body=body)
    assert Naming(hand=("x,y", "y", "z"), body=body).hand == ("x,y", "y", "z")  # a name may hold a comma


@pytest.mark.parametrize(
    ("told", "missing"),
    [({"forces": ("f",)}, "positions"), ({"masses": (1.0,)}, "positions"), ({"grip": "g"}, "hand")],
)
def test_what_is_told_of_channels_nobody_named_is_refused(told, missing):
    """It counted for nothing, without a word."""
    with pytest.raises(UsageError, match=f"--{next(iter(told))} without --{missing}; expected both"):
        Naming(**told).chosen()


# --- what every view needs --------------------------------------------------------------------------------------------


def test_what_a_robot_log_shows_is_ticked(capsys, monkeypatch):
    lines = shown(["data", "inspect", sample("PokeCube").path], capsys, monkeypatch)
    told = " ".join(" ".join(lines[lines.index("what a fit would see") :]).split())
    assert "hand: tcp.x tcp.y tcp.z ✓; bodies: cube peg ✓" in told
    assert "forces in N or N m: none, name one for each position" in told
    assert "fit takes the contact view" in told


def test_what_is_missing_is_named_with_the_flag_that_gives_it(tmp_path, capsys, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("t,tcp.x,tcp.y,tcp.z,pose/x,pose/y,pose/z\n" + "".join(f"{t},{t},2,3,{t},,7\n" for t in range(5)))
    lines = shown(["data", "inspect", path], capsys, monkeypatch)
    told = " ".join(" ".join(lines).split())
    assert "hand: tcp.x tcp.y tcp.z ✓; bodies: none, name one with --body cup=pose/x,pose/y,pose/z" in told
    assert "rate 1 Hz ✓" in told
    assert "units none told of tcp.x, tcp.y, tcp.z and 3 more, taken as SI; tell them with --units tcp.x=mm" in told
    assert "gaps in 1 of 6 channels; the longest 5 rows, pose/y" in told


@pytest.mark.parametrize("columns", [80, 120])
def test_numbers_are_never_cut(tmp_path, capsys, monkeypatch, columns):
    path = tmp_path / "x.csv"
    names = ["a_rather_long_name_of_a_joint_that_somebody_gave_" + c for c in "pq"]
    values = [(-1.23456e-17 * t, 6.54321e15 * t) for t in range(1, 40)]
    path.write_text(f"t,{','.join(names)}\n" + "".join(f"{t},{a},{b}\n" for t, (a, b) in enumerate(values)))
    lines = shown(["data", "inspect", path], capsys, monkeypatch, columns)
    assert max(map(len, lines)) <= columns or (columns == 80 and str(path) in max(lines, key=len))
    text = "\n".join(lines)
    assert all(number in text for number in ("-4.815e-16", "-1.235e-17", "6.543e+15", "2.552e+17"))
    assert "…" not in text


def test_needs_agree_with_what_fit_finds():
    for name in SHIPPED:
        logs = list(sample(name))
        found = {kind: all(n.found or n.optional for n in every) for kind, every in needs(logs).items()}
        kind = choose_view(logs).view.kind
        assert found[kind], name
        before = list(found)[: list(found).index(kind)]
        assert not any(found[k] for k in before), name


def test_triples_are_places():
    assert triples(["a/x", "a/y", "a/z", "b.x", "b.y", "EE_X", "EE_Y", "EE_Z"]) == [
        ("a/x", "a/y", "a/z"),
        ("EE_X", "EE_Y", "EE_Z"),
    ]


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SHIPPED])
def test_a_draft_is_the_view_that_was_found(name, tmp_path, capsys):
    logs, file = sample(name), tmp_path / "m.json"
    main(["data", "inspect", str(logs.path), "--write", str(file)])
    view = Naming(mapping=file).chosen()
    found = choose_view(list(logs)).view
    assert (view.fitted_to(list(logs)) if isinstance(view, ContactView) else view) == found
    with pytest.raises(SystemExit):
        main(["data", "inspect", str(logs.path), "--write", str(file)])
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "view",
    [
        ContactView(("x", "y", "z"), {"cup": ("a", "b", "c, d"), "jug": ("d", "e", "f")}, ("g",), "u", moves=("p",)),
        MechanicsView(("x",), ("u",), ("v",), (float("nan"),)),
        BodyView(("x", "y", "z"), ("a", "b", "c", "d"), "cube"),
        PlainView(("x", "a"), ("u",)),
    ],
    ids=lambda v: v.kind,
)  # fmt: skip
def test_every_view_comes_back_from_its_file(view, tmp_path):
    from vhydro.report.files import plain

    file = tmp_path / "m.json"
    file.write_text(json.dumps(plain(draft(view, valve_log(0)))))
    assert repr(Naming(mapping=file).chosen()) == repr(view)  # nan is not equal to itself


def test_flags_go_before_the_file(tmp_path):
    file = tmp_path / "m.json"
    file.write_text('{"view": "plain", "channels": ["a"], "inputs": ["u"], "units": {"a": "mm", "u": ""}}')
    assert Naming(mapping=file, channels=("b",)).chosen() == PlainView(("b",), ("u",))
    assert read_mapping(file).units == ("a=mm",)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"hnad": []}', '{"hand": "x"}', '{"body": ["a"]}', '{"units": {"a": 3}}', '{"friction": ["x"]}',
     '{"view": 3}', '{"body": {"a": "b"}}', "[" * 100_000, '{"hand": [1, 2, 3]}'],
)  # fmt: skip
def test_a_file_that_is_no_mapping_is_refused(text, tmp_path):
    file = tmp_path / "m.json"
    file.write_text(text)
    with pytest.raises(DataError, match="expected a mapping: a JSON object of view, hand, body"):
        Naming(mapping=file).chosen()
    with pytest.raises(DataError, match="drafts one"):
        Naming(mapping=tmp_path / "none.json").chosen()


# --- what it does -----------------------------------------------------------------------------------------------------


def test_units_are_those_that_were_told():
    log = with_units(valve_log(0), {"flow": "mm", "valve": "deg"})
    assert {c.name: c.unit for c in (*log.channels, *log.inputs)}["flow"] == "mm"
    assert log.inputs[0].unit == "deg"
    with pytest.raises(ValueError, match=r"has no nothing for --units"):
        with_units(valve_log(0), {"nothing": "mm"})
    with pytest.raises(ValueError, match="nobody knows the unit 'furlong'; expected one such as"):
        Naming(units=("flow=furlong",)).applied(Dataset("made", sample("PokeCube").path, ("a",), lambda i: log))


def test_a_log_with_other_names_goes_through_a_model(tmp_path, capsys):
    """The same log, its channels called otherwise: with a mapping it gives the same numbers."""
    logs = [valve_log(seed) for seed in range(3)]
    model = tmp_path / "valve.vhydro"
    naming = Naming(channels=("flow",), inputs=("valve",))
    run_fit(FitCommand(kept(tmp_path / "a.npz", *logs), out=model, modes=1, refine=False, naming=naming))
    plain = kept(tmp_path / "plain.npz", logs[0])
    other = kept(tmp_path / "other.npz", renamed(logs[0], {"flow": "q"}, {"valve": "u"}))
    mapping = tmp_path / "m.json"
    mapping.write_text(json.dumps({"channels": ["q"], "inputs": ["u"]}))
    main(["filter", str(model), str(plain), "--out", str(tmp_path / "one")])
    main(["filter", str(model), str(other), "--out", str(tmp_path / "two"), "--mapping", str(mapping)])
    with np.load(tmp_path / "one/beliefs.npz") as one, np.load(tmp_path / "two/beliefs.npz") as two:
        np.testing.assert_array_equal(one["mean"], two["mean"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["filter", str(model), str(other), "--positions", "q"])
    assert "the mechanics view was named; expected the plain view" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fit", "filter", "segment", "laws", "plan", "data inspect", "data convert"])
def test_every_verb_takes_the_same_names(verb):
    _, module, configuration, _ = VERBS[verb]
    fields = getattr(import_module(module), configuration).__dataclass_fields__
    assert isinstance(fields["naming"].default_factory(), Naming)


def test_converted_logs_have_the_usual_names(tmp_path, capsys):
    """Logs of a stranger's robot: converted with a mapping, everything is found without one."""
    first = list(sample("PokeCube"))
    strange = {c.name: f"/topic{i}" for i, c in enumerate((*first[0].channels, *first[0].inputs))}
    logs = [replace(renamed(log, strange, strange), contacts=(), labels={}) for log in first]
    logs = [replace(e, channels=tuple(replace(c, group="scene") for c in e.channels)) for e in logs]
    path, file = kept(tmp_path / "x.npz", *logs), tmp_path / "m.json"
    told = draft(choose_view(first).view, first[0])
    told |= {k: [strange[n] for n in told[k]] for k in ("hand", "fingers", "joints", "targets")}
    told |= {"body": {b: [strange[n] for n in names] for b, names in told["body"].items()}, "units": {}, "unused": []}
    file.write_text(json.dumps(told | {"grip": strange[told["grip"]]}))
    main(["data", "convert", str(path), "--out", str(tmp_path / "y.npz"), "--mapping", str(file)])
    assert choose_view(list(read(tmp_path / "y.npz"))).view == choose_view(first).view
    assert choose_view(list(read(path))).view.kind == "plain"


def test_names_of_contact_are_paired_by_what_they_are():
    model = ContactView(("hx", "hy", "hz"), {"cup": ("a", "b", "c")}, ("f",), "grip", moves=("dx", "dy", "dz"))
    mine = ContactView(("x", "y", "z"), {"cup": ("u", "v", "w")}, ("g",), "squeeze", moves=("dx", "dy", "m"))
    channels, inputs = renames(mine, model)
    assert channels == {"u": "a", "v": "b", "w": "c", "x": "hx", "y": "hy", "z": "hz", "g": "f"}
    assert inputs == {"squeeze": "grip", "m": "dz"}
    with pytest.raises(ValueError, match="the bodies jug were named; expected cup"):
        renames(replace(mine, bodies={"jug": ("u", "v", "w")}), model)
    with pytest.raises(ValueError, match=r"2 names of fingers \(g, h\); expected 1 \(f\)"):
        renames(replace(mine, fingers=("g", "h")), model)


def test_a_name_that_is_taken_steps_aside():
    log = valve_log(0)
    swapped = renamed(log, {"flow": "pressure"}, {})
    assert {c.name for c in swapped.channels} == {"pressure", "pressure of the log"}
    by_name = {c.name: swapped.observations[:, i] for i, c in enumerate(swapped.channels)}
    before = {c.name: log.observations[:, i] for i, c in enumerate(log.channels)}
    np.testing.assert_array_equal(by_name["pressure"], before["flow"])
