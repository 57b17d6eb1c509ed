"""Logs of positions and forces: what the mechanics view hands to the law estimators, and what they hand back."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, log10
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from vhydro.episodes import Episode
from vhydro.filter import Belief
from vhydro.laws.as_model import surfaces
from vhydro.laws.bounces import ImpactLaw
from vhydro.laws.chain import ChainConfig, FoundModes, episodes_of, evidence_per_value, find_modes, law_of_modes
from vhydro.laws.impacts import impact_law
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.recover import Estimator, LawsConfig, recover, refuse_unfit
from vhydro.learning.start import AUTO, Start, Tried, refuse_too_few
from vhydro.progress import counted
from vhydro.views.mechanics import NONE, MechanicsView, mechanics_view

MOST = 3  # modes that `auto` tries
CLEAR = 0.02  # nats per value by which validation logs have to speak for one more mode
FORCE = {"m": "N", "rad": "N m"}
MOMENTUM = {"m": "kg m/s", "rad": "kg m²/s"}


def mechanics_problem(view: MechanicsView, episode: Episode, modes: int | Sequence[str]) -> Problem:
    """What a view and the units of its channels say is known, for so many modes or for modes of these names.

    Channels keep their names. A channel that declares no unit is taken to be in SI. Where the unit of a position or of
    its force is one that nobody knows, or not one of mechanics, nothing along that position has a unit.
    """
    log, n = view(episode), len(view.positions)
    inputs = [c.name for c in log.inputs]
    port, friction = np.zeros((2 * n, len(inputs))), np.array(view.friction or (np.nan,) * n, float)
    for row in range(n):
        force, carrier = ((names[row] if names else NONE) for names in (view.forces, view.carried_by))
        if force != NONE:
            port[n + row, inputs.index(force)] = 1.0
        if carrier != NONE:
            port[row, inputs.index(carrier)] = -1.0
            port[n + row, inputs.index(carrier)] = np.nan
    masses = np.array(view.masses or (np.nan,) * n, float)
    _refuse_without_scale(view, port, friction, masses)
    units = _units(view, log)
    names = tuple(f"mode {i + 1}" for i in range(modes)) if isinstance(modes, int) else tuple(modes)
    kinds: list[Literal["length", "angle"]] = ["angle" if unit == "rad" else "length" for unit in units]
    return Problem(
        (*view.positions, *(f"p_{x}" if n > 1 or x == "p" else "p" for x in view.positions)),
        (*units, *(MOMENTUM.get(unit, "") for unit in units)),
        tuple(inputs),
        names,
        candidates(tuple(kinds)),
        friction,
        port,
        masses if np.isfinite(masses).any() else None,
    )


def _refuse_without_scale(view: MechanicsView, port: np.ndarray, friction: np.ndarray, masses: np.ndarray) -> None:
    """Raises where nothing at all has the unit of a force: then every mass is known up to a factor only."""
    known = np.nan_to_num(np.concatenate([port[len(masses) :].ravel(), friction, masses]))
    if not (known > 0).any():
        raise ValueError(
            f"nothing acts on {view.positions[0]!r} that has the unit of a force; expected an input that is a force, "
            "or a known friction or mass, for without one no mass has a scale. Name it on the command line "
            "(--forces torque, --friction 1.0 or --masses 0.5) or in the view: "
            f"{view.example}, or give friction=(1.0,) to measure all forces in its unit."
        )


def is_coupled(problem: Problem) -> bool:
    """Whether some position has no known force, friction or mass of its own: its law is sought with the others'."""
    n = problem.positions
    known = np.nan_to_num(np.concatenate([problem.port[n:], problem.dissipation[:, None]], 1)).any(1)
    if problem.masses is not None:
        known |= np.isfinite(problem.masses)
    return not known.all()


def _units(view: MechanicsView, log: Episode) -> list[str]:
    """The unit of every position: m or rad; none where it, or the unit of its force, is another."""
    declared = {c.name: c.unit for c in log.inputs}
    out = []
    for row, channel in enumerate(log.channels):
        unit = channel.unit or "m"
        force = declared.get(view.forces[row] if view.forces else NONE, "")
        out.append(unit if unit in FORCE and force in ("", FORCE[unit]) else "")
    return out


