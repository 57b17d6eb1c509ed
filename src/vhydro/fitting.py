"""The one door: `fit(logs)` chooses a view, finds modes, refines the model and calibrates it, and says what it did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import numpy as np

from vhydro.data.dataset import Dataset
from vhydro.episodes import Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.filter.merged import is_separate
from vhydro.fitted import SAME_STEP, Fitted
from vhydro.intervals import calibrated, reading_moments, with_outliers
from vhydro.laws.bounces import ImpactLaw
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.mechanics import mechanics_start, rigid_law
from vhydro.learning.body import body_start
from vhydro.learning.commanded import is_commanded, learn_commanded
from vhydro.learning.contact import sensor_noise
from vhydro.learning.contact_modes import contact_start
from vhydro.learning.plain import plain_start
from vhydro.learning.start import AUTO, Start
from vhydro.model import HybridModel
from vhydro.occlusion import occlude
from vhydro.planning.present import STEADY
from vhydro.progress import tell
from vhydro.proposal import ConditionedProposal, Proposal, amortized_proposal
from vhydro.training import DivergedError, Parts, TrainingConfig
from vhydro.training import fit as train_parts
from vhydro.units import si_unit, unknown_units
from vhydro.views import AnyView, BodyView, ContactView, MechanicsView, choose_view, view_of
from vhydro.views.contact import MACHINE
from vhydro.views.view import columns

LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)  # hidden shares that a fit is refined and calibrated for
FEWEST_ROWS = 5  # of a log that can be fitted to
MOST_CALIBRATED = 40  # logs that intervals are calibrated with
LARGEST_REFINED = 8  # coordinates of a model whose Gaussian branches are refined
HELD_OUT = 0.2
MOST_ROWS, STRETCH = 60_000, 1000  # rows that a law is found from where there are more, in stretches of so many
WINDOW = 64  # rows of a training crop, where branches are followed
# What a start knows for good.
LOCKED = ("model.emission.matrix", "model.emission.offset", "model.flow")
WAYS = {"noise and transitions": LOCKED, "transitions": (*LOCKED, "model.emission.log_noise", "model.log_noise")}
GUIDE = 4  # folded into the key for the start of a guide

Modes = int | Literal["auto"]


@dataclass(frozen=True)
class Refinement:
    """How FIVO goes on from a start. The defaults are what a user gets; the rest is for ablations."""

    steps: int = 150
    batch: int = 16
    window: int | None = None  # rows of a training crop; None: whole logs where branches are merged, else 64
    learning_rate: float = 0.03
    levels: tuple[float, ...] = LEVELS  # hidden shares while learning
    burst: int = 10  # rows over which hiding is smoothed
    guide: Literal["conditioned", "amortized"] = "conditioned"  # exact for the linearised model, or a learned network
    settings: FilterSettings | None = None  # of the filter whose evidence is raised; None: merged or Gaussian branches
    # Hidden shares at which a refined model has to predict what was hidden at least as well as its start; empty: never.
    judged: tuple[float, ...] = (0.5, 0.9)


class Division(NamedTuple):
    """Logs to learn from, and logs to choose by."""

    train: list[Episode]
    validation: list[Episode]


def fit(
    logs: Dataset | Episode | Sequence[Episode],
    *,
    modes: Modes = AUTO,
    view: str | AnyView = AUTO,
    validation: float | Sequence[Episode] = HELD_OUT,
    refine: bool = True,
    calibrate: bool = True,
    commands: bool = False,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Fitted:
    """A model of robot logs, found without labels.

    - `modes`: how many; `auto` takes the most that the logs speak for.
    - `view`: what the model sees: `contact`, `mechanics`, `body`, `plain`, a view of your own, or `auto`.
    - `validation`: the share of the logs to choose by, or those logs themselves; of a single log its last part.
    - `refine`: whether FIVO learns noise and transitions from there, to predict what is hidden; without it a fit is a
      quick look. Contacts are read with the noise from before, and are the same either way.
    - `calibrate`: whether intervals are calibrated and thresholds of surprise are found on held-out logs.
    - `commands`: whether it is also learned what commands to the hand do, to plan with; of a contact view with hand
      moves and a gripper.
    - `say`: called with a line about every stage, as it begins.

    >>> fitted = vhydro.fit(vhydro.read("logs/"))
    >>> print(fitted)
    """
    division = _divided(_checked_logs(logs), validation, seed)
    chosen, why = _view(view, division.train)
    options = {"refinement": Refinement() if refine else None, "calibrate": calibrate, "seeds": (seed,), "say": say}
    options["commands"] = commands
    return fit_divisions([division], chosen, modes=modes, why=why, **options)[0]


def find_law(
    logs: Dataset | Episode | Sequence[Episode],
    *,
    modes: Modes = AUTO,
    view: str | AnyView = "mechanics",
    seed: int = 0,
) -> AnyLaw | ImpactLaw:
    """The law of every mode of logs of positions and forces, found without labels: what `fit` finds before it refines
    and calibrates a model to filter with. Where a wall is too stiff for its spring to be seen, the law of flight and
    the wall's restitution instead.
    """
    some, note = _spread_out(_checked_logs(logs))
    division = _divided(some, HELD_OUT, seed)
    chosen, _ = _view(view, division.train)
    if not isinstance(chosen, MechanicsView):
        raise ValueError(
            f"the {chosen.kind} view was named; expected the mechanics view, of positions and forces. Name them, for "
            f"example {MechanicsView.example}."
        )
    _begin("finding modes and laws", None)
    every = [*division.train, *division.validation]
    try:
        law = mechanics_start(chosen, *division, modes, seed=seed).law
    except ValueError:
        law, impacts = None, rigid_law(chosen, every, None)
        if impacts is None:
            raise
    else:
        impacts = rigid_law(chosen, every, law)
    if impacts is not None:
        return replace(impacts, flight=replace(impacts.flight, notes=(*impacts.flight.notes, *note)))
    assert law is not None  # logs of positions and forces always start from one
    return replace(law, notes=(*law.notes, *note))


def _spread_out(logs: list[Episode]) -> tuple[list[Episode], tuple[str, ...]]:
    """The logs or, where they have more rows than a law takes, stretches of them at equal steps; and that it is so."""
    rows = sum(log.steps + 1 for log in logs)
    if rows <= MOST_ROWS:
        return logs, ()
    firsts = [(log, k) for log in logs for k in range(0, max(log.steps + 2 - STRETCH, 1), STRETCH)]
    count = min(max(round(MOST_ROWS * len(firsts) / rows), 2), len(firsts))
    chosen = [firsts[i] for i in np.linspace(0, len(firsts) - 1, count).round().astype(int).tolist()]
    some = [_rows(log, slice(k, min(k + STRETCH, log.steps + 1))) for log, k in chosen]
    used = sum(log.steps + 1 for log in some)
    return some, (f"It is found from {used:,} of {rows:,} rows, in {len(some)} stretches at equal steps.",)


def fit_divisions(
    divisions: Sequence[Division],
    view: AnyView,
    *,
    modes: Modes,
    seeds: Sequence[int],
    refinement: Refinement | None = Refinement(),
    calibrate: bool = True,
    commands: bool = False,
    length: int | None = None,
    why: str = "as given",
    say: Callable[[str], None] | None = None,
) -> list[Fitted]:
    """A model of every division of logs, all refined as one program; `fit` is this for one division.

    Models that are refined together have the same number of modes. `length` is the number of rows that logs are padded
    to, so that divisions of one dataset share a program.
    """
    if commands and not (isinstance(view, ContactView) and is_commanded(view)):
        raise ValueError(
            f"commands are asked for through a {view.kind} view without hand moves, a gripper command and fingers; "
            "expected all three, to plan with. Name them in a ContactView (moves, grip, fingers), or leave `commands` "
            "out."
        )
    if commands and isinstance(view, ContactView):
        for division in divisions:
            _refuse_unlearnable(view, division.train)
    _begin(f"finding modes through the {view.kind} view", say)
    found = [_start(view, division, modes, seed) for division, seed in zip(divisions, seeds, strict=True)]
    seen = [Division(*([view(e) for e in part] for part in division)) for division in divisions]
    parts = [Parts(one.model, ConditionedProposal()) for one in found]
    said = ["not refined: modes and noise are those of the switching regression"] * len(found)
    if refinement is not None:
        _begin("refining noise and transitions", say)
        parts, said = refined(parts, view, seen, seeds, refinement, length)
    _begin("calibrating" if calibrate else "scoring", say)
    each = zip(divisions, seen, found, parts, said, seeds, strict=True)
    done = [_finished(d, s, f, p, line, view, why, calibrate, seed) for d, s, f, p, line, seed in each]
    if commands and isinstance(view, ContactView):
        _begin("learning what commands do", say)
        each = zip(done, divisions, seeds, strict=True)
        return [
            replace(f, commanded=learn_commanded(view, steadied(f, d.train), seed=seed, unit=f.length_unit))
            for f, d, seed in each
        ]
    return done


def _begin(stage: str, say: Callable[[str], None] | None) -> None:
    """Says that a stage begins, to whoever asked or listens."""
    tell(stage)
    if say is not None:
        say(stage)


def _finished(
    division: Division, seen: Division, found: Start, parts: Parts, said: str, view: AnyView, why: str, calibrate: bool,
    seed: int,
) -> Fitted:  # fmt: skip
    """The fitted model with its calibration and its report."""
    first, settings = division.train[0], settings_of(parts.model)
    model, promised = parts.model, "intervals are the belief's own, not calibrated"
    if calibrate:
        model, promised = calibrated_model(model, parts.proposal, view, seen.validation, settings, seed)
    channels, inputs = {c.name: c for c in first.channels}, {c.name: c for c in first.inputs}
    segmenter, coasting = found.coasting or (found.model if isinstance(view, ContactView) else None, None)
    fitted = Fitted(
        view, model, found.names, first.dt,
        tuple(channels[n] for n in view.channels), tuple(inputs[n] for n in view.inputs),
        guide=parts.proposal, settings=settings, couples=found.couples, law=found.law,
        segmenter=None if segmenter is parts.model else segmenter, coasting=coasting,
    )  # fmt: skip
    score = fitted.score(division.validation, seed=seed)
    return replace(fitted, report=_report(division, view, why, found, said, promised, score))


def steadied(fitted: Fitted, logs: Sequence[Episode]) -> list[Episode]:
    """The logs with bodies where all of a log says that they are, in place of noisy or missing readings.

    What commands do is learned from steps, which noise hides; bodies that are read well stay as they are read.
    """
    view = fitted.view
    assert isinstance(view, ContactView)
    logs = showing(view, logs)
    noise, unit, out = sensor_noise([fitted.see(e) for e in logs]), fitted.length_unit, []
    for log, belief in zip(logs, fitted.smooth_all(logs), strict=True):
        mean, values = fitted.readings(belief)[0], log.observations.astype(np.float64)
        names = [c.name for c in log.channels]
        for i, body in enumerate(view.bodies.values()):
            mine, own = slice(3 * i, 3 * i + 3), [names.index(n) for n in body]
            if noise[mine].max() > STEADY or np.isnan(values[:, own]).any():
                values[:, own] = mean[:, mine] / unit
        out.append(replace(log, observations=values))
    return out


def showing(view: ContactView, logs: Sequence[Episode]) -> list[Episode]:
    """The logs that show every body in some row."""
    places = list(view.bodies.values())
    return [e for e in logs if all((~np.isnan(columns(e, names)).any(1)).any() for names in places)]


def _refuse_unlearnable(view: ContactView, logs: Sequence[Episode]) -> None:
    """Raises unless what commands do can be learned from the logs."""
    if not showing(view, logs):
        raise ValueError(
            f"none of {len(logs)} logs shows all of {', '.join(view.bodies)}; expected some that do, to learn what "
            "commands do. Give such logs, or leave `commands` out."
        )
    names = {*view.hand, *view.fingers, *(n for own in view.bodies.values() for n in own)}
    units = {c.name: si_unit(c.unit) or (1.0, c.unit) for c in logs[0].channels if c.name in names}
    if len({factor for factor, _ in units.values()}) > 1:
        told = ", ".join(f"{c.name} in {c.unit or 'no unit'}" for c in logs[0].channels if c.name in names)
        raise ValueError(
            f"places are in several units ({told}); expected one for hand, fingers and bodies, to learn what commands "
            "do. Convert them."
        )


# --- logs -----------------------------------------------------------------------------------------------------------


def _checked_logs(logs: Dataset | Episode | Sequence[Episode]) -> list[Episode]:
    """The logs without labels, if one model can be of all of them."""
    if isinstance(logs, Episode):
        logs = [logs]
    episodes = [e.unlabelled() for e in logs]
    if not episodes:
        raise ValueError("no logs given; expected at least one. Give some.")
    first = episodes[0]
    for e in episodes[1:]:
        for what in ("channels", "inputs"):
            names, other = ({c.name for c in getattr(x, what)} for x in (first, e))
            if names != other:
                odd = sorted(names ^ other)
                raise ValueError(
                    f"{e.source or 'a log'} and {first.source or 'the first log'} differ in the {what} "
                    f"{', '.join(odd[:6])}{' …' if len(odd) > 6 else ''}; expected logs of one task on one robot. "
                    "Fit a model to each kind by itself."
                )
        if abs(e.dt - first.dt) > SAME_STEP * first.dt:
            raise ValueError(
                f"{e.source or 'a log'} has steps of {e.dt:g} s, {first.source or 'the first log'} of {first.dt:g} s; "
                "expected one time step for all: modes are of what happens in one step. Fit a model to each kind, with "
                "--only-rate HZ on the command line."
            )
    long = [e for e in episodes if e.steps + 1 >= FEWEST_ROWS]
    if not long:
        raise ValueError(
            f"the longest of {len(episodes)} logs has {max(e.steps + 1 for e in episodes)} rows; expected at least "
            f"{FEWEST_ROWS} in some. Give longer logs."
        )
    return long


def _divided(episodes: list[Episode], validation: float | Sequence[Episode], seed: int) -> Division:
    """Some logs apart; of a single one its last part."""
    if not isinstance(validation, int | float):
        held = _checked_logs([*validation])
        _checked_logs([*episodes, *held])  # of one kind, all of them
        return Division(episodes, held)
    if not 0 < validation < 1:
        raise ValueError(f"validation is {validation}; expected a share between 0 and 1, or a list of logs.")
    if len(episodes) > 1:
        order = np.random.default_rng(seed).permutation(len(episodes))
        held = set(order[: max(1, round(validation * len(order)))].tolist())
        parts = [[e for i, e in enumerate(episodes) if (i in held) == out] for out in (False, True)]
        return Division(*parts)
    log = episodes[0]
    cut = round((1 - validation) * (log.steps + 1))
    if min(cut, log.steps + 1 - cut) < FEWEST_ROWS:
        raise ValueError(
            f"the only log has {log.steps + 1} rows; expected at least {round(FEWEST_ROWS / validation)}, to hold some "
            "out. Give more logs."
        )
    return Division([_rows(log, slice(0, cut))], [_rows(log, slice(cut, None))])


def _rows(log: Episode, part: slice) -> Episode:
    values = log.observations[part]
    first = part.start or 0
    return replace(log, observations=values, actions=log.actions[first : first + len(values) - 1])


def _view(view: str | AnyView, logs: Sequence[Episode]) -> tuple[AnyView, str]:
    """The view, and why it was taken."""
    if not isinstance(view, str):
        fitted = view.fitted_to(logs) if isinstance(view, ContactView) else view
        return fitted, "as given"
    if view != AUTO:
        return view_of(view, logs), "as asked for"
    return choose_view(logs)


# --- starts ---------------------------------------------------------------------------------------------------------


def _start(view: AnyView, division: Division, modes: Modes, seed: int) -> Start:
    if modes != AUTO and (isinstance(modes, str) or modes < 1):
        raise ValueError(f"modes is {modes!r}; expected at least 1, or 'auto'.")
    if isinstance(view, ContactView):
        return contact_start(view, division.train, division.validation, modes, seed=seed)
    if isinstance(view, MechanicsView):
        return mechanics_start(view, division.train, division.validation, modes, seed=seed)
    train, validation = ([view(e) for e in part] for part in division)
    start = body_start if isinstance(view, BodyView) else plain_start
    return start(train, validation, modes, seed=seed)


def settings_of(model: HybridModel) -> FilterSettings:
    """How a fitted model filters by itself.

    Where the mode kernel reads z, it is drawn if coordinates are alone. Otherwise branches are linearised, and not
    corrected: surfaces make kernels so sharp that a correction by weights leaves a few.
    """
    plain = FilterSettings(particles=64)
    if model.kernel.drive is None:
        return plain
    return replace(plain, engine="drawn") if is_separate(model) else replace(plain, corrected=False)


# --- refinement -----------------------------------------------------------------------------------------------------


def refined(
    parts: Sequence[Parts], view: AnyView, seen: Sequence[Division], seeds: Sequence[int], config: Refinement,
    length: int | None = None,
) -> tuple[list[Parts], list[str]]:  # fmt: skip
    """Every model with noise and transitions learned by FIVO from logs at all hidden shares, and a line about it.

    Evidence is of what was seen. A refined model also has to predict what was hidden, or it is not taken: on clean logs
    noise shrinks until a belief in the dark is sure of the wrong thing. Then transitions alone are learned.
    """
    out, model = list(parts), parts[0].model
    said = ["not refined: it would have predicted hidden readings of held-out logs worse"] * len(parts)
    if config.settings is None and not is_separate(model) and model.latent > LARGEST_REFINED:
        return out, [f"not refined: {model.latent} coupled coordinates are too many for Gaussian branches"] * len(parts)
    if not config.judged:
        after = _trained(parts, seen, seeds, frozen=LOCKED, config=config, length=length)
        return after, ["refined noise and transitions"] * len(parts)
    each = zip(parts, seen, seeds, strict=True)
    before = [hidden_score(p.model, view, d.validation, config.judged, seed=seed) for p, d, seed in each]
    left = list(range(len(parts)))
    for what, frozen in WAYS.items():
        if not left:
            break
        some = [parts[i] for i in left], [seen[i] for i in left], [seeds[i] for i in left]
        after = _trained(*some, frozen=frozen, config=config, length=length)
        for i, new in zip(list(left), after, strict=True):
            value = hidden_score(new.model, view, seen[i].validation, config.judged, seed=seeds[i])
            if value >= before[i]:
                out[i], gain = new, value - before[i]
                said[i] = f"refined {what}: hidden readings of held-out logs {gain:+.2f} nats each"
                left.remove(i)
    return out, said


def _trained(
    parts: Sequence[Parts],
    seen: Sequence[Division],
    seeds: Sequence[int],
    *,
    frozen: tuple[str, ...],
    config: Refinement,
    length: int | None,
) -> list[Parts]:
    """The parts after training, all in one program; those that diverged as they were."""
    model = parts[0].model
    separate = is_separate(model) and config.settings is None
    plain = FilterSettings(particles=16, engine="merged" if separate else AUTO)
    frozen = frozen if model.roughness is None else (*frozen, "model.roughness")
    training = TrainingConfig(
        steps=config.steps, batch=config.batch, window=config.window or (None if separate else WINDOW),
        learning_rate=config.learning_rate, occlusion=config.levels, burst=config.burst,
        validate_every=min(50, config.steps), frozen=frozen, validation_particles=64, seeds=len(parts),
        settings=config.settings or plain,
    )  # fmt: skip
    starts = [_guided(p, seed, config) for p, seed in zip(parts, seeds, strict=True)]
    logs = ([d.train for d in seen], [d.validation for d in seen])
    key = jax.random.key(seeds[0])
    try:
        every = train_parts(starts, *logs, key=key, config=training, length=length, progress=False).every
    except DivergedError:
        return list(parts)
    return [Parts(p.model, ConditionedProposal()) if separate else p for p in every]


def _guided(parts: Parts, seed: int, config: Refinement) -> Parts:
    """The parts with the guide that is learned with them."""
    if config.guide == "conditioned":
        return parts
    key = jax.random.fold_in(jax.random.key(seed), GUIDE)
    return Parts(parts.model, amortized_proposal(parts.model, hidden=(32, 32), key=key))


def darkened(view: AnyView, seen: Episode, level: float, *, seed: int, number: int, burst: int = 10) -> Episode:
    """A log as a view shows it with what a camera sees hidden in bursts; a robot's own encoders never are."""
    own = MACHINE if isinstance(view, ContactView) else ()
    names = [c.name for c in seen.channels if c.group not in own]
    if not level:
        return seen
    key = jax.random.fold_in(jax.random.key(seed), number)
    dark = np.isnan(occlude(seen.select(names), level, burst=burst, key=key).observations)
    values = seen.observations.astype(np.float64)
    columns = [i for i, c in enumerate(seen.channels) if c.name in set(names)]
    values[:, columns] = np.where(dark, np.nan, values[:, columns])
    return replace(seen, observations=values)


