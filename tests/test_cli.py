"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
import time

import pytest

import vhydro.demo
from command_line import outcome
from vhydro.cli import GROUPS, TRACEBACK, UNREAD, VERBS, main
from vhydro.completion import completion_script
from vhydro.data import sample


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
        ("demo", ("--out", "--seed", "--hide")),
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
        (["learn", "logs"], "Use `vhydro fit`"),
        (["fit"], "LOGS"),
        (["fit", "no-such-file", "--modes", "many"], "--modes"),
        (["demo", "--sede", "1"], "--sede"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--hide", "1.5"], "--hide 1.5; expected a share"),
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
    assert outcome(["demo"], capsys) == (1, "", f"vhydro: {error}\n")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path, capsys):
    (tmp_path / "x").write_text("mine")
    status, _, err = outcome(["demo", "--out", str(tmp_path / "x")], capsys)
    assert status == 1
    assert err.count("\n") == 1
    assert "is a file; expected a folder" in err
    assert (tmp_path / "x").read_text() == "mine"


def test_help_loads_nothing_heavy():
    code = "import sys\nfrom vhydro.cli import main\nmain(['--version'])\nprint({'jax', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


# --- what a shell meets -------------------------------------------------------------------------------------------


def test_exit_codes_are_told(capsys):
    _, out, _ = outcome(["--help"], capsys)
    assert all(f"\n  {code:<3}  " in out for code in (0, 1, 2, 130))
    assert max(map(len, out.split("Exit status")[1].splitlines())) <= 80


def test_help_of_a_verb_by_another_name(capsys):
    assert "--modes" in outcome(["help", "fit"], capsys)[1]


def test_the_module_is_the_program():
    done = subprocess.run([sys.executable, "-m", "vhydro", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("vhydro ")


def test_a_fault_of_the_program_is_one_line(monkeypatch, capsys):
    """What nobody foresaw is no traceback for a user, and one for whoever mends it."""

    def fail(_):
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(vhydro.demo, "run_demo", fail)
    status, _, err = outcome(["demo"], capsys)
    assert (status, err.count("\n")) == (1, 1)
    assert "should not have happened (KeyError: 'nobody foresaw this')" in err
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(KeyError):
        main(["demo"])


def shell(line: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ | {"V": VHYDRO})


VHYDRO = f"{sys.executable} -m vhydro"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_told():
    done = shell("$V --help > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device. Free some space" in done.stderr


def test_a_reader_that_goes_away_is_no_error():
    done = shell("(sleep 0.5; $V data inspect src/vhydro/data/samples/PokeCube-v1.h5; echo $? >&2) | true")
    assert done.stderr == f"{UNREAD}\n"


def test_nothing_but_the_answer_is_said_into_a_pipe():
    log = sample("PokeCube").path
    done = shell(f"$V data inspect {log} --json")
    assert (done.returncode, json.loads(done.stdout)["verb"]) == (0, "data inspect")
    done = shell(f"$V data inspect {log}")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["f"], {"filter", "fit"}),
        (["data", "con"], {"convert"}),
        (["fit", "logs.h5", "--mo"], {"--modes", "--moves"}),
        (["audit", "support", "--family", ""], {"contact", "sawyer", "all"}),
        (["fit", "log"], {"logs.h5", "logs"}),
        (["fit", ""], {"logs.h5", "logs", "model.vhydro"}),
        (["fit", "logs.h5", "--mapping", "log"], {"logs.h5", "logs"}),
    ],
)
def test_bash_completes(typed, offered, script, tmp_path):
    for name in ("logs.h5", "model.vhydro"):
        (tmp_path / name).touch()
    (tmp_path / "logs").mkdir()
    words = " ".join(f"'{w}'" for w in ("vhydro", *typed))
    lines = f"source {script}; cd {tmp_path}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _tyro_vhydro; "
    done = shell(lines + 'complete -p vhydro >/dev/null && printf "%s\\n" "${COMPREPLY[@]}"')
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == offered


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "vhydro.bash"
    path.write_text(completion_script("bash"))
    return path


@pytest.mark.parametrize("kind", ["zsh", "fish"])
def test_other_shells_have_completion(kind, capsys):
    status, out, _ = outcome(["completion", kind], capsys)
    assert status == 0
    assert all(word in out for word in ("vhydro", "inspect", "--no-refine"))


def seconds(code: str) -> float:
    """The quickest of three runs, in a process of its own."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def test_it_is_there_at_once():
    """What the documentation promises; a machine of two cores needs a tenth of it."""
    assert seconds("import vhydro") < 1.5
    assert seconds("from vhydro.cli import main; main(['--help'])") < 1.0
