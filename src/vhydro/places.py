"""Where work is done that has many parts: in this process, in processes of its own, on a Ray cluster or by Slurm.

Each place takes a question (a function of a part's key) and the keys, and gives `(position, Answer)` as they come.
"""

import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

RETRIES = 3  # computations of a part whose worker died
# Set before a worker starts: as many workers as cores use each core once, and sums are taken in one order everywhere.
# XLA sizes its pool by NPROC; its LAPACK calls go to the BLAS of scipy.
POOLS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Answer(NamedTuple):
    """What became of a part: its records or, in words, why there are none."""

    records: list[dict] | None
    error: str
    device: str


Question = Callable[[dict], Answer]
Answers = Generator[tuple[int, Answer], None, None]
Item = tuple[int, dict]


def answer(work: Callable[[dict, dict], list[dict]], config: dict, key: dict) -> Answer:
    """The records of one part; an exception as words, which every process can read."""
    try:
        return Answer(work(key, config), "", device())
    except Exception:
        return Answer(None, traceback.format_exc(), "")


def device() -> str:
    """What this process computes on: JAX's device where it was used, and the number of cores."""
    jax = sys.modules.get("jax")
    kind = jax.devices()[0].device_kind if jax else platform.machine()
    return f"{kind}, {os.cpu_count()} cores"


SHARING = 8  # processes on one accelerator: while some trace and compile, the others compute


def answers(
    question: Question,
    keys: Sequence[dict],
    *,
    on: str = "local",
    workers: int | None = None,
    address: str | None = None,
) -> Answers:
    """The answers to all keys, as they come from where they are computed.

    `on` is local, ray or slurm. `workers` is the number of processes, 0 this one; by default one per core, and at most
    eight on an accelerator; of Slurm, the number of jobs. `address` is that of a Ray cluster, or Slurm's partition.
    """
    if workers is not None and workers < 0:
        raise ValueError(f"workers is {workers}; expected 0 (this process) or a number of processes. Leave it out.")
    if on == "ray":
        return on_ray(question, keys, address)
    if on == "slurm":
        return on_slurm(question, keys, workers, address)
    if on != "local" or address is not None:
        raise ValueError(
            f"on is {on!r} and address {address!r}; expected 'local', or 'ray' or 'slurm' with an address."
        )
    count = suitable_workers() if workers is None else workers
    return in_processes(question, keys, count) if count else in_this_process(question, keys)


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
    """The answer of a worker that computes nothing else, so that its death is this part's doing."""
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


JOBS = 8  # of Slurm, where their number is not given
POLL = 0.5  # seconds between two looks at Slurm's jobs


def on_slurm(
    question: Question, keys: Sequence[dict], jobs: int | None, partition: str | None, *, cluster: str | None = None
) -> Answers:
    """The answers of Slurm jobs, each of which takes every n-th key; what a job that died left out goes to a new one.

    `cluster` is what submitit calls it: "local" runs the jobs as processes here.
    """
    submitit = _submitit()
    # Below the folder that the command was started in, where the jobs find it: the system's is each machine's own.
    files = tempfile.TemporaryDirectory(prefix="vhydro-slurm-", dir=Path.cwd())
    with files as folder, _environment(_one_thread()):
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        given = {"slurm_partition": partition} if partition else {}
        executor.update_parameters(name="vhydro", timeout_min=24 * 60, **given)
        count = min(jobs or JOBS, len(keys)) or 1
        items = list(enumerate(keys))
        waiting = {executor.submit(_asked_all, question, items[i::count]): (items[i::count], 0) for i in range(count)}
        try:
            while waiting:
                done = [job for job in waiting if job.done()]
                for job in done:
                    mine, tries = waiting.pop(job)
                    given_up = yield from _job_answers(job, mine, tries)
                    if given_up:
                        waiting[executor.submit(_asked_all, question, given_up)] = given_up, tries + 1
                if not done:
                    time.sleep(POLL)
        finally:
            for job in waiting:
                job.cancel()


def _job_answers(job: Any, mine: list[Item], tries: int) -> Generator[Any, None, list[Item]]:
    """Gives the answers of a job that has ended; returns what has to be asked again because it died."""
    try:
        yield from job.result()
    except Exception as error:  # submitit says in many ways that a job is gone
        if tries < RETRIES:
            return mine
        for position, _ in mine:
            yield position, Answer(None, f"its job died {tries + 1} times: {error}", "")
    return []


def _asked_all(question: Question, items: list[Item]) -> list[tuple[int, Answer]]:
    return [(position, question(key)) for position, key in items]


def _submitit() -> Any:
    try:
        return import_module("submitit")
    except ImportError as error:
        raise ValueError(
            "submitit is not installed, which --on slurm needs. Run: pip install 'vhydro[slurm]'"
        ) from error
