"""What people get wrong, all in one table: what they typed, the status it ends with, and what they are told.

Every answer is one or two lines with a remedy, never a traceback; nothing is written, and nothing that was there goes.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from command_line import outcome
from known_logs import spring_log, valve_log
from vhydro.commands.fit import FitCommand, run_fit
from vhydro.data import read, sample
from vhydro.data.convert import convert
from vhydro.data.dataset import Dataset
from vhydro.data.npz_native import write_npz
from vhydro.episodes import Channel
from vhydro.fitted import load
from vhydro.interrupts import INTERRUPTED
from vhydro.outputs import locked
from vhydro.storage import save

TASK = """
import jax.numpy as jnp
import vhydro as vh

cost = lambda z, mode, a: jnp.clip(jnp.abs(z["cart.position"]), 0, 1)
task = vh.Task(cost, lambda z, mode, a: z["cart.position"] > 9, 1.0, {"cart.push": (-2, 2)})
"""


class Wrong(NamedTuple):
    """One wrong use: its words, the status it ends with, and what is said, the remedy last."""

    typed: str
    status: int
    told: tuple[str, ...]


CASES = [
    # --- verbs and flags --------------------------------------------------------------------------------------------
    Wrong("fitt valve.npz", 2, ("no verb 'fitt'", "Did you mean fit?")),
    Wrong("inspect valve.npz", 2, ("no verb 'inspect'", "Did you mean `vhydro data inspect`?")),
    Wrong("data look valve.npz", 2, ("no verb 'look'", "There are inspect, convert")),
    Wrong("learn valve.npz", 2, ("no verb 'learn' any more", "Use `vhydro fit`")),
    Wrong("--out m.vhydro fit valve.npz", 2, ("no option --out here", "options follow a verb")),
    Wrong("fit valve.npz --mode 3", 2, ("no --mode", "Did you mean --modes")),
    Wrong("fit valve.npz --out", 2, ("--out lacks its value", "--help")),
    Wrong("fit", 2, ("LOGS is missing", "expected `vhydro fit LOGS`")),
    Wrong("filter valve.vhydro", 2, ("LOGS is missing", "expected `vhydro filter MODEL LOGS`")),
    Wrong("filter --level 0.5 valve.vhydro", 2, ("LOGS is missing", "What has no flag goes first")),
    Wrong("fit valve.npz cart.npz", 2, ("'cart.npz' is one word too many", "a pattern in quotes such as 'logs/*.h5'")),
    Wrong("audit support --fresh", 2, ("no --fresh any more", "Use --overwrite")),
    Wrong("plan cart.vhydro cart.npz task.py --log 1", 2, ("no --log any more", "Use --episode")),
    Wrong("audit laws --systems puck", 2, ("no --systems any more", "Use --tasks")),
    Wrong("completion tcsh", 2, ("SHELL tcsh", "expected one of bash, zsh, fish")),
    # --- values -----------------------------------------------------------------------------------------------------
    Wrong("fit valve.npz --modes 0", 2, ("--modes 0", "expected at least 1", "Give --modes 1 or more")),
    Wrong("fit valve.npz --modes many", 2, ("--modes many", "expected a whole number or auto")),
    Wrong("fit valve.npz --seed -1", 2, ("--seed -1", "expected at least 0")),
    Wrong("fit valve.npz --view contakt", 2, ("--view contakt", "Did you mean contact?")),
    Wrong("fit valve.npz --rate -5", 2, ("--rate -5", "expected a positive number", "such as --rate 50")),
    Wrong("filter valve.vhydro valve.npz --level 90", 2, ("--level 90", "a share strictly between 0 and 1")),
    Wrong("filter valve.vhydro valve.npz --to npz", 2, ("--to npz", "expected one of files, parquet")),
    Wrong("filter valve.vhydro valve.npz --to parquet --block 0", 2, ("--block 0", "expected at least 1")),
    Wrong("laws cart.vhydro cart.npz --estimator shoot", 2, ("--estimator shoot", "Did you mean shooting?")),
    Wrong("data inspect valve.npz --rows 0", 2, ("--rows 0", "expected at least 1")),
    Wrong("demo --seed one", 2, ("--seed one", "expected a whole number", "--help")),
    # --- options that exclude each other ----------------------------------------------------------------------------
    Wrong(
        "fit valve.npz --view body --positions flow", 2, ("--view body with channels of the mechanics view", "Leave")
    ),
    Wrong(
        "fit valve.npz --positions flow --channels flow", 2, ("the mechanics and the plain view", "Leave the others")
    ),
    Wrong("fit valve.npz --body cup", 2, ("--body cup", "such as --body cup=cup_x,cup_y,cup_z")),
    Wrong("fit valve.npz --body a=a. b=b.", 2, ("2 bodies without a hand", "Name its channels with --hand X Y Z")),
    Wrong("fit valve.npz --hand x y", 2, ("the hand has the channels", "expected its place along x, y and z")),
    Wrong("fit valve.npz --units flow=furlong", 2, ("nobody knows the unit 'furlong'", "such as m, mm, rad")),
    Wrong("fit valve.npz --units furlong", 2, ("--units furlong", "such as --units pose/x=mm")),
    Wrong("segment valve.vhydro valve.npz --workers 2", 2, ("with --to files", "give --to parquet")),
    Wrong("laws cart.vhydro cart.npz --to parquet", 2, ("--to parquet without --out", "Give --out FOLDER")),
    Wrong("plan cart.vhydro cart.npz", 2, ("TASK is missing", "`vhydro plan MODEL LOGS TASK`")),
    Wrong("plan cart.vhydro cart.npz task.py --noise 0.1", 2, ("--noise or --static-friction without --delta", "Give")),
    Wrong("plan cart.vhydro cart.npz task.py --delta 2", 2, ("--delta 2", "a share strictly between 0 and 1")),
    Wrong("data inspect valve.npz --overwrite", 2, ("--overwrite without --write", "Give --write FILE")),
    Wrong("audit support --tasks PushCub --quick", 2, ("no task 'PushCub' in --family all", "Did you mean PushCube?")),
    Wrong("audit modes --family both", 2, ("--family both", "expected one of maniskill, unseen, new, sawyer, all")),
    Wrong("audit laws --tasks puk", 2, ("no task 'puk'", "Did you mean puck?")),
    Wrong("audit support", 2, ("a full run needs --data FOLDER", "use --quick")),
    Wrong("audit modes --quick --seeds 3", 2, ("--quick always runs", "Leave those out")),
    Wrong("audit page --out here", 2, ("--out is the folder of one audit", "say which")),
    Wrong("collect maniskill PushCubes --out new", 2, ("TASK PushCubes", "Did you mean PushCube?")),
    Wrong("collect sawyer tower", 2, ("--out is missing", "--help")),
    # --- logs -------------------------------------------------------------------------------------------------------
    Wrong("fit none.h5", 1, ("none.h5: found nothing there", "Check the path")),
    Wrong("fit none/*.h5", 1, ("found nothing that matches", "Check the pattern")),
    Wrong("data inspect notes.txt", 1, ("bytes that no reader recognises", "CSV is the simplest")),
    Wrong("data inspect text.npz", 1, ("text.npz", "bytes that no reader recognises", "Export the log")),
    Wrong("data inspect cut.h5", 1, ("cut.h5", "expected", "Copy or download it again")),
    Wrong("data inspect nothing.csv", 1, ("nothing.csv: found an empty file", "Export the log")),
    Wrong("data inspect empty", 1, ("empty: found an empty folder", "Check the path")),
    Wrong("data inspect papers", 1, ("papers: found a folder of 2 files, none recognised", "Check the path")),
    Wrong("data inspect headless", 1, ("headless", "its folder meta", "copy the whole dataset again")),
    Wrong("fit valve.vhydro", 1, ("valve.vhydro", "a model that `vhydro fit` wrote", "Give logs")),
    Wrong("fit one_row.csv", 1, ("found 1 time stamps; expected at least two", "leave it out")),
    Wrong("fit short.npz", 1, ("the only log has 9 rows", "Give more logs")),
    Wrong("fit dark.npz", 1, ("is ever seen to change", "`vhydro data inspect LOGS`")),
    Wrong("fit still.npz", 1, ("is ever seen to change", "leave out logs of things that stand still")),
    Wrong("fit rates.npz", 1, ("expected one time step for all", "--only-rate")),
    Wrong(
        "fit rates.npz --only-rate 7", 1, ("no episode of rates.npz is at 7 Hz", "Choose one of these with --only-rate")
    ),
    Wrong("fit kinds", 1, ("differ in the channels", "Fit a model to each kind by itself")),
    Wrong("fit valve.npz --episodes 99", 1, ("episode 99 was asked for", "expected a number from 0 to 3")),
    Wrong("fit valve.npz --episodes 50:60", 1, ("holds none of the 4 episodes", "expected numbers from 0 to 3")),
    Wrong("fit valve.npz --episodes log_1", 1, ("'log_1' is no episode", "Did you mean log 1?")),
    Wrong("fit valve.npz --topics /joints", 1, ("expected a ROS 2 bag", "Leave --topics out")),
    Wrong("fit valve.npz --rate 50", 1, ("by its own account", "Leave the rate out")),
    Wrong("fit valve.npz --channels flaw", 1, ("does not show flaw", "Did you mean flow for flaw?")),
    Wrong("fit valve.npz --units flaw=mm", 1, ("has no flaw for --units", "Did you mean flow?")),
    Wrong("fit valve.npz --view mechanics", 1, ("expected", "--positions")),
    Wrong(
        "fit hostile.csv --channels x", 1, ("does not show x", "\N{REPLACEMENT CHARACTER}[31mevil", "Name what it has")
    ),
    Wrong(
        "fit \x1b[31mred\u202e\nname.h5", 1, ("found nothing that matches", "\N{REPLACEMENT CHARACTER}[31mred", "Check")
    ),
    # --- mappings ---------------------------------------------------------------------------------------------------
    Wrong(
        "fit valve.npz --mapping none.json", 1, ("none.json", "No such file", "`vhydro data inspect LOGS --write FILE`")
    ),
    Wrong("fit valve.npz --mapping notes.txt", 1, ("notes.txt", "a mapping: a JSON object", "drafts one")),
    Wrong("fit valve.npz --mapping odd.json", 1, ("the key 'chanels'", "Did you mean channels?")),
    Wrong("fit valve.npz --mapping other.json", 1, ("does not show pressur", "Did you mean pressure for")),
    # --- models -----------------------------------------------------------------------------------------------------
    Wrong("filter none.vhydro valve.npz", 1, ("none.vhydro: nothing is there", "`vhydro fit LOGS --out MODEL`")),
    Wrong(
        "filter valve.npz valve.vhydro",
        1,
        ("bytes are no model; ", "`vhydro fit LOGS --out MODEL` wrote", "they follow it"),
    ),
    Wrong("filter notes.txt valve.npz", 1, ("notes.txt", "vhydro fit")),
    Wrong("filter cut.vhydro valve.npz", 1, ("cut.vhydro", "damaged", "copy it again")),
    Wrong("segment bare.vhydro valve.npz", 1, ("without the view and names", "Fit the logs again")),
    Wrong("segment future.vhydro valve.npz", 1, ("is of format 99; expected 1", "Use the version that wrote it")),
    Wrong("filter cart.vhydro fast.npz", 1, ("does not show cart.position", "Name what it has")),
    Wrong("filter valve.vhydro slow.npz", 1, ("has steps of 0.2 s; expected 0.1 s", "Fit a model to these logs")),
    Wrong("segment valve.vhydro blind.npz", 1, ("hides every reading", "Leave it out")),
    Wrong("laws valve.vhydro valve.npz", 1, ("the plain view, which shows no forces", "Fit with a mechanics view")),
    Wrong("plan valve.vhydro valve.npz none.py", 1, ("none.py is not there", "expected a Python file")),
    Wrong("plan cart.vhydro cart.npz three.py", 1, ("defines task = 3", "expected `task = vhydro.Task(")),
    Wrong("plan cart.vhydro cart.npz broken.py", 1, ("ZeroDivisionError", "mend it")),
    Wrong("plan cart.vhydro cart.npz task.py --episode 9", 1, ("episode 9 was asked for", "from 0 to 3")),
    # --- where results go -------------------------------------------------------------------------------------------
    Wrong("fit valve.npz --out taken.vhydro", 1, ("exists and is no model file", "Give --out FILE.vhydro")),
    Wrong("fit valve.npz --out none/m.vhydro", 1, ("there is no folder none", "Create it first")),
    Wrong("fit valve.npz --out notes.txt/m.vhydro", 1, ("there is no folder notes.txt", "Create it first")),
    Wrong(
        "fit valve.npz --out /proc/m.vhydro", 1, ("/proc/m.vhydro cannot be written", "expected a place of your own")
    ),
    Wrong(
        "filter valve.vhydro valve.npz --out notes.txt", 1, ("notes.txt is a file; expected a folder", "Give another")
    ),
    Wrong("filter valve.vhydro valve.npz --out half", 1, ("so it is not known to be a result", "Give another --out")),
    Wrong("filter valve.vhydro valve.npz --out /proc/none/x", 1, ("cannot be made", "expected a place of your own")),
    Wrong("segment valve.vhydro valve.npz --to parquet --out papers", 1, ("papers holds other files", "another --out")),
    Wrong(
        "segment valve.vhydro valve.npz --to lerobot --out robot",
        1,
        ("robot: found a file or folder there already", "--overwrite"),
    ),
    Wrong(
        "data convert valve.npz --out cart.npz", 1, ("cart.npz: found a file or folder there already", "--overwrite")
    ),
    Wrong("data convert valve.npz --out valve.npz --overwrite", 1, ("the log itself", "Give another --out")),
    Wrong("data convert kinds/*.npz", 2, ("is a pattern", "Give --out")),
    Wrong("data inspect valve.npz --write odd.json", 1, ("odd.json is there already", "--overwrite")),
    Wrong("audit planning --quick --out notes.txt", 1, ("notes.txt is a file; expected a folder", "Give another")),
    Wrong("audit page laws --out none", 1, ("none/cells.jsonl.gz is not there", "vhydro audit laws")),
    Wrong("collect maniskill PushCube --out new --python notes.txt", 1, ("does not run", "make maniskill")),
]


def write(path: Path, *episodes) -> Path:
    names = tuple(f"log {i}" for i in range(len(episodes)))
    write_npz(Dataset("made", path, names, lambda i: episodes[i]), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with everything that the table names."""
    here = tmp_path_factory.mktemp("place")
    valves, carts = [valve_log(seed) for seed in range(4)], [spring_log(seed) for seed in range(4)]
    valve, cart = write(here / "valve.npz", *valves), write(here / "cart.npz", *carts)
    run_fit(FitCommand(valve, out=here / "valve.vhydro", modes=1, refine=False))
    run_fit(FitCommand(cart, out=here / "cart.vhydro", modes=1, refine=False))
    # Logs that are none, or not enough.
    (here / "notes.txt").write_text("what I did on Monday\n")
    shutil.copy(here / "notes.txt", here / "text.npz")
    shutil.copy(here / "notes.txt", here / "taken.vhydro")
    (here / "nothing.csv").touch()
    (here / "empty").mkdir()
    (here / "papers").mkdir()
    for name in ("thesis.txt", "cv.txt"):
        shutil.copy(here / "notes.txt", here / "papers" / name)
    whole = sample("PokeCube").path.read_bytes()
    (here / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (here / "one_row.csv").write_text("t,x,u\n0,1,2\n")
    (here / "hostile.csv").write_text("t,\x1b[31mevil\u202e,u\n" + "".join(f"{i / 10},{i % 7},0\n" for i in range(40)))
    one = valves[0]
    write(here / "short.npz", replace(one, observations=one.observations[:9], actions=one.actions[:8], labels={}))
    write(here / "dark.npz", *(replace(v, observations=np.full_like(v.observations, np.nan)) for v in valves))
    write(here / "still.npz", *(replace(v, observations=np.ones_like(v.observations)) for v in valves))
    write(here / "rates.npz", *valves[:2], *(replace(v, dt=0.2) for v in valves[2:]))
    write(here / "slow.npz", replace(one, dt=0.2))
    write(here / "fast.npz", replace(one, dt=0.05))
    write(here / "blind.npz", one, replace(one, observations=np.full_like(one.observations, np.nan)))
    (here / "kinds").mkdir()
    shutil.copy(valve, here / "kinds" / "valve.npz")
    other = replace(one, channels=(Channel("else"), *one.channels[1:]))
    write(here / "kinds" / "other.npz", other)
    convert(here / "valve.npz", "lerobot", here / "robot")
    shutil.copytree(here / "robot", here / "headless")
    shutil.rmtree(here / "headless" / "meta")
    # Mappings and tasks.
    (here / "odd.json").write_text(json.dumps({"chanels": ["flow"]}))
    (here / "other.json").write_text(json.dumps({"channels": ["pressur"]}))
    (here / "task.py").write_text(TASK)
    (here / "three.py").write_text("task = 3")
    (here / "broken.py").write_text("1 / 0")
    # Models that are none, or of another time.
    fitted = load(here / "valve.vhydro")
    save(here / "bare.vhydro", model=fitted.model)
    save(here / "future.vhydro", notes={"fitted": 99}, model=fitted.model)
    model = (here / "valve.vhydro").read_bytes()
    (here / "cut.vhydro").write_bytes(model[: len(model) // 2])
    (here / "half").mkdir()
    (here / "half" / "summary.json").write_text("{}")
    return here


def held(folder: Path) -> dict[str, str]:
    """Everything in a folder, and what it holds."""
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*")}
    return {name: sha256(p.read_bytes()).hexdigest() if p.is_file() else "" for name, p in sorted(files.items())}


def refused(status: int, expected: int, error: str, told) -> None:
    """Checks that an answer is short, says what is told, and shows nothing of the program's insides."""
    assert status == expected, error
    assert 1 <= error.count("\n") <= 2
    assert "Traceback" not in error
    assert "Errno" not in error
    assert error.replace("\n", "").isprintable()
    for words in told:
        assert words in error


@pytest.mark.parametrize("case", CASES, ids=[case.typed for case in CASES])
def test_a_wrong_use_is_answered(case, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = held(place)
    status, out, error = outcome(case.typed.split(" "), capsys)
    refused(status, case.status, error, case.told)
    assert out == ""
    assert held(place) == before


def test_the_table_is_long_and_names_each_once():
    assert len(CASES) >= 40
    assert len({case.typed for case in CASES}) == len(CASES)


# --- what no command line shows -------------------------------------------------------------------------------------


@contextmanager
def full_disk(size: int = 64):
    """No file can be longer than this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "typed",
    [
        "data convert valve.npz --out full",
        "data convert valve.npz --to lerobot --out full",
        "data inspect valve.npz --write full",
        "filter valve.vhydro valve.npz --out full",
        "segment valve.vhydro valve.npz --out full",
        "segment valve.vhydro valve.npz --to lerobot --out full",
        "laws cart.vhydro cart.npz --out full",
    ],
)
def test_a_full_disk_is_told_and_leaves_nothing(typed, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = held(place)
    assert outcome(typed.split(" "), capsys)[0] == 0  # it is the disk alone that is in the way
    full = place / "full"
    shutil.rmtree(full) if full.is_dir() else full.unlink()
    with full_disk():
        status, _, error = outcome(typed.split(" "), capsys)
    refused(status, 1, error, ("File too large", "--out"))
    assert held(place) == before


def test_a_model_that_does_not_fit_on_the_disk_leaves_the_old_one(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = held(place)
    with full_disk():
        status, _, error = outcome(["fit", "valve.npz", "--modes", "1", "--no-refine", "--out", "valve.vhydro"], capsys)
    refused(status, 1, error, ("File too large", "--out"))
    assert held(place) == before


def test_two_runs_do_not_write_one_file(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    with locked(Path(".m.vhydro.vhydro.lock"), Path("m.vhydro")):
        status, _, error = outcome(["fit", "valve.npz", "--out", "m.vhydro"], capsys)
    refused(status, 1, error, ("m.vhydro is being written by", "Wait for it, or give another --out"))


def test_an_interrupted_run_leaves_nothing(place):
    before = held(place)
    words = [sys.executable, "-m", "vhydro", "fit", "valve.npz", "--out", "m.vhydro"]
    before_us = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its jobs ignore it
    run = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (place / ".m.vhydro.vhydro.lock").exists() and time.monotonic() < until:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before_us)
    out, error = run.communicate(timeout=60)
    assert (run.returncode, out, error) == (INTERRUPTED, "", "vhydro: stopped.\n")
    assert held(place) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only(place, tmp_path, capsys):
    tmp_path.chmod(0o500)
    status, _, error = outcome(["fit", str(place / "valve.npz"), "--out", str(tmp_path / "m.vhydro")], capsys)
    refused(status, 1, error, ("cannot be written (Permission denied)", "expected a place of your own"))


def test_a_reading_of_another_size_is_named(place):
    """In a control loop: the stream says which values it expects."""
    stream = load(place / "valve.vhydro").stream()
    with pytest.raises(ValueError, match=r"has the shape \(3,\); expected \(2,\), a value each of pressure, flow"):
        stream.start([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"the observation has flaw; expected some of pressure, flow"):
        stream.start({"flaw": 1.0})


def test_a_sample_that_is_not_shipped_is_named():
    with pytest.raises(ValueError, match=r"no sample of 'pushcube'; expected one of .* Did you mean PushCube\?"):
        sample("pushcube")
    with pytest.raises(ValueError, match=r"there is no sample of 'kitchen'"):
        sample("kitchen")


def test_python_has_the_same_answers(place):
    """What the command line says of logs is what the library raises."""
    with pytest.raises(ValueError, match="none is at 7 Hz|no episode of .* is at 7 Hz"):
        read(place / "rates.npz", only_rate=7)
    assert len(read(place / "rates.npz", only_rate=5)) == 2
