"""How far work has come, told to whoever listens.

Work says `for log in counted(logs, "filtering"): …` or `tell("refining", 50, 150)`. Nobody hears it, and nothing is
printed, unless it was called inside `with heard(listener): …`; the command line listens with `on_terminal()`.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

SILENT = 1.0  # seconds of work before a bar appears: what is quicker needs none

Item = TypeVar("Item")
# Called with what is being done, how many parts of it are done, and how many there are; None: nobody knows.
Listener = Callable[[str, int, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard(listener: Listener | None) -> Iterator[None]:
    """Inside the block `listener` hears how far work has come; None: nobody does."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, done: int = 0, total: int | None = None) -> None:
    """Says how far work has come, to whoever listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def quiet() -> None:
    """Takes a bar away: work is done, and something is about to be printed."""
    tell("")


def counted(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a word to whoever listens before the first and after every one."""
    count = len(items) if total is None and isinstance(items, Sized) else total
    tell(what, 0, count)
    for done, item in enumerate(items, 1):
        yield item
        tell(what, done, count)


@contextmanager
def on_terminal(*, wanted: bool | None = None) -> Iterator[None]:
    """Inside the block progress is a bar on stderr with the time left, where stderr is a terminal; then it is gone.

    `wanted` settles it without looking at stderr.
    """
    if _listener.get() is not None or not (sys.stderr.isatty() if wanted is None else wanted):
        yield
        return
    bar = Bar()
    try:
        with heard(bar):
            yield
    finally:
        bar.close()


class Bar:
    """A line on stderr that says what is being done, how far it is and how long it will take."""

    def __init__(self, silent: float | int = SILENT):
        self._lock, self._due = threading.Lock(), False
        self._bar, self._task, self._what = bar_of_work(), None, ""
        self._timer = threading.Timer(silent, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        with self._lock:
            if what != self._what or self._task is None:  # a stage of its own: the speed of the last one is not its
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task, self._what = self._bar.add_task(what, total=total, completed=done, begun=done), what
            else:
                self._bar.update(self._task, completed=done, total=total)
            self._show()

    def _appear(self) -> None:
        with self._lock:
            self._due = True
            self._show()

    def _show(self) -> None:
        if not self._what:
            self._bar.stop()
        elif self._due:
            self._bar.start()

    def close(self) -> None:
        """Nothing is shown any more."""
        self._timer.cancel()
        with self._lock:
            self._due = False
            self._bar.stop()


def bar_of_work() -> "Progress":
    """The bar that all verbs show: what is done, how far it is, how long it took and how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Times(ProgressColumn):
        """How many parts are done of how many, the time that went by and, once a part is done, the time left."""

        def render(self, task: Task) -> Text:
            return Text(_times(int(task.completed), task.total, task.elapsed or 0.0, task.fields["begun"]))

    # Where both are one terminal, what is printed goes above the bar; elsewhere the output is nobody's business here.
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), Times(), console=Console(stderr=True),
        transient=True, redirect_stdout=sys.stdout.isatty(),
    )  # fmt: skip


def _times(done: int, total: float | int | None, seconds: float | int, begun: int = 0) -> str:
    """Of work that was taken up where `begun` parts were done already."""
    if not total:
        return _clock(seconds)
    left = f", {_clock(seconds * (total - done) / (done - begun))} left" if begun < done < total else ""
    return f"{done}/{total:g}, {_clock(seconds)}{left}"


def _clock(seconds: float | int) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