def mechanics_recording(
    view: MechanicsView, episodes: Sequence[Episode], weights: Sequence[np.ndarray] | None = None, *, modes: int = 1
) -> Recording:
    """The positions and inputs of all logs side by side, NaN where hidden, shorter ones padded with nothing.

    `weights` are (rows, modes) of every log, as a belief's; without them each of `modes` is as likely as the others.
    """
    logs = [view(e) for e in episodes]
    steps = {e.dt for e in logs}
    if len(steps) != 1:
        raise ValueError(
            f"the logs have steps of {min(steps, default=0):g} to {max(steps, default=0):g} s; expected one for all. "
            "Resample them, or fit each kind by itself."
        )
    rows = [len(e.observations) for e in logs]
    weights = [np.full((r, modes), 1 / modes) for r in rows] if weights is None else [np.asarray(w) for w in weights]
    if [len(w) for w in weights] != rows:
        raise ValueError(
            f"the beliefs have {[len(w) for w in weights]} rows and the logs {rows}; expected those of these logs."
        )
    return Recording(
        _side_by_side([e.observations for e in logs], max(rows), np.nan),
        _side_by_side([e.actions for e in logs], max(rows) - 1, 0.0),
        _side_by_side(weights, max(rows), 0.0),
        float(steps.pop()),
    )


def recorded(logs: Iterable[Episode], view: MechanicsView | None = None) -> tuple[Recording, Problem]:
    """What logs of positions and forces hold for `recover`, in one mode, and what is known of it; the view is found by
    units and names if not given.
    """
    every = list(logs)
    view = mechanics_view(every) if view is None else view
    return mechanics_recording(view, every), mechanics_problem(view, every[0], 1)


def _side_by_side(parts: Sequence[np.ndarray], rows: int, filling: float) -> np.ndarray:
    padding = [((0, rows - len(part)), (0, 0)) for part in parts]
    pairs = zip(parts, padding, strict=True)
    return np.stack([np.pad(part.astype(float), pad, constant_values=filling) for part, pad in pairs])


class Candidate(NamedTuple):
    """One number of modes: the modes found, their law by the weak form, and how likely validation logs are under it."""

    problem: Problem
    found: FoundModes
    tried: Tried


def mechanics_start(
    view: MechanicsView,
    train: Sequence[Episode],
    validation: Sequence[Episode],
    modes: int | Literal["auto"] = AUTO,
    *,
    seed: int = 0,
    config: ChainConfig = ChainConfig(),  # noqa: B008 — immutable
) -> Start:
    """The law of raw logs and its model, found from positions and inputs alone.

    `auto` tries one, two and three modes. It takes more where validation logs clearly speak for it and the law of
    every mode is identified; where none is, the one that validation logs speak for. A number of modes that leads to
    no law is ruled out.
    """
    if modes != AUTO and modes < 1:
        raise ValueError(f"modes is {modes}; expected at least 1, or `auto`.")
    refuse_too_few(train, validation)
    logs, known = [*train, *validation], mechanics_problem(view, train[0], 1)
    every = mechanics_recording(view, logs)
    if is_coupled(known):
        return _coupled_start(every, known, modes, config)
    refuse_unfit(every.only(range(len(train))), known, config.laws.shooting.bump)
    counts = range(1, MOST + 1) if modes == AUTO else (modes,)
    tried, last = [], ValueError("")
    for count in counted(counts, "finding modes: numbers of modes tried"):
        every = mechanics_recording(view, logs, modes=count)  # all of one length: they share one program
        some, held = every.only(range(len(train))), every.only(range(len(train), len(logs)))
        try:
            tried.append(_candidate(some, held, mechanics_problem(view, train[0], count), config, seed=seed))
        except (ValueError, np.linalg.LinAlgError) as error:
            last = error
    marked: Start | None = None
    for one in in_order([c.tried for c in tried]):
        try:
            law = _named(law_of_modes(tried[one].found, tried[one].problem, config.laws))
            start = Start(law.as_model(), law.modes, tuple(c.tried for c in tried), law=law)
        except (ValueError, np.linalg.LinAlgError) as error:
            last = error
            continue
        if not law.problems:
            return start
        marked = marked or start
    if marked is not None:
        return marked
    raise ValueError(f"no law was found with {' or '.join(map(str, counts))} modes: {last}") from last


def _coupled_start(every: Recording, problem: Problem, modes: int | Literal["auto"], config: ChainConfig) -> Start:
    """Lagrange's equations in one mode, of all logs: where an input drives only some positions."""
    if modes not in (AUTO, 1):
        raise ValueError(
            f"modes is {modes} and some positions have no force of their own; expected 1: modes of coupled positions "
            "are not found by themselves. Leave --modes out, or give labels to `vhydro.laws.recover`."
        )
    law = recover(every, problem, replace(config.laws, estimator="lagrange"))
    law = _named(replace(law, modes=("mode 1",)))
    return Start(law.as_model(), law.modes, (), law=law)


