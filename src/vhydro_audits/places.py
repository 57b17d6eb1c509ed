"""Where groups of cells are computed: in this process, in processes of its own, or on a Ray cluster.

Each place takes a question (a function of a group's key) and the keys, and gives `(position, Answer)` as they come.
"""

import multiprocessing
import os
import platform
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from vhydro_audits.store import as_json

RETRIES = 3  # computations of a group whose worker died
# Set before a worker starts: as many workers as cores use each core once, and sums are taken in one order everywhere.
# XLA sizes its pool by NPROC; its LAPACK calls go to the BLAS of scipy.
POOLS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Answer(NamedTuple):
    """What became of a group: its records or, in words, why there are none."""

    records: list[dict] | None
    error: str
    device: str


Question = Callable[[dict], Answer]
Answers = Generator[tuple[int, Answer], None, None]
Item = tuple[int, dict]


def answer(work: Callable[[dict, dict], list[dict]], config: dict, key: dict) -> Answer:
    """The records of one group as JSON has them; an exception as words, which every process can read."""
    try:
        return Answer(as_json(work(key, config)), "", _device())
    except Exception:
        return Answer(None, traceback.format_exc(), "")


def _device() -> str:
    """What this process computes on: JAX's device where it was used, and the number of cores."""
    jax = sys.modules.get("jax")
    kind = jax.devices()[0].device_kind if jax else platform.machine()
    return f"{kind}, {os.cpu_count()} cores"


SHARING = 8  # processes on one accelerator: while some trace and compile, the others compute


def suitable_workers() -> int:
    """One worker per core, and no more than can share an accelerator where there is one."""
    # A process that only hands out work must not keep the accelerator's memory from those that do it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    cores = os.cpu_count() or 1
    return cores if jax.default_backend() == "cpu" else min(cores, SHARING)


def in_this_process(question: Question, keys: Sequence[dict]) -> Answers:
    """The answers, one after the other."""
    for position, key in enumerate(keys):
        yield position, question(key)


def in_processes(question: Question, keys: Sequence[dict], workers: int) -> Answers:
    """The answers of new processes; what was being computed when one died is computed again, each by itself."""
    waiting = deque(enumerate(keys))
    with _environment(_one_thread()):
        while waiting:
            suspects = yield from _until_a_death(question, waiting, workers)
            for position, key in suspects:
                yield position, _alone(question, key)


def _until_a_death(question: Question, waiting: deque[Item], workers: int) -> Generator[Any, None, list[Item]]:
    """Takes from `waiting` and gives answers until a worker dies; returns what was being computed then."""
    running: dict[Future, Item] = {}
    with _pool(min(workers, len(waiting))) as pool, suppress(BrokenProcessPool):
        while waiting or running:
            while waiting and len(running) < workers:
                future = pool.submit(question, waiting[0][1])
                running[future] = waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: f.exception() is not None):
                answered = future.result()
                yield running.pop(future)[0], answered
    return list(running.values())


def _alone(question: Question, key: dict) -> Answer:
    """The answer of a worker that computes nothing else, so that its death is this group's doing."""
    for _ in range(RETRIES):
        with _pool(1) as pool, suppress(BrokenProcessPool):
            return pool.submit(question, key).result()
    reason = f"its worker died {RETRIES + 1} times without a word; out of memory? Use fewer --workers."
    return Answer(None, reason, "")


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes started afresh, since JAX does not survive a fork; they end when the block or this process does."""
    lifeline, held = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_live_by, initargs=(lifeline,))
    try:
        yield pool
    except BaseException:
        held.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()
        lifeline.close()


def _live_by(lifeline: Connection) -> None:
    """Ends this worker when the other end of the line closes; otherwise workers of a killed run would never end.

    An interrupt reaches the whole terminal, but what it means is decided by the process that started the workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _one_thread() -> dict[str, str]:
    """The environment of a worker: one thread, and no more of an accelerator's memory than it needs."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return {**dict.fromkeys(POOLS, "1"), "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables inside the block, for the processes that are started there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def on_ray(question: Question, keys: Sequence[dict], address: str | None) -> Answers:
    """The answers of a Ray cluster, an embedded one where no address is given; lost workers are replaced by Ray."""
    ray = _ray()
    ray.init(
        address=address or "local", runtime_env={"env_vars": _one_thread()}, log_to_driver=False, logging_level="ERROR"
    )
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(max_retries=RETRIES, num_gpus=gpus)(_asked)
        running = {task.remote(question, key): position for position, key in enumerate(keys)}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(ready), _arrived(ray, ready)
    finally:
        ray.shutdown()


def _asked(question: Question, key: dict) -> Answer:
    return question(key)


def _arrived(ray: Any, reference: Any) -> Answer:
    """The answer behind a Ray reference; where Ray gave up, what it says."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return Answer(None, f"Ray gave it up: {error}", "")


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise ValueError("Ray is not installed, which --on ray needs. Run: pip install 'vhydro[ray]'") from error