def hidden_score(
    model: HybridModel, view: AnyView, held: Sequence[Episode], levels: Sequence[float], *, seed: int
) -> float:
    """How well held-out logs are predicted where they are hidden: mean log density, by the belief's moments."""
    settings = replace(settings_of(model), outliers=None)
    if is_separate(model):
        settings = replace(settings, engine="merged")
    pairs = [(e, darkened(view, e, o, seed=seed, number=i)) for o in levels for i, e in enumerate(held)]
    beliefs = filter_episodes(model, [dark for _, dark in pairs], key=jax.random.key(seed), settings=settings)
    total, count = 0.0, 0
    for (log, dark), belief in zip(pairs, beliefs, strict=True):
        mean, deviation = reading_moments(model, belief)
        value = (log.observations - np.asarray(model.shift)) / np.asarray(model.scale)
        hidden = log.observed & ~dark.observed
        density = -0.5 * ((value - mean) / deviation) ** 2 - np.log(deviation)
        total, count = total + float(density[hidden].sum()), count + int(hidden.sum())
    return total / max(count, 1)


# --- calibration ----------------------------------------------------------------------------------------------------


def calibrated_model(
    model: HybridModel,
    guide: Proposal | None,
    view: AnyView,
    held: Sequence[Episode],
    settings: FilterSettings,
    seed: int,
) -> tuple[HybridModel, str]:
    """The model with thresholds of surprise and calibrated intervals from held-out logs, and what they promise."""
    logs = list(held)[:MOST_CALIBRATED]
    key = jax.random.key(seed)
    quiet = replace(settings, outliers=None)
    pairs = [(e, darkened(view, e, o, seed=seed, number=i)) for o in LEVELS for i, e in enumerate(logs)]
    beliefs = filter_episodes(model, [dark for _, dark in pairs], key=key, proposal=guide, settings=quiet)
    model = with_outliers(model, beliefs[: len(logs)])
    model = calibrated(model, [e for e, _ in pairs], [dark for _, dark in pairs], beliefs)
    assert model.calibration is not None
    count = len(logs)
    return model, (
        f"intervals are calibrated on {count} held-out log{'s' if count > 1 else ''} at 0 to 90 % hidden, which can "
        f"speak of levels up to {count / (count + 1):.0%}; the same logs chose between models"
    )


