"""What a fit gives: one object that filters, streams, segments and explains logs, kept in one file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from vhydro.certificate import Gate
from vhydro.commanded import CommandedModel
from vhydro.emission import LinearEmission
from vhydro.episodes import Channel, Episode
from vhydro.filter import Belief, FilterSettings, Particles, Step, Stream, filter_alike, log_evidence
from vhydro.filter.exported import PLATFORMS, LoadedStream, read_stream
from vhydro.filter.merged import is_separate
from vhydro.filter.settings import as_record
from vhydro.intervals import intervals, reading_moments
from vhydro.laws.as_model import masses
from vhydro.laws.files import any_document, any_law_of
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Law
from vhydro.laws.mechanics import mechanics_laws
from vhydro.learning.coasting import Coasting, coasting_of
from vhydro.model import HybridModel
from vhydro.modes.readings import Readings, readings
from vhydro.modes.segments import Segment, segments_of
from vhydro.planning import (
    ContactDynamics,
    HybridDynamics,
    LawDynamics,
    Plan,
    Planner,
    Task,
    contact_dynamics,
    hybrid_dynamics,
    law_dynamics,
    mppi,
)
from vhydro.planning.present import Recent, body_readings, carried, hidden_as, present
from vhydro.printable import printable_json
from vhydro.proposal import ConditionedProposal, Proposal
from vhydro.smoother import PARTICLES, smooth_logs
from vhydro.storage import ModelFileError, is_model_file, save
from vhydro.storage import load as load_parts
from vhydro.units import si_unit
from vhydro.views import AnyView, BodyView, ContactView, MechanicsView, PlainView, as_json, view_from_json
from vhydro.views.contact import MACHINE, REMEMBERED
from vhydro.views.view import looked_up

FORMAT = 1  # of the notes of a fitted model's file
MODEL = "model.vhydro"  # the model's file in the folder of a run
SAME_STEP = 1e-3  # relative difference of time steps that are one


@dataclass(frozen=True)
class Fitted:
    """A fitted model with everything a log needs to go through it. Made by `vhydro.fit` or `vhydro.load`.

    Modes have the same numbers and `names` in everything it returns. It is of logs with time steps of `dt` seconds
    that have the raw `channels` and `inputs`. `report` says what the fit saw, chose and could not use.

    Where refinement sharpened the noise of `model`, to predict what is hidden, the model as it was is kept beside it,
    as `segmenter`: `filter` and `stream` predict with the first, `smooth` and all that reads modes tell them apart with
    the second. So refinement does not change contacts: a noise that is tight on the logs of a fit takes a clumsier
    policy for touch. Where bodies often move by themselves the segmenter has modes for that too, which `coasting` tells
    as those without.
    """

    view: AnyView
    model: HybridModel
    names: tuple[str, ...]
    dt: float
    channels: tuple[Channel, ...]  # of raw logs: what the view needs
    inputs: tuple[Channel, ...]
    guide: Proposal | None = field(default_factory=ConditionedProposal)
    settings: FilterSettings = field(default_factory=lambda: FilterSettings(particles=64))
    couples: Bool[np.ndarray, "modes things"] | None = None  # of a contact view: what goes with what drives it
    law: AnyLaw | None = None  # of a mechanics view: what the model is of
    commanded: CommandedModel | None = None  # of a contact view with hand commands: what plans are made on
    segmenter: HybridModel | None = None  # the model before it was refined: wide noise, which tells modes apart
    coasting: Coasting | None = None  # how the segmenter sees bodies that move by themselves
    report: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.report)

    def see(self, log: Episode) -> Episode:
        """The log as the model sees it; labels are left behind.

        A hand that is hidden for some rows is carried on by the servo model, where the fit has one.
        """
        if abs(log.dt - self.dt) > SAME_STEP * self.dt:
            raise ValueError(
                f"{log.source or 'the log'} has steps of {log.dt:g} s; expected {self.dt:g} s, as the logs that the "
                "model was fitted to: its modes are of what happens in one step. Fit a model to these logs, or say "
                f"their rate (--rate {1 / self.dt:g}) if they tell none."
            )
        seen = self._viewed(log.unlabelled())
        things = [
            i for i, c in enumerate(seen.channels) if not isinstance(self.view, ContactView) or c.group not in MACHINE
        ]
        if not seen.observed[:, things].any():
            raise ValueError(
                f"{log.source or 'the log'} hides every reading that the model explains; expected some, for there is "
                "nothing to tell anything by. Leave it out."
            )
        return seen

    def _viewed(self, log: Episode) -> Episode:
        if self.commanded is None or not isinstance(self.view, ContactView):
            return self.view(log)
        looked_up(self.view, log)  # refuses what it cannot read
        log = self._in_own_units(log)
        whole, _ = carried(self.commanded, self.view, log)
        seen = self.view(whole)
        return seen if whole is log else hidden_as(log, seen, self.view)

    @property
    def length_unit(self) -> float:
        """The unit of the hand's place in the logs, in metres; of a contact view."""
        assert isinstance(self.view, ContactView)
        unit = next(c.unit for c in self.channels if c.name == self.view.hand[0])
        return (si_unit(unit) or (1.0, ""))[0]

    def _in_own_units(self, log: Episode) -> Episode:
        """The log with every channel and input in the unit of the logs that the model was fitted to."""
        own = {c.name: c for c in (*self.channels, *self.inputs)}

        def as_own(channels: Sequence[Channel]) -> tuple[tuple[Channel, ...], np.ndarray]:
            told = [own.get(c.name, c) for c in channels]
            theirs, ours = (np.array([(si_unit(c.unit) or (1.0, ""))[0] for c in some]) for some in (channels, told))
            return tuple(told), theirs / ours

        (channels, by), (inputs, times) = as_own(log.channels), as_own(log.inputs)
        if (by == 1).all() and (times == 1).all():
            return log
        values, actions = log.observations * by, log.actions * times
        return replace(log, observations=values, actions=actions, channels=channels, inputs=inputs)

    def filter(self, log: Episode, *, seed: int = 0, **options: Any) -> Belief:
        """What is believed after every row, and what every step certifies; options are those of `FilterSettings`."""
        return self.filter_all([log], seed=seed, **options)[0]

    def filter_all(self, logs: Sequence[Episode], *, seed: int = 0, **options: Any) -> list[Belief]:
        """Every log as `filter` would, to rounding; logs of about one length go through one program together."""
        return self.filter_seen([self.see(log) for log in logs], seed=seed, **options)

    def filter_seen(self, seen: Sequence[Episode], *, seed: int = 0, **options: Any) -> list[Belief]:
        """The same of logs as `see` gives them, with more of them hidden, say."""
        settings = replace(self.settings, **options)
        return filter_alike(self.model, seen, key=_key(seed), proposal=self.guide, settings=settings)

    def smooth(self, log: Episode, *, seed: int = 0) -> Belief:
        """What the whole log says of every row: merged Gaussians where the model allows it, else particles."""
        return self.smooth_all([log], seed=seed)[0]

    def smooth_all(self, logs: Sequence[Episode], *, seed: int = 0) -> list[Belief]:
        """Every log as `smooth` would, to rounding; logs of about one length go through one program together."""
        settings = replace(self.settings, particles=PARTICLES, corrected=False)
        model, guide = (self.model, self.guide) if self.segmenter is None else (self.segmenter, ConditionedProposal())
        if is_separate(model):
            settings = replace(settings, engine="merged")
        seen, key = [self.see(log) for log in logs], jax.random.key(seed)
        if self.coasting is None:
            return smooth_logs(model, seen, key=key, proposal=guide, settings=settings)
        shown = [self.coasting.show(e) for e in seen]
        found = smooth_logs(model, shown, key=key, proposal=guide, settings=settings)
        return [self.coasting.told(b, self.model.modes) for b in found]

    def stream(self, *, dt: float | None = None, seed: int = 0, **options: Any) -> "FittedStream":
        """A running filter for a control loop, with the numbers that `filter` gives for the whole log."""
        if dt is not None and abs(dt - self.dt) > SAME_STEP * self.dt:
            raise ValueError(
                f"dt is {dt:g} s; expected {self.dt:g} s, the time step of the logs the model is of. Leave dt out."
            )
        settings = replace(self.settings, **options)
        stream = Stream(self.model, dt=self.dt, key=_key(seed), proposal=self.guide, settings=settings)
        return FittedStream(stream, self.view, self.names, self.channels, self.inputs, self.commanded)

    def segments(self, logs: Episode | Sequence[Episode], *, seed: int = 0) -> list[list[Segment]]:
        """The stretches of one mode each of every log, with how sure the model is of them."""
        every = [logs] if isinstance(logs, Episode) else list(logs)
        beliefs = self.smooth_all(every, seed=seed)
        return [segments_of(b.path, np.asarray(b.mode, np.float64)) for b in beliefs]

    def contacts(self, log: Episode, belief: Belief | None = None, *, seed: int = 0) -> Readings:
        """What the modes of a log say of contact: which bodies touch, whether any does, free, impact or sustained.

        `belief` is that of `smooth`, where there is one already. Of a contact view only.
        """
        if not isinstance(self.view, ContactView) or self.couples is None:
            raise ValueError(
                f"the model reads logs through the {self.view.kind} view, which knows no hand; expected a contact "
                f"view. Fit with one, such as {ContactView.example}."
            )
        belief = self.smooth(log, seed=seed) if belief is None else belief
        seen = self.see(log)
        mean = np.asarray(belief.mean, np.float64) * np.asarray(self.model.scale) + np.asarray(self.model.shift)
        places = mean[:, : 3 * len(self.view.bodies)].reshape(len(mean), -1, 3)  # the first coordinates are bodies
        emission = (self.segmenter or self.model).emission
        assert isinstance(emission, LinearEmission)
        noise = np.asarray(emission.channel_noise) * np.asarray(self.model.scale)
        return readings(np.asarray(belief.path), self.couples, self.view, seen, places, noise[2 : places[0].size : 3])

    def laws(self, logs: Episode | Sequence[Episode], *, estimator: str | None = None, seed: int = 0) -> AnyLaw:
        """The law of every mode, with constants and their intervals, found in these logs given the model's modes.

        `estimator` is `shooting`, `weak`, `lasso` or `lagrange` (inertia that couples or changes); that of the model's
        own law if not given.
        """
        if not isinstance(self.view, MechanicsView) or self.law is None:
            raise ValueError(
                f"the model reads logs through the {self.view.kind} view, which shows no forces; expected positions "
                "and forces, without which no mass can be told. Fit with a mechanics view, such as "
                f"{MechanicsView.example}."
            )
        every = [logs] if isinstance(logs, Episode) else list(logs)
        beliefs = self.smooth_all(every, seed=seed)
        return mechanics_laws(self.view, [self.see(log) for log in every], beliefs, self.law, estimator=estimator)

    def dynamics(
        self, *, noise: Sequence[float] | float | None = None, static_friction: float | None = None
    ) -> HybridDynamics | LawDynamics | ContactDynamics:
        """How the model moves under raw actions, to plan with; names and units are those of the raw log.

        A state has the names of the log's channels and, of a mechanics view, `NAME velocity`. With `noise` (process
        noise of every velocity, gathered in one second) it is the law itself as a path model, on which plans can be
        certified against other laws.
        """
        if isinstance(self.view, ContactView) and self.commanded is not None:
            if noise is not None or static_friction is not None:
                raise ValueError(
                    "noise or static friction given for a contact model, which has learned its own; expected neither. "
                    "Leave them out."
                )
            return contact_dynamics(self.commanded, self.view, self.dt)
        if not isinstance(self.view, MechanicsView | PlainView):
            raise ValueError(
                f"the model sees logs through the {self.view.kind} view, whose inputs are what came of the commands; "
                "expected inputs that a planner can choose. Fit with a view whose inputs are commands."
            )
        units = {c.name: (si_unit(c.unit) or (1.0, ""))[0] for c in (*self.channels, *self.inputs)}
        seen, told = ([units[n] for n in names] for names in (self.view.channels, self.view.inputs))
        if noise is not None:
            if self.law is None:
                raise ValueError("the model has no law; expected one, of a mechanics view. Leave `noise` out.")
            if not isinstance(self.law, Law):
                raise ValueError(
                    "the law has inertia that couples or changes, for which no certificate exists; expected one of "
                    "separable inertia. Leave `noise` out: the model itself plans."
                )
            return law_dynamics(
                self.law, self.dt, noise=noise, static_friction=static_friction, position_units=seen, input_units=told
            )
        extra = {}
        if self.law is not None:
            n, rows = self.law.positions, np.eye(self.model.latent)
            speeds = zip(self.law.coordinates, rows[n:] / masses(self.law)[:, None], seen, strict=False)
            extra = {f"{q} velocity": row / unit for q, row, unit in speeds}
        return hybrid_dynamics(
            self.model, self.dt, inputs=self.view.inputs, extra=extra,
            channel_units=np.array(seen), input_units=np.array(told) if told else 1.0,
        )  # fmt: skip

    def plan(
        self,
        belief: "Episode | FittedStream | Belief | Particles",
        task: Task,
        *,
        planner: Planner | None = None,
        warm: Plan | None = None,
        seed: int = 0,
    ) -> Plan:
        """The best actions found for a task from what is believed now.

        `belief` is the log so far, a running stream, what `present` gives, or a belief of `filter` where the model
        needs no more. `planner` is `mppi(…)` or `cem(…)`; `warm` is the plan of the step before.
        """
        dynamics = self.dynamics()
        if isinstance(belief, Episode | FittedStream):
            belief = self.present(belief, seed=seed)
        return (planner or mppi())(dynamics, belief, task, key=jax.random.key(seed), warm=warm)

    def present(self, log: "Episode | FittedStream", belief: Any = None, *, seed: int = 0) -> Belief | Particles:
        """What is believed at the end of a log, or of a stream now, as `dynamics()` plans from it.

        `belief` is that of `filter`, where there is one already. Of a model with commands it is of hand and bodies
        together: the hand by its encoders, bodies by the filter, hidden ones as far apart as it is unsure of them.
        """
        if isinstance(log, FittedStream):
            _refuse_other_stream(self, log)
            state, recent = log.particles, log.recent
        else:
            state, recent = self._believed(log, belief, seed)
        if recent is None:
            return state
        assert self.commanded is not None
        assert isinstance(self.view, ContactView)
        assert self.couples is not None
        key, unit = jax.random.fold_in(jax.random.key(seed), recent.row), self.length_unit
        return present(self.commanded, self.view, self.model, self.couples, state, recent, unit=unit, key=key)

    def _believed(self, log: Any, belief: Any, seed: int) -> tuple[Any, Recent | None]:
        """The belief at the end of a log, with what a plan needs of its last rows."""
        if not isinstance(log, Episode):
            raise ValueError(
                f"a {type(log).__name__} was given for the log so far; expected an Episode or a running stream. A "
                "belief goes behind the log that it is of: `fitted.present(log, belief)`."
            )
        belief = self.filter(log, seed=seed) if belief is None else belief
        _refuse_other_belief(belief, log)
        if self.commanded is None or not isinstance(self.view, ContactView):
            return belief, None
        whole, hands = carried(self.commanded, self.view, self._in_own_units(log))
        return belief.final, Recent(hands, body_readings(self.view, whole, belief.record.outliers)[-2:], log.steps)

    def score(self, logs: Sequence[Episode], *, seed: int = 0) -> float:
        """The log evidence of the logs per value that was read; models of one view can be compared by it."""
        seen = [self.see(log) for log in logs]
        settings = replace(self.settings, outliers=None)
        total = log_evidence(self.model, seen, key=jax.random.key(seed), proposal=self.guide, settings=settings)
        return float(np.sum(np.asarray(total, np.float64)) / sum(int(e.observed.sum()) for e in seen))

    def readings(self, belief: Belief) -> tuple[Float[np.ndarray, "rows channels"], Float[np.ndarray, "rows channels"]]:
        """Mean and standard deviation of what every channel of the view reads, in its unit."""
        mean, deviation = reading_moments(self.model, belief)
        scale = np.asarray(self.model.scale, np.float64)
        return mean * scale + np.asarray(self.model.shift, np.float64), deviation * scale

    def intervals(self, log: Episode, belief: Belief, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The low and the high end of every reading, calibrated where the fit had logs to calibrate with."""
        calibrated = self.model.calibration is not None
        return intervals(self.model, self.see(log), belief, level, calibrated=calibrated)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes everything into one file, whole or not at all."""
        notes = {
            "fitted": FORMAT, "view": as_json(self.view), "names": list(self.names), "dt": self.dt,
            "channels": [asdict(c) for c in self.channels], "inputs": [asdict(c) for c in self.inputs],
            "settings": as_record(self.settings), "report": list(self.report),
            "couples": None if self.couples is None else self.couples.tolist(),
            "law": None if self.law is None else any_document(self.law), "guided": self.guide is not None,
            "coasting": None if self.coasting is None else asdict(self.coasting),
        }  # fmt: skip
        parts = {"model": self.model} | ({"guide": self.guide} if self.guide is not None else {})
        parts |= {"commanded": self.commanded} if self.commanded is not None else {}
        parts |= {"segmenter": self.segmenter} if self.segmenter is not None else {}
        save(path, notes=notes, **parts)


def _coasting(record: Mapping[str, Any] | None, model: HybridModel, segmenter: Any) -> Coasting | None:
    """How the segmenter sees bodies that move by themselves; a segmenter that is not of the model is refused."""
    if record is not None:
        return coasting_of(record, model, segmenter)
    same = segmenter is None or (
        isinstance(segmenter, HybridModel)
        and (segmenter.channels, segmenter.modes, segmenter.inputs) == (model.channels, model.modes, model.inputs)
    )
    if not same:
        raise ValueError("the model that reads modes does not fit the one that filters")
    return None


def model_file(path: str | PathLike[str]) -> Path:
    """The file of a model, given it or the folder of a run that holds one."""
    given = Path(path)
    return given / MODEL if given.is_dir() else given


def digest(path: str | PathLike[str]) -> str:
    """What tells the file of a model from every other."""
    return sha256(model_file(path).read_bytes()).hexdigest()


def _refuse_no_model(path: str | PathLike[str]) -> None:
    """Raises where a path is given for that of a model: of logs, say, or of nothing."""
    remedy = "Give one that `vhydro fit LOGS --out MODEL` wrote; where logs are given too, they follow it."
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: nothing is there; expected the file of a model. {remedy}")
    if Path(path).is_file() and not is_model_file(path):
        size = Path(path).stat().st_size
        raise ModelFileError(f"{path}: its {size:,} bytes are no model; expected the file of one. {remedy}")


def _refuse_other_belief(belief: Any, log: Episode) -> None:
    """Raises unless it is a belief of this log."""
    if not isinstance(belief, Belief):
        raise ValueError(
            f"a {type(belief).__name__} was given for the belief; expected the `Belief` that `filter` gives for the "
            "log. Leave it out to have the log filtered."
        )
    rows = belief.moments.mean.shape[0]
    if rows != log.steps + 1:
        raise ValueError(
            f"the belief is of {rows} rows and the log has {log.steps + 1}; expected the belief of this log. Leave it "
            "out to have the log filtered."
        )


def _refuse_other_stream(fitted: Fitted, stream: "FittedStream") -> None:
    """Raises unless it is a stream of this model."""
    alike = (stream.commanded is None) == (fitted.commanded is None)
    if not alike or (stream.view, stream.names) != (fitted.view, fitted.names):
        raise ValueError(
            f"the stream is of another model, with the modes {', '.join(stream.names)}; expected one of this model, "
            f"with the modes {', '.join(fitted.names)}. Start one with `fitted.stream()`."
        )


def _key(seed: int) -> PRNGKeyArray:
    """The key of every log and of a stream, so that all have the same numbers."""
    return jax.random.split(jax.random.key(seed), 1)[0]


def load(path: str | PathLike[str]) -> Fitted:
    """The fitted model in a file that `Fitted.save` wrote, or in the folder of a run."""
    path = model_file(path)
    _refuse_no_model(path)
    held = load_parts(path)
    notes, model = printable_json(held.notes), held.parts.get("model")
    if "fitted" not in notes or not isinstance(model, HybridModel):
        written = "`vhydro learn` of an older version" if "contacts" in notes else "`vhydro.storage.save`"
        raise ModelFileError(
            f"{path} holds {', '.join(held.parts)} as {written} writes it, without the view and names of a fitted "
            "model. Fit the logs again with `vhydro fit LOGS --out MODEL`."
        )
    if notes["fitted"] != FORMAT:
        raise ModelFileError(
            f"{path} is of format {notes['fitted']}; expected {FORMAT}. Use the version that wrote it."
        )
    try:
        return Fitted(
            view=view_from_json(notes["view"]),
            model=model,
            names=tuple(map(str, notes["names"])),
            dt=float(notes["dt"]),
            channels=tuple(Channel(**c) for c in notes["channels"]),
            inputs=tuple(Channel(**c) for c in notes["inputs"]),
            guide=held.parts.get("guide") if notes["guided"] else None,  # pyright: ignore[reportArgumentType]
            settings=_settings(notes["settings"]),
            couples=None if notes["couples"] is None else np.asarray(notes["couples"], bool),
            law=None if notes["law"] is None else any_law_of(notes["law"]),
            commanded=held.parts.get("commanded"),  # pyright: ignore[reportArgumentType]
            segmenter=held.parts.get("segmenter"),  # pyright: ignore[reportArgumentType]
            coasting=_coasting(notes.get("coasting"), model, held.parts.get("segmenter")),
            report=tuple(map(str, notes["report"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path} does not hold a whole fitted model ({type(error).__name__}: {error}); expected what `Fitted.save` "
            "writes. Fit the logs again with `vhydro fit LOGS --out MODEL`."
        ) from error


def _settings(record: Mapping[str, Any]) -> FilterSettings:
    return FilterSettings(**{**record, "gate": Gate(**record["gate"])})


class FittedStream:
    """A running filter over raw rows. `start(observation)` once, then `step(action, observation)` for every sample.

    Observations and actions are vectors in the order of `Fitted.channels` and `Fitted.inputs`, in their units, or
    mappings by name; what is missing or NaN is hidden. Through a body view the belief begins with the second row. Where
    the fit has commands, a hidden hand is carried on by the servo model from the row that last showed it.
    """

    def __init__(
        self,
        stream: Stream | LoadedStream,
        view: AnyView,
        names: Sequence[str],
        channels: Sequence[Channel],
        inputs: Sequence[Channel],
        commanded: CommandedModel | None = None,
    ):
        self._stream, self.view, self.names, self.commanded = stream, view, tuple(names), commanded
        self.channels, self.inputs, self.dt = tuple(channels), tuple(inputs), stream.program.dt
        self._rows: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._gone = np.zeros(3 * len(self._cloths))
        self._begun = False
        self._recent: Recent | None = None

    @property
    def recent(self) -> Recent | None:
        """What a plan needs of the last rows besides the particles, where the model has commands."""
        if not self._begun:
            raise ValueError("the stream has not started; call `start(first_observation)` before a plan is made.")
        return self._recent

    @property
    def particles(self) -> Particles:
        """The filter's weighted population, of which `Fitted.present` makes what a plan starts from.

        A stream from a file does not tell it.
        """
        if isinstance(self._stream, LoadedStream):
            raise ValueError("a stream from a file keeps its particles to itself; expected one of `Fitted.stream`.")
        return self._stream.particles

    def export(self, path: str | PathLike[str], *, platforms: Sequence[str] = PLATFORMS) -> None:
        """Writes the running filter with its view and its names to one file, which `load_stream` starts anew."""
        if isinstance(self._stream, LoadedStream):
            raise ValueError("the stream came from a file; expected one of `Fitted.stream`. Copy the file instead.")
        notes = {
            "fitted": FORMAT, "view": as_json(self.view), "names": list(self.names),
            "channels": [asdict(c) for c in self.channels], "inputs": [asdict(c) for c in self.inputs],
        }  # fmt: skip
        self._stream.export(path, platforms=platforms, notes=notes)

    def start(self, observation: Any) -> Step | None:
        """The belief after the first observation; forgets everything before it."""
        self._rows, self._actions, self._begun = [self._row(observation)], [], False
        self._gone = np.zeros_like(self._gone)
        self._recent = None
        return self._advance()

    def step(self, action: Any, observation: Any) -> Step | None:
        """The belief after this action and the observation that followed it."""
        if not self._rows:
            raise ValueError("the stream has not started; call `start(first_observation)` before `step`.")
        self._rows.append(self._row(observation))
        self._actions.append(_vector(action, self.inputs, "action", hidden=False))
        return self._advance()

    def _row(self, observation: Any) -> np.ndarray:
        return _vector(observation, self.channels, "observation", hidden=True)

    def _advance(self) -> Step | None:
        if isinstance(self.view, BodyView) and len(self._rows) < 2:
            return None  # a step needs two rows
        actions = np.array(self._actions).reshape(len(self._actions), len(self.inputs))
        log = Episode(np.stack(self._rows), actions, self.dt, self.channels, self.inputs)
        seen = self._viewed(log)
        row = self._added_up(seen.observations)
        if not self._begun:
            self._begun, out = True, self._stream.start(row)
        else:
            told = seen.actions[-1] if len(seen.actions) else np.zeros(self._stream.program.inputs)
            out = self._stream.step(told, row)
        if self._recent is not None and out.record.outliers:
            self._recent.bodies[-1] = np.nan
        self._forget()
        return out

    def _viewed(self, log: Episode) -> Episode:
        """What the view shows; a hidden hand is carried on, and what a plan needs of the last two rows is kept."""
        if self.commanded is None or not isinstance(self.view, ContactView):
            return self.view(log)
        before = self._recent
        hands, row = (None, 0) if before is None else (before.hands, before.row)
        whole, hands = carried(self.commanded, self.view, log, hands, row)
        bodies = body_readings(self.view, log)[-1:]
        if before is not None:
            bodies = np.concatenate([before.bodies[-1:], bodies])
        self._recent = Recent(hands, bodies, row + log.steps)
        self._rows = list(whole.observations)
        return hidden_as(log, self.view(whole), self.view)

    @property
    def _cloths(self) -> tuple[str, ...]:
        return tuple(b for b in self.view.bodies if b in self.view.cloths) if isinstance(self.view, ContactView) else ()

    def _added_up(self, values: np.ndarray) -> np.ndarray:
        """The last row; how far a cloth has gone is added to what it had gone when it was last seen."""
        row = values[-1].copy()
        if not self._cloths:
            return row
        assert isinstance(self.view, ContactView)
        own = [3 * i + k for i, body in enumerate(self.view.bodies) if body in self._cloths for k in range(3)]
        for j, c in enumerate(own):
            before = values[:-1, c][~np.isnan(values[:-1, c])]
            if len(before):
                row[c] += self._gone[j] - before[-1]
            self._gone[j] = self._gone[j] if np.isnan(row[c]) else row[c]
        return row

    def _forget(self) -> None:
        """Keeps the rows that the next one is seen with: the last, and of a cloth how it lay and its last places."""
        keep = len(self._rows) - 1
        head = 0
        if self._cloths:
            assert isinstance(self.view, ContactView)
            names = [c.name for c in self.channels]
            knots = [names.index(n) for cloth in self._cloths for n in self.view.bodies[cloth]]
            whole = np.flatnonzero(~np.isnan(np.stack(self._rows)[:, knots]).any(1))
            if len(whole) <= REMEMBERED:
                return
            head, keep = int(whole[0]) + 1, int(whole[-REMEMBERED])
        self._actions = self._actions[:head] + self._actions[keep:]
        self._rows = self._rows[:head] + self._rows[keep:]


def load_stream(path: str | PathLike[str]) -> FittedStream | LoadedStream:
    """The running filter in a file that `export` wrote, compiled for the device at hand.

    The file holds a compiled step and plain data: neither the model's code nor that of anybody else is run from it. It
    holds no servo: the hand has to be seen in every row, where `Fitted.stream` would carry it on.
    """
    stream = read_stream(path)
    notes = printable_json(stream.notes)
    if "fitted" not in notes:
        return stream
    try:
        view = view_from_json(notes["view"])
        channels, inputs = (tuple(Channel(**c) for c in notes[what]) for what in ("channels", "inputs"))
        return FittedStream(stream, view, tuple(map(str, notes["names"])), channels, inputs)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path} does not hold a whole stream ({type(error).__name__}: {error}); expected what "
            "`Fitted.stream().export` writes. Export it again."
        ) from error


def _vector(values: Any, channels: Sequence[Channel], what: str, *, hidden: bool) -> np.ndarray:
    """The values in the order of the channels."""
    names = [c.name for c in channels]
    if isinstance(values, Mapping):
        if unknown := [str(n) for n in values if n not in names]:
            raise ValueError(
                f"the {what} has {', '.join(unknown)}; expected some of {', '.join(names)}. Leave the others out."
            )
        if not hidden and (missing := [n for n in names if n not in values]):
            raise ValueError(f"the {what} lacks {', '.join(missing)}; expected every input. Give it a value.")
        return np.array([float(values.get(n, np.nan)) for n in names])
    vector = np.asarray(values, np.float64)
    if vector.shape != (len(names),):
        raise ValueError(
            f"the {what} has the shape {vector.shape}; expected ({len(names)},), a value each of {', '.join(names)}."
        )
    return vector
