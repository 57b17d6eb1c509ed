"""No text of a file reaches a terminal, a picture, a table or a page as anything but text."""

import csv
import io
import json
import zipfile
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from vhydro.cli import main
from vhydro.data import DataError, read
from vhydro.data.dataset import Dataset
from vhydro.data.inspection import inspect, show
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Channel, Contact, Episode
from vhydro.modes.segments import Segment, write_segments
from vhydro.printable import printable, printable_json, printable_lines, spreadsheet_text
from vhydro.report.timeline import Stretch, timeline_svg

CLEAR, BIDI = "\x1b[2J\x1b]0;gone\x07", "\u202egnp.exe"
WICKED = f"a{CLEAR}<b>&{BIDI}\r\n\x00\ud800\u2028"


def is_harmless(text: str) -> bool:
    return not set(text) & set("\x1b\x07\u202e\r\x00\ud800\u2028")


def wicked_episode() -> Episode:
    force = np.array([0.0, 1, 2])
    return Episode(
        observations=np.arange(3.0)[:, None],
        actions=np.ones((2, 1)),
        dt=0.1,
        channels=(Channel(f"c{CLEAR}", f"g{BIDI}", f"m{CLEAR}"),),
        inputs=(Channel(f"u{BIDI}", "action"),),
        labels={f"l{CLEAR}": np.array([f"x{CLEAR}", "y", f"z{BIDI}"])},
        contacts=(Contact((f"h{CLEAR}", f"o{BIDI}"), force, force),),
        info={f"i{CLEAR}": f"v{BIDI}"},
        source=f"s{CLEAR}",
    )


def test_only_what_is_not_printable_is_replaced():
    assert printable("Grüße, 3 N·m ✓ 力") == "Grüße, 3 N·m ✓ 力"
    assert printable("3\u00a0N\u2009m") == "3 N m"  # spaces of other widths
    assert printable("\x1b[1m\u202e\n") == "\ufffd[1m\ufffd\ufffd"
    assert printable_lines("a\x1b\nb") == "a\ufffd\nb"
    assert printable_json({"a\x1b": ["\u202e", 1, None]}) == {"a\ufffd": ["\ufffd", 1, None]}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum(a1)", "\t=1", "=cmd|' /C calc'!A0"])
def test_a_formula_is_text_in_a_spreadsheet(text):
    assert not spreadsheet_text(text).startswith(("=", "+", "-", "@", "\t"))
    assert spreadsheet_text("demo_1 = 3") == "demo_1 = 3"


def test_an_episode_holds_nothing_that_steers():
    made = wicked_episode()
    texts = [made.channels[0].name, made.channels[0].group, made.channels[0].unit, made.inputs[0].name, made.source]
    texts += [*made.labels, *next(iter(made.labels.values())).tolist(), *made.contacts[0].bodies]
    texts += [*made.info, *map(str, made.info.values()), repr(made)]
    assert all(map(is_harmless, texts))
    assert next(iter(made.labels.values())).tolist()[1] == "y"
    assert replace(made, source="plain").source == "plain"


def test_names_and_notes_of_a_dataset_are_printable(tmp_path):
    made = Dataset("made", tmp_path, (WICKED, "b"), lambda i: wicked_episode(), (WICKED,))
    assert all(map(is_harmless, (*made.names, *made.notes)))
    with pytest.raises(DataError, match="names look the same once they can be printed"):
        Dataset("made", tmp_path, ("a\x1b", "a\x07"), lambda i: wicked_episode())


def test_a_wicked_file_is_inspected_without_harm(tmp_path, capsys):
    """Its own description holds the characters as they are: the reader stands between it and the screen."""
    plain = Dataset("made", tmp_path, ("one",), lambda i: wicked_episode())
    path = write_npz(plain, tmp_path / "x.npz")
    with zipfile.ZipFile(path) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    said = json.loads(members["vhydro.json"])
    said["channels"][0] = {"name": WICKED, "group": CLEAR, "unit": BIDI}
    said["episodes"][0] = {"name": WICKED, "info": {"task": WICKED}}
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in (members | {"vhydro.json": json.dumps(said).encode()}).items():
            zipped.writestr(name, content)
    screen = io.StringIO()
    show(inspect(path), Console(file=screen, force_terminal=False, width=200))
    assert "\ufffd[2J" in screen.getvalue()
    assert is_harmless(screen.getvalue())
    assert is_harmless(read(path)[0].channels[0].name)


def test_an_error_that_names_a_wicked_path_is_printed_without_harm(tmp_path, capsys):
    (tmp_path / f"x{CLEAR}").write_text("nothing known")
    with pytest.raises(SystemExit):
        main(["data", "inspect", str(tmp_path / f"x{CLEAR}")])
    assert is_harmless(capsys.readouterr().err)


def test_tables_and_pictures_of_segments_show_names_as_text(tmp_path):
    names = ["=HYPERLINK(1)", f"b{CLEAR}", f"<script>{BIDI}"]
    found = [[Segment(0, 3, 0, 0.5)] for _ in names]
    written = write_segments(tmp_path / "segments", found, names, 0.1, ("free",))
    assert all(is_harmless(path.read_text("utf-8")) for path in written)
    with written[1].open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["episode"] == "'=HYPERLINK(1)"
    assert json.loads(written[0].read_text("utf-8"))["episodes"][0]["name"] == "=HYPERLINK(1)"
    picture = timeline_svg(names, [[Stretch(0.0, 0.3, 0)]] * 3, (f"mode{CLEAR}<i>",))
    assert is_harmless(picture)
    texts = [t.text or "" for t in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert any(t.startswith("<script>") for t in texts)
