"""The command line as a user meets it."""

import subprocess
import sys

import pytest

import vhydro.demo
from vhydro.cli import GROUPS, VERBS, main


def outcome(arguments, capsys) -> tuple[int, str, str]:
    """Exit status, output and errors of one call."""
    try:
        main(arguments)
        status = 0
    except SystemExit as ending:
        status = int(ending.code or 0)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(arguments, capsys):
    status, out, _ = outcome(arguments, capsys)
    assert status == 0
    single = {verb: text for verb, (text, *_) in VERBS.items() if " " not in verb}
    assert all(verb in out and text in out for verb, text in (GROUPS | single).items())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("more", [[], ["--help"]])
def test_help_of_a_group_lists_its_verbs(group, more, capsys):
    status, out, _ = outcome([group, *more], capsys)
    assert status == 0
    mine = [verb.split()[1] for verb in VERBS if verb.startswith(f"{group} ")]
    assert all(verb in out for verb in mine)


def test_version(capsys):
    status, out, _ = outcome(["--version"], capsys)
    assert status == 0
    assert out.startswith("vhydro ")


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("demo", ("--out", "--seed", "--occlusion", "--particles")),
        ("fit", ("LOGS", "--out", "--modes", "--view", "--hand", "--body", "--positions", "--forces", "--no-refine")),
        ("filter", ("MODEL", "LOGS", "--out", "--level")),
        ("segment", ("MODEL", "LOGS", "--out")),
        ("laws", ("MODEL", "LOGS", "--out")),
    ],
)
def test_help_of_a_verb_lists_its_flags(verb, flags, capsys):
    status, out, _ = outcome([verb, "--help"], capsys)
    assert status == 0
    assert all(flag in out for flag in flags)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dmeo"], "dmeo"),
        (["data", "inspct"], "inspct"),
        (["data", "inspect", "no-such-file"], "no-such-file: found nothing there"),
        (["learn", "logs"], "learn"),
        (["fit"], "LOGS"),
        (["fit", "no-such-file", "--modes", "many"], "--modes"),
        (["fit", "no-such-file"], "no-such-file: found nothing there"),
        (["filter", "no-such-model", "no-such-file"], "no-such-model"),
        (["segment", "no-such-model", "no-such-file"], "no-such-model"),
        (["laws", "no-such-model", "no-such-file"], "no-such-model"),
        (["demo", "--sede", "1"], "--sede"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--particles", "0"], "particles is 0; expected at least 1"),
    ],
)
def test_bad_arguments_end_with_status_2_and_say_why(arguments, words, capsys):
    status, _, err = outcome(arguments, capsys)
    assert status == 2
    assert words in err
    assert "Traceback" not in err


def test_arguments_reach_the_function(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(vhydro.demo, "run_demo", given.append)
    assert outcome(["demo", "--seed", "7", "--out", "elsewhere"], capsys)[0] == 0
    assert (given[0].seed, str(given[0].out)) == (7, "elsewhere")


@pytest.mark.parametrize("error", [ValueError("wrong"), FileNotFoundError("gone")])
def test_errors_are_one_line(error, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(vhydro.demo, "run_demo", fail)
    assert outcome(["demo"], capsys) == (2, "", f"vhydro: {error}\n")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path, capsys):
    (tmp_path / "x").write_text("mine")
    status, _, err = outcome(["demo", "--out", str(tmp_path / "x")], capsys)
    assert status == 2
    assert err.count("\n") == 1
    assert "is a file; expected a folder" in err
    assert (tmp_path / "x").read_text() == "mine"


def test_help_loads_nothing_heavy():
    code = "import sys\nfrom vhydro.cli import main\nmain(['--version'])\nprint({'jax', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
