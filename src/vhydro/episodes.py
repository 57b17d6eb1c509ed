"""Episodes: what a robot logged, and how many of them become one array."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vhydro.printable import printable


@dataclass(frozen=True)
class Channel:
    """One observed or commanded quantity: its name, the group it is hidden with, and its unit.

    Names are `body.quantity`. Groups of robot logs: `object`, `end_effector`, `gripper`, `joints`, `scene`.
    """

    name: str
    group: str = "object"
    unit: str = ""

    def __post_init__(self):
        if not (self.name + self.group + self.unit).isprintable():
            for field_name in ("name", "group", "unit"):
                object.__setattr__(self, field_name, printable(getattr(self, field_name)))


@dataclass(frozen=True)
class Contact:
    """The force between two bodies in newtons, a row for each observation: row t is of the step that led to it.

    A step has many substeps. `peak` is the largest force in it; `normal` and `tangential` are taken together, at the
    end of the step or as its mean, so that their ratio means something. Row 0, before the first action, is 0.
    """

    bodies: tuple[str, str]
    peak: np.ndarray  # (steps + 1,)
    normal: np.ndarray  # (steps + 1,)
    tangential: np.ndarray | None = None  # where the simulator tells it

    def __post_init__(self):
        first, second = self.bodies
        object.__setattr__(self, "bodies", (printable(first), printable(second)))

    @property
    def name(self) -> str:
        return "__".join(self.bodies)


@dataclass(frozen=True)
class Episode:
    """One log. `observations[0]` precedes the first action; NaN in an observation means hidden."""

    observations: np.ndarray  # (steps + 1, channels)
    actions: np.ndarray  # (steps, inputs)
    dt: float
    channels: tuple[Channel, ...]
    inputs: tuple[Channel, ...] = ()  # names of the actions; a0, a1, … if not given
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)  # each (steps + 1,), never seen by training
    contacts: tuple[Contact, ...] = ()  # never seen by training either
    info: Mapping[str, str | float | bool] = field(default_factory=dict)  # task, seed, success, …
    source: str = ""

    def __post_init__(self):
        self._make_printable()
        where = f" in {self.source}" if self.source else ""
        obs, act = np.asarray(self.observations), np.asarray(self.actions)
        if obs.ndim != 2 or obs.shape[0] < 1 or obs.shape[1] < 1:
            raise ValueError(
                f"observations{where} have shape {obs.shape}; expected (steps + 1, channels) with at least one "
                "row and one channel. Drop empty episodes before building a dataset."
            )
        if act.ndim != 2 or act.shape[0] != obs.shape[0] - 1:
            raise ValueError(
                f"actions{where} have shape {act.shape}; expected ({obs.shape[0] - 1}, inputs): one action "
                f"between each two of the {obs.shape[0]} observations. Without inputs pass an array of width 0."
            )
        if len(self.channels) != obs.shape[1]:
            raise ValueError(
                f"{len(self.channels)} channel names{where} for {obs.shape[1]} observed columns; name every column."
            )
        names = [c.name for c in self.channels]
        if len(set(names)) != len(names):
            twice = sorted(n for n, count in Counter(names).items() if count > 1)
            raise ValueError(f"channel names{where} repeat: {twice[:12]}")
        refuse_infinite(obs, f"observations{where}", names)
        if not np.isfinite(act).all():
            step, column = np.argwhere(~np.isfinite(act))[0]
            raise ValueError(
                f"actions{where} hold {act[step, column]} at step {step}, column {column}; every action must be "
                "finite (only observations can be hidden). Fill it with the command that was really applied."
            )
        refuse_bad_dt(self.dt)
        if not self.inputs:
            named = tuple(Channel(f"a{i}", "action") for i in range(act.shape[1]))
            object.__setattr__(self, "inputs", named)
        if len(self.inputs) != act.shape[1]:
            raise ValueError(
                f"{len(self.inputs)} input names{where} for {act.shape[1]} action columns; name every one."
            )
        rows = [(f"label '{name}'", values) for name, values in self.labels.items()]
        rows += [(f"contact '{c.name}'", x) for c in self.contacts for x in (c.peak, c.normal, c.tangential)]
        for what, values in rows:
            if values is not None and np.shape(values) != obs.shape[:1]:
                found = f"{len(values)} rows" if np.ndim(values) == 1 else f"the shape {np.shape(values)}"
                raise ValueError(f"{what}{where} has {found}; expected {obs.shape[0]}, one for each observation.")

    def _make_printable(self) -> None:
        """Replaces text from a file that could steer what shows it."""
        if not self.source.isprintable():
            object.__setattr__(self, "source", printable(self.source))
        if not all(k.isprintable() and printable_label(v) is v for k, v in self.labels.items()):
            object.__setattr__(self, "labels", {printable(k): printable_label(v) for k, v in self.labels.items()})
        if not all(x.isprintable() for item in self.info.items() for x in item if isinstance(x, str)):
            shown = {printable(k): printable(v) if isinstance(v, str) else v for k, v in self.info.items()}
            object.__setattr__(self, "info", shown)

    def __repr__(self) -> str:
        rows, width = self.observations.shape
        where = f", {self.source}" if self.source else ""
        return f"Episode({rows} rows of {width} channels, {len(self.inputs)} inputs, dt {self.dt:g} s{where})"

    @property
    def steps(self) -> int:
        return self.actions.shape[0]

    @property
    def observed(self) -> np.ndarray:
        return ~np.isnan(self.observations)

    def columns(
        self, *, group: str | None = None, body: str | None = None, quantities: Sequence[str] = ()
    ) -> list[int]:
        """The columns of a group, of a body, or of some of its quantities, in the order of the channels."""
        parts = [(c.group, *c.name.rpartition(".")[::2]) for c in self.channels]
        return [
            i
            for i, (g, b, q) in enumerate(parts)
            if group in (None, g) and body in (None, b) and (not quantities or q in quantities)
        ]

    def unlabelled(self) -> "Episode":
        """This episode as a method may see it: without labels and without contact forces."""
        return replace(self, labels={}, contacts=())

    def select(self, names: Sequence[str]) -> "Episode":
        """This episode with only the named channels, in the order given."""
        names = [names] if isinstance(names, str) else names
        mine = [c.name for c in self.channels]
        unknown = [n for n in names if n not in mine]
        if unknown:
            raise ValueError(f"unknown channel {unknown}; this episode has {mine}. Check the spelling.")
        columns = [mine.index(n) for n in names]
        return replace(
            self,
            observations=self.observations[:, columns],
            channels=tuple(self.channels[c] for c in columns),
        )


def printable_label(values: np.ndarray) -> np.ndarray:
    """A label whose values, where they are text, can be shown."""
    if getattr(values, "dtype", np.dtype(float)).kind != "U":
        return values
    names, places = np.unique(values, return_inverse=True)
    shown = [printable(str(name)) for name in names]
    return values if shown == names.tolist() else np.array(shown)[places].reshape(values.shape)


def refuse_infinite(values: np.ndarray, what: str, names: Sequence[str]) -> None:
    """Raises if a value is infinite: NaN means hidden, infinity means nothing."""
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise ValueError(
            f"{what} hold {values[row, column]} at row {row}, channel '{names[column]}'; expected finite "
            "numbers, or NaN where the value was hidden. Replace infinities with NaN."
        )


def refuse_bad_dt(dt: float) -> None:
    if not np.isfinite(dt) or dt <= 0:
        raise ValueError(f"dt is {dt}; expected the positive time between two observations, in seconds.")


def episode(
    observations,
    actions=None,
    *,
    dt: float,
    channels: Sequence[str | Channel] | None = None,
    inputs: Sequence[str | Channel] = (),
    labels: Mapping[str, np.ndarray] | None = None,
    source: str = "",
) -> Episode:
    """An `Episode` from plain arrays; without actions it has no inputs, without names `y0, y1, …`."""
    obs = np.asarray(observations)
    if obs.ndim == 1:
        obs = obs[:, None]
    if not np.issubdtype(obs.dtype, np.floating):
        obs = obs.astype(np.float64)
    steps = max(len(obs) - 1, 0) if obs.ndim else 0
    act = np.zeros((steps, 0)) if actions is None else np.asarray(actions, dtype=np.float64)
    if act.ndim == 1:
        act = act[:, None]
    width = obs.shape[1] if obs.ndim == 2 else 0
    named = channels if channels is not None else [f"y{i}" for i in range(width)]
    return Episode(
        observations=obs,
        actions=act,
        dt=dt,
        channels=tuple(c if isinstance(c, Channel) else Channel(c) for c in named),
        inputs=tuple(c if isinstance(c, Channel) else Channel(c, "action") for c in inputs),
        labels=dict(labels or {}),
        source=source,
    )


class Batch(NamedTuple):
    """Episodes of any length as arrays; hidden values are 0 with `observed` False, padding has `valid` False."""

    observations: Float[Array, "*episodes times channels"]
    observed: Bool[Array, "*episodes times channels"]
    actions: Float[Array, "*episodes times inputs"]  # row t leads TO observation t; row 0 is never used
    valid: Bool[Array, "*episodes times"]
    dt: Float[Array, "*episodes"]


def pad(episodes: Sequence[Episode], *, dtype=None, length: int | None = None) -> Batch:
    """The episodes as one `Batch`, padded at the end to the longest (or to `length` rows)."""
    if not episodes:
        raise ValueError("no episodes given; expected at least one. Give some.")
    first = episodes[0]
    for e in episodes[1:]:
        if e.channels != first.channels or e.actions.shape[1] != first.actions.shape[1]:
            raise ValueError(
                f"episodes differ in their channels: {[c.name for c in e.channels]} with {e.actions.shape[1]} inputs "
                f"beside {[c.name for c in first.channels]} with {first.actions.shape[1]}. Use `Episode.select` first."
            )
    rows = max(e.steps + 1 for e in episodes)
    if length is not None and length < rows:
        raise ValueError(f"length is {length}; the longest episode has {rows} rows. Give at least that.")
    rows = length or rows
    dtype = jax.dtypes.canonicalize_dtype(dtype or np.float64)
    shape = (len(episodes), rows)
    observations = np.zeros((*shape, len(first.channels)), dtype)
    observed = np.zeros(observations.shape, bool)
    actions = np.zeros((*shape, first.actions.shape[1]), dtype)
    valid = np.zeros(shape, bool)
    for i, e in enumerate(episodes):
        n = e.steps + 1
        observed[i, :n] = e.observed
        observations[i, :n] = np.where(e.observed, e.observations, 0)
        actions[i, 1:n] = e.actions
        valid[i, :n] = True
    dt = np.array([e.dt for e in episodes], dtype)
    return Batch(*(jnp.asarray(x) for x in (observations, observed, actions, valid, dt)))