def _candidate(
    train: Recording, validation: Recording, problem: Problem, config: ChainConfig, *, seed: int
) -> Candidate:
    """So many modes as the problem has, found in some logs and judged by others."""
    found = find_modes(train, problem, config, seed=seed)
    law = law_of_modes(found, problem, replace(config.laws, estimator="weak", held_out=False))
    evidence = evidence_per_value(law.as_model(), episodes_of(validation, problem), config, seed=seed)
    count = len(problem.modes)
    return Candidate(problem, found, Tried(count, evidence, count - len({m for m, _ in law.problems})))


def in_order(tried: Sequence[Tried]) -> list[int]:
    """The places of the numbers of modes, the one that validation logs speak for first, then those of fewer modes.

    A law that is marked takes the place of another that is, and of no other.
    """
    best = 0
    for i, one in enumerate(tried):
        whole = one.distinct == one.modes or tried[best].distinct < tried[best].modes
        if whole and one.validation > tried[best].validation + CLEAR:
            best = i
    return list(range(best, -1, -1)) if tried else []


def mechanics_laws(
    view: MechanicsView,
    episodes: Sequence[Episode],
    beliefs: Sequence[Belief],
    law: AnyLaw,
    config: LawsConfig = LawsConfig(),  # noqa: B008
    *,
    estimator: str | None = None,
) -> AnyLaw:
    """The law of these logs in the modes that the beliefs give them; numbers and names are those of the law so far.

    `estimator` is that of the law so far if not given.
    """
    recording = mechanics_recording(view, episodes, [np.asarray(b.mode) for b in beliefs])
    if estimator is not None and estimator not in get_args(Estimator):
        raise ValueError(f"estimator is {estimator!r}; expected one of {', '.join(get_args(Estimator))}.")
    chosen = estimator or ("lagrange" if isinstance(law, LagrangeLaw) else config.estimator)
    config = replace(config, estimator=cast(Estimator, chosen))
    return recover(recording, mechanics_problem(view, episodes[0], law.modes), config)


def rigid_law(
    view: MechanicsView,
    episodes: Sequence[Episode],
    law: AnyLaw | None,
    config: LawsConfig = LawsConfig(),  # noqa: B008
) -> ImpactLaw | None:
    """The law with impacts instead of contacts that no law could follow (`law` is the one that was tried, if there is
    one); None where some could be followed, or where impacts do not explain the logs either.
    """
    if law is not None:
        doubtful, followed = {mode for mode, _ in law.problems}, {*range(len(law.modes))} - {law.form.base}
        if not doubtful or (followed - {*law.form.resting}) - doubtful:
            return None
    recording, problem = recorded(episodes, view)
    coupled = isinstance(law, LagrangeLaw) or (law is None and is_coupled(problem))
    chosen = replace(config, estimator="lagrange" if coupled else "shooting")
    try:
        found = impact_law(recording, problem, chosen)
    except (ValueError, np.linalg.LinAlgError):
        return None
    return found if found.bounces and not found.problems else None


def _named(law: AnyLaw) -> AnyLaw:
    return replace(law, modes=mode_names(law))


def mode_names(law: AnyLaw) -> tuple[str, ...]:
    """What every mode of a law is, in words."""
    names = [f"mode {m + 1}" for m in range(len(law.modes))]
    names[law.form.base] = "free"
    for mode, axis, _, place in surfaces(law):
        unit = law.units[axis]
        at = f"{law.coordinates[axis]} = {_place(law, axis, place)}{f' {unit}' if unit else ''}"
        names[mode] = f"{'stop' if unit == 'rad' else 'wall'} at {at}"
    for mode, axis, sign in law.circumstances.directions if law.circumstances else ():
        along = f" along {law.coordinates[axis]}" if law.positions > 1 else ""
        names[mode] = f"sliding {'+' if sign > 0 else '−'}{along}"
    for mode in law.form.resting:
        names[mode] = "at rest"
    twice = {name for name, count in Counter(names).items() if count > 1}
    return tuple(f"{name} ({m + 1})" if name in twice else name for m, name in enumerate(names))


def _place(law: AnyLaw, axis: int, place: float) -> str:
    """A place to about a hundredth of how far things move."""
    if law.circumstances is None:
        return f"{place:.3g}"
    decimals = ceil(2 - log10(law.circumstances.position_spread[axis]))
    return f"{round(place, decimals) + 0.0:.10g}"  # + 0.0: there is no −0
