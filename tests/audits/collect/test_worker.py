"""Finding a simulator's interpreter, and listening to a real worker process."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from vhydro_audits.collect.worker import interpreter, run_worker

VARIABLE, FOLDER, REMEDY = "VHYDRO_TEST_PYTHON", ".venv-test", "Run `make test-simulator`."
ABSENT = "a_module_nobody_has"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """An empty working directory, with nothing named by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def environment_with(module: str, folder: Path) -> Path:
    """The interpreter of a virtual environment that can import `module`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / f"{module}.py").touch()
    return folder / "bin" / "python"


def test_the_running_interpreter_serves_when_it_has_the_module(elsewhere):
    assert interpreter(None, VARIABLE, FOLDER, "numpy", REMEDY) == Path(sys.executable)


def test_nothing_found_says_where_it_was_sought_and_what_to_do(elsewhere):
    with pytest.raises(ValueError) as error:
        interpreter(None, VARIABLE, FOLDER, ABSENT, REMEDY)
    assert all(words in str(error.value) for words in (ABSENT, FOLDER, VARIABLE, REMEDY))


def test_a_folder_is_found_here_and_from_below(elsewhere, monkeypatch):
    python = environment_with(ABSENT, elsewhere / FOLDER)
    assert interpreter(None, VARIABLE, FOLDER, ABSENT, REMEDY) == python
    (elsewhere / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(elsewhere / "deep" / "down")
    assert interpreter(None, VARIABLE, FOLDER, ABSENT, REMEDY) == python


def test_explicit_comes_before_the_variable_and_the_variable_before_the_folder(elsewhere, monkeypatch):
    folder, other = (environment_with(ABSENT, elsewhere / name) for name in (FOLDER, "other"))
    monkeypatch.setenv(VARIABLE, str(elsewhere / "other"))  # a virtual environment does as well as its interpreter
    assert interpreter(None, VARIABLE, FOLDER, ABSENT, REMEDY) == other
    assert interpreter(folder, VARIABLE, FOLDER, ABSENT, REMEDY) == folder


def test_an_interpreter_without_the_module_is_refused(elsewhere):
    with pytest.raises(ValueError, match=rf"--python gives .*cannot import '{ABSENT}'. {REMEDY}"):
        interpreter(sys.executable, VARIABLE, FOLDER, ABSENT, REMEDY)


def test_a_path_that_does_not_run_is_refused(elsewhere, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(elsewhere / "nowhere"))
    with pytest.raises(ValueError, match=f"{VARIABLE} gives .*nowhere.*does not run.*{REMEDY}"):
        interpreter(None, VARIABLE, FOLDER, "numpy", REMEDY)


@pytest.fixture
def worker(tmp_path):
    """Runs lines of Python as a worker; gives back its `done` record and all events."""

    def run(source: str, *arguments: str, on_event=None) -> tuple[dict, list[dict]]:
        script = tmp_path / "worker.py"
        script.write_text("import json, os, signal, sys, time\n" + textwrap.dedent(source))
        events: list[dict] = []

        def listen(event) -> None:
            events.append(event)
            if on_event is not None:
                on_event(event)

        return run_worker(Path(sys.executable), script, arguments, listen), events

    return run


def test_events_come_in_order_and_the_last_is_returned(worker):
    done, events = worker(
        """
        for i in range(3):
            print(json.dumps({"event": "episode", "episode": i}))
        print(json.dumps({"event": "done", "word": sys.argv[1]}))
        """,
        "grün",
    )
    assert done == {"event": "done", "word": "grün"}
    assert [e.get("episode") for e in events] == [0, 1, 2, None]


def test_events_come_while_the_worker_runs(worker, tmp_path):
    seen = tmp_path / "seen"
    done, _ = worker(
        """
        print(json.dumps({"event": "attempt"}))
        until = time.monotonic() + 20
        while not os.path.exists(sys.argv[1]) and time.monotonic() < until:
            time.sleep(0.01)
        print(json.dumps({"event": "done", "answered": os.path.exists(sys.argv[1])}))
        """,
        str(seen),
        on_event=lambda event: seen.touch() if event["event"] == "attempt" else None,
    )
    assert done["answered"]


def test_garbage_between_events_is_passed_over(worker):
    done, events = worker(
        r"""
        print("Loading …"); print("[1, 2]"); print('{"event": "weather"}'); print('{"event": ["done"]}')
        sys.stdout.buffer.write(b"\xff\xfe\x00\n" + b"x" * 300_000 + b"\n"); sys.stdout.flush()
        print(json.dumps({"event": "done"}))
        print("bye " * 100_000)
        """
    )
    assert done == {"event": "done"}
    assert len(events) == 1


def test_much_talk_on_stderr_does_not_block(worker):
    done, _ = worker("""sys.stderr.write("x" * 1_000_000); print(json.dumps({"event": "done"}))""")
    assert done == {"event": "done"}


def test_a_crash_gives_its_last_words(worker):
    with pytest.raises(ValueError, match="(?s)status 1.*ZeroDivisionError") as error:
        worker("""print(json.dumps({"event": "attempt"})); print("half way"); 1 / 0""")
    assert "half way" in str(error.value)
    assert len(str(error.value).splitlines()) < 20


def test_an_error_event_is_the_message(worker):
    with pytest.raises(ValueError, match=r"^no cube in sight\.$"):
        worker("""print(json.dumps({"event": "error", "message": "no cube in sight."})); sys.exit(3)""")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("pass", "ended before it was done. It said nothing."),
        ("""print(json.dumps({"event": "done"})); sys.exit(4)""", "status 4"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_an_end_that_is_none_is_an_error(worker, source, words):
    with pytest.raises(ValueError) as error:
        worker(source)
    assert words in str(error.value)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


SLEEPER = """
        print(json.dumps({"event": "attempt", "process": os.getpid()}))
        time.sleep(60)
        """


def test_an_exception_while_listening_stops_the_worker(worker):
    processes = []

    def fail(event) -> None:
        processes.append(event["process"])
        raise RuntimeError("the screen is gone")

    with pytest.raises(RuntimeError, match="the screen is gone"):
        worker(SLEEPER, on_event=fail)
    assert not alive(processes[0])


@pytest.fixture
def interrupt():
    """Interrupts the main thread, once. A signal that arrives just before a read blocks is lost on it: it is sent again
    until it was noticed, so that nothing depends on how busy the machine is."""
    noticed = threading.Event()

    def notice(*_) -> None:
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def send() -> None:
        while not noticed.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, notice)
    sender = threading.Thread(target=send, daemon=True)
    yield sender.start
    noticed.set()
    if sender.ident is not None:
        sender.join()
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_stops_the_worker_even_if_it_does_not_listen(worker, interrupt, monkeypatch):
    monkeypatch.setattr("vhydro_audits.collect.worker.PATIENCE", 0.2)
    processes = []

    def listen(event) -> None:
        processes.append(event["process"])
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        worker("signal.signal(signal.SIGTERM, signal.SIG_IGN)" + textwrap.dedent(SLEEPER), on_event=listen)
    assert not alive(processes[0])