# --- the report -----------------------------------------------------------------------------------------------------


def _report(
    division: Division,
    view: AnyView,
    why: str,
    found: Start,
    refinement: str,
    promised: str,
    score: float,
) -> tuple[str, ...]:
    """What the fit saw, which view it took and why, its modes, what validation said, what it could not use."""
    every = [*division.train, *division.validation]
    first, rows = every[0], sum(e.steps + 1 for e in every)
    lines = [
        f"saw {len(every)} log{'s' if len(every) > 1 else ''}, {rows:,} rows at {1 / first.dt:g} Hz, "
        f"{len(first.channels)} channels, {len(first.inputs)} inputs; {len(division.validation)} held out",
        f"{view.kind} view: {why}; it reads {_named(view)}",
    ]
    if len(found.tried) > 1:
        tried = ", ".join(f"{t.modes}: {t.validation:.2f}" for t in found.tried)
        lines.append(f"modes tried, held-out log likelihood a row: {tried}")
    lines += [f"  mode {i}: {name}" for i, name in enumerate(found.names)]
    lines += found.notes
    if len(found.names) == 1:
        lines.append("one mode: the logs give no evidence for more")
    if found.collapsed:
        which = ", ".join(map(str, found.collapsed))
        lines.append(f"mode {which} hardly occurs, or does the same as another; ask for fewer modes")
    lines += [refinement, f"held-out log evidence {score:.3f} a reading", promised]
    return (*lines, *_unused(first, view))


def _named(view: AnyView) -> str:
    if isinstance(view, ContactView):
        parts = ["the hand", *view.bodies]
        parts += ["fingers"] if view.machine and view.opening else []
        parts += [f"{len(view.joints)} joints"] if view.machine and view.joints else []
        return ", ".join(parts)
    return ", ".join((*view.channels, *view.inputs))


def _unused(log: Episode, view: AnyView) -> list[str]:
    """What the model could not use of the logs, in a line each."""
    lines = []
    left = [c.name for c in log.channels if c.name not in view.channels]
    left += [c.name for c in log.inputs if c.name not in view.inputs]
    if left:
        shown = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        lines.append(f"not used: {shown}")
    if unknown := unknown_units(log):
        lines.append(f"units nobody knows, taken as they are: {', '.join(unknown)}")
    return lines
