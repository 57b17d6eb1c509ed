"""A contact model from logs alone: modes, their couplings in words, and how many of them the logs can tell apart."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from vhydro.episodes import Episode
from vhydro.filter.run import padded_length
from vhydro.gap import GapDrive, Geometry
from vhydro.learning.coasting import (
    Twins,
    coasting_bodies,
    coasting_model,
    coasting_rows,
    twins_of,
    with_twins,
)
from vhydro.learning.combined import combined
from vhydro.learning.contact import (
    ContactFit,
    Scales,
    contact_fits,
    geometry_of,
    scales_of,
    step_features,
)
from vhydro.learning.contact_em import LEAST, ROUGH, ContactLaw, refined_law
from vhydro.learning.noise import seen_mean
from vhydro.learning.start import AUTO, FEWEST_ROWS, LEAST_MOVE, Start, Tried, best_count, most_words, refuse_too_few
from vhydro.learning.switching import TOLD, Rows
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.progress import counted
from vhydro.views.contact import MACHINE, ContactView

MOST = 6  # modes that `auto` tries
COUPLED = 0.5  # a gain above this is a thing that goes with its drive
PULLED = 0.15  # the same of a cloth, whose other knots hold back the one that is touched
MOSTLY = 0.5  # of a mode's rows
FOLLOWS = 0.5  # noise floors: what a machine does of itself in some mode, if it is to be judged by it
LEAST_STAY = 0.5  # the chance to go on below which a mode is a transient
SENSOR = 0.1  # of the noise floor: the least that a reading is off
SURELY = 5.0  # standard errors of a variance: what spreads further is no noise alone
UNSEEN = 1e3  # noise floors: where a body that no log shows at first may be


class Search(NamedTuple):
    """Every start for several numbers of modes, before one of them is chosen."""

    view: ContactView
    seen: list[Episode]  # training logs through the view
    scales: Scales
    fits: dict[int, list[ContactFit]]  # by the number of modes
    coasting: tuple[str, ...] = ()  # bodies that often move by themselves


def contact_start(
    view: ContactView,
    train: Sequence[Episode],
    validation: Sequence[Episode],
    modes: int | Literal["auto"] = AUTO,
    *,
    seed: int = 0,
) -> Start:
    """The contact model of raw robot logs; labels and forces are never looked at.

    `auto` takes the most modes that all couple different things and that validation logs speak for.
    """
    if modes != AUTO and modes < 1:
        raise ValueError(f"modes is {modes}; expected at least 1, or `auto`.")
    counts = range(1, MOST + 1) if modes == AUTO else (modes,)
    return chosen(searched(view, train, validation, counts, seed=seed), modes)


def searched(
    view: ContactView,
    train: Sequence[Episode],
    validation: Sequence[Episode],
    counts: Iterable[int],
    *,
    seed: int = 0,
) -> Search:
    """Where every start has come to, for each of these numbers of modes."""
    refuse_too_few(train, validation)
    seen, held = [view(e) for e in train], [view(e) for e in validation]
    scales = scales_of(seen)
    tried = counted(sorted(set(counts)), "finding modes: numbers of modes tried")
    coasting = tuple(b for b in coasting_bodies(seen, scales) if b not in view.cloths)
    aside = partial(coasting_rows, scales=scales, bodies=coasting) if coasting else None
    fits = {count: contact_fits(seen, held, count, scales, seed=seed, aside=aside) for count in tried}
    return Search(view, seen, scales, fits, coasting)


def chosen(search: Search, modes: int | Literal["auto"]) -> Start:
    """The best start of so many modes, or of the number that the logs speak for."""
    counts = [n for n in search.fits if n <= MOST] if modes == AUTO else [modes]
    found = [max(search.fits[count], key=_worth) for count in counts]
    untold = hidden_by_noise(search.seen, search.scales, search.view)
    things = things_of(search.seen[0], search.view)._replace(untold=frozenset(untold))
    tried = tuple(
        Tried(c, f.validation, len(f.rows.share) - len(_collapsed(f, things)))
        for c, f in zip(counts, found, strict=True)
    )
    geometry = geometry_of(search.seen, search.scales, [b for b in search.view.bodies if b not in search.view.cloths])

    def learned(fit: ContactFit) -> tuple[ContactLaw, ContactLaw, Setup]:
        """What a fit begins with, what it becomes, and what its models are built of."""
        best = _ordered(fit, things)
        setup = Setup(search.seen, search.scales, geometry, things, best.rows, search.coasting)
        begun = _begun(best, search.scales, things)
        about = step_features(
            search.seen, search.scales, padded_length(max(e.steps + 1 for e in search.seen)), geometry
        )
        twins = setup.twins(setup.couples(begun))
        return begun, refined_law(
            begun,
            lambda law: setup.model(law, setup.couples(law), twins),
            lambda law: together_of(setup.couples(law), things),
            search.seen,
            search.scales,
            about,
            **({} if twins is None else {"show": twins.coasting.show, "told_as": twins.coasting.told_as}),
        ), setup  # fmt: skip

    fit = found[best_count(tried)]
    begun, law, setup = learned(fit)
    if modes == AUTO and (kinds := setup.kinds(law)) < len(law.gain):
        # Refining made modes alike: fewer of them, or the law as it was before, if that tells them apart.
        fewer = learned(found[counts.index(kinds)]) if kinds > 1 else None
        if fewer is not None and fewer[2].kinds(fewer[1]) == kinds:
            fit, (_, law, setup) = found[counts.index(kinds)], fewer
        elif setup.kinds(begun) == len(law.gain):
            law = begun
    couples = setup.couples(law)
    if modes == AUTO:
        law, couples = _combined(law, couples, setup)
    names, twins = tuple(contact_words(p, things.names) for p in couples), setup.twins(couples)
    collapsed = _collapsed(_ordered(fit, things), things)
    notes = noise_words(search.seen, search.scales, search.view, untold) + most_words(len(fit.rows.share), tried)
    if twins is not None:
        notes += (f"{' and '.join(search.coasting)} often moves on by itself, which is told from being held",)
    coasting = None if twins is None else (setup.model(law, couples, twins), twins.coasting)
    return Start(setup.model(law, couples), names, tried, collapsed, couples, notes=notes, coasting=coasting)


def _combined(law: ContactLaw, couples: np.ndarray, setup: "Setup") -> tuple[ContactLaw, np.ndarray]:
    """The law with the combinations of its modes that no log shows."""
    things = setup.things
    own, of_channel = (np.array([name in MACHINE for name in names]) for names in (things.names, things.of_channel))
    fingers = np.array([name == "gripper" for name in things.names])
    return combined(law, couples, np.asarray(setup.rows.share), own, of_channel, fingers)


def _begun(fit: ContactFit, scales: Scales, things: "Things") -> ContactLaw:
    """The law of a fit, before the filter refines it."""
    begun = fit.switching
    walk = np.sqrt(np.maximum(begun.noise[0] ** 2 - (scales.jitter / scales.floor) ** 2, LEAST**2))
    rough = np.where([name in MACHINE for name in things.of_channel], 0.0, ROUGH[1])
    return ContactLaw(
        _gains(fit), walk, *(np.asarray(x) for x in (begun.logits, begun.drive, begun.log_start)), rough=rough
    )


# --- noise ----------------------------------------------------------------------------------------------------------


def least_motion(seen: Sequence[Episode], scales: Scales) -> np.ndarray:
    """The least shift of every channel that would show: it adds to the spread of readings more than chance does."""
    rows = np.maximum(sum(e.observed.sum(0) for e in seen), 2)
    return 2 * scales.sensor * np.sqrt(SURELY * np.sqrt(2 / rows))


def hidden_by_noise(seen: Sequence[Episode], scales: Scales, view: ContactView) -> list[str]:
    """The bodies whose readings spread no more than their noise does."""
    if not scales.width:
        return []
    about = [np.where(e.observed, e.observations - seen_mean(e.observations), 0.0) for e in seen]
    rows = np.maximum(sum(e.observed.sum(0) for e in seen), 2)
    moved = np.sqrt(np.maximum(sum((x**2).sum(0) for x in about) / rows - scales.sensor**2, 0.0))
    groups, little = np.array([c.group for c in seen[0].channels]), 2 * moved < least_motion(seen, scales)
    return [body for body in view.bodies if little[groups == body].all()]


def noise_words(seen: Sequence[Episode], scales: Scales, view: ContactView, untold: Sequence[str]) -> tuple[str, ...]:
    """What the sensors leave to be told, where their noise matters."""
    if not scales.width:
        return ()
    groups = np.array([c.group for c in seen[0].channels])
    least = least_motion(seen, scales)
    sizes = {b: (scales.sensor[groups == b].max(), least[groups == b].max()) for b in view.bodies}
    lines = [f"sensor noise, as estimated: {', '.join(f'{b} {_millimetres(s)}' for b, (s, _) in sizes.items())}"]
    for body in untold:
        size, hidden = (_millimetres(x) for x in sizes[body])
        lines.append(f"{body} is not seen to move: its readings are off by {size}, which hides motion below {hidden}")
    if len(untold) == len(view.bodies):
        lines.append("so nothing can be told of what the hand touches; give more logs, or a better sensor")
    return tuple(lines)


def _millimetres(metres: float) -> str:
    return f"{1e3 * metres:.2g} mm" if metres < 0.0995 else f"{1e3 * metres:.0f} mm"


class Things(NamedTuple):
    """What a view shows: things, the thing of every channel, and which of them are cloths."""

    names: tuple[str, ...]
    of_channel: tuple[str, ...]
    cloths: frozenset[str]
    untold: frozenset[str] = frozenset()  # of which noise lets nothing be said


def things_of(seen: Episode, view: ContactView) -> Things:
    """What a log shows through the view."""
    groups = tuple(c.group for c in seen.channels)
    return Things(tuple(dict.fromkeys(groups)), groups, view.cloths)


def _gains(fit: ContactFit) -> Float[np.ndarray, "modes channels"]:
    return np.asarray(fit.switching.coefficients)[..., 0]


def _worth(fit: ContactFit) -> tuple[bool, float]:
    """A start with a mode of a few odd rows has one mode less than was asked for, however likely it is."""
    return bool(fit.rows.share.min() >= FEWEST_ROWS), fit.validation


def _ordered(fit: ContactFit, things: Things) -> ContactFit:
    """The same with modes in the order of how much they couple."""
    pattern = patterns(_gains(fit), fit.rows, things)
    order = sorted(range(len(pattern)), key=lambda m: (pattern[m].sum(), tuple(~pattern[m]), -fit.rows.share[m]))
    s = fit.switching
    moved = s._replace(
        coefficients=s.coefficients[order], noise=s.noise[order], logits=s.logits[order][:, order],
        drive=s.drive[:, order], log_start=s.log_start[order],
    )  # fmt: skip
    return fit._replace(switching=moved, rows=Rows(*(x[order] for x in fit.rows)))


def patterns(gain: Float[np.ndarray, "modes channels"], rows: Rows, things: Things) -> Bool[np.ndarray, "modes things"]:
    """What every mode couples: each body to the hand, the fingers to something between them, the arm to a load.

    A mode whose rows hardly drive a thing says nothing of it. Fingers are on something where in most of a mode's rows
    they stand still, short of where they are told to be.
    """
    out = []
    for thing in things.names:
        mine = [i for i, name in enumerate(things.of_channel) if name == thing]
        own, told = gain[:, mine], np.asarray(rows.told)[:, mine]
        if thing == "gripper":
            out.append(np.asarray(rows.stalled)[:, mine].mean(1) > MOSTLY)
            continue
        driven = (told > TOLD) & (thing not in things.untold)
        follows = ((own > (PULLED if thing in things.cloths else COUPLED)) & driven).any(1)
        out.append(_falls_short(own, told) if thing in MACHINE else follows)
    return np.stack(out, 1)


def _falls_short(gain: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Modes in which the machine does far less than it does in another with the same command.

    Of a machine that is never seen to follow, nothing can be said.
    """
    size, driven = gain.mean(1), (told > TOLD).any(1)
    follows = driven & ((gain * told).max(1) > FOLLOWS)
    return (size < COUPLED * size[follows].max(initial=0.0)) & driven


def contact_words(pattern: Bool[np.ndarray, "things"], things: Sequence[str]) -> str:
    """What a mode couples, in words."""
    on = [thing for thing, coupled in zip(things, pattern, strict=True) if coupled]
    bodies = [thing for thing in on if thing not in MACHINE]
    parts = [f"{' and '.join(bodies)} with the hand"] if bodies else []
    return ", ".join([*parts, *(MACHINE[thing] for thing in on if thing in MACHINE)]) or "nothing"


def _collapsed(fit: ContactFit, things: Things) -> tuple[int, ...]:
    kept: set[tuple[bool, ...]] = set()
    out = []
    going_on = np.exp(np.diagonal(fit.switching.logits))
    for mode, pattern in enumerate(patterns(_gains(fit), fit.rows, things)):
        passing = len(going_on) > 1 and going_on[mode] < LEAST_STAY
        if fit.rows.share[mode] < FEWEST_ROWS or passing or tuple(pattern) in kept:
            out.append(mode)
        else:
            kept.add(tuple(pattern))
    return tuple(out)


class Setup(NamedTuple):
    """What a contact model is built of besides its law."""

    seen: list[Episode]  # training logs through the view
    scales: Scales
    geometry: Geometry
    things: Things
    rows: Rows  # of every mode
    coasting: tuple[str, ...] = ()  # bodies that often move by themselves

    def twins(self, couples: Bool[np.ndarray, "modes things"]) -> Twins | None:
        """The twins of modes in which a body may coast."""
        share = np.asarray(self.rows.share)
        return twins_of(self.coasting, couples, share, self.things.names, self.seen[0], self.scales.width)

    def model(
        self, law: ContactLaw, couples: Bool[np.ndarray, "modes things"], twins: Twins | None = None
    ) -> HybridModel:
        """The model of a law, with twins if given."""
        if twins is None:
            return contact_model(law, self, couples)
        model = contact_model(with_twins(law, twins), self, couples[list(twins.coasting.told_as)])
        return coasting_model(model, twins, self.scales)

    def couples(self, law: ContactLaw) -> Bool[np.ndarray, "modes things"]:
        """What goes with what drives it in every mode."""
        return patterns(law.gain, self.rows, self.things)

    def kinds(self, law: ContactLaw) -> int:
        """How many modes differ in what they couple."""
        return len(np.unique(self.couples(law), axis=0))


def contact_model(law: ContactLaw, setup: Setup, couples: Bool[np.ndarray, "modes things"]) -> HybridModel:
    """The hybrid model of what was found, in units of the noise floor."""
    seen, scales = setup.seen, setup.scales
    gain, floor = law.gain, scales.floor
    modes, width = gain.shape
    rough = np.zeros((modes, width, len(scales.action)))
    rough[:, :, :width] = law.rough[:, None] * together_of(couples, setup.things)
    rough[:, :, :width] *= scales.action[:width] / floor[:, None]
    port = np.zeros((modes, width, len(scales.action)))
    port[:, range(width), range(width)] = gain * scales.action[:width] / floor
    first = (np.stack([e.observations[0] for e in seen]) - scales.shift) / floor
    middle = seen_mean(first)
    sensor = np.maximum(scales.sensor / floor, SENSOR)
    moves = jnp.asarray(np.maximum(law.logits, np.log(LEAST_MOVE)), jnp.float32)
    drive = GapDrive(setup.geometry, jnp.asarray(law.drive.T, jnp.float32)) if law.drive.size else None
    return hybrid_model(
        replace(mode_kernel(modes, drive=drive), logits=moves),
        linear_flow(np.broadcast_to(np.eye(width), (modes, width, width)), port=port),
        axis_emission(width, range(width), noise=sensor),
        noise=law.walk,
        start_mode=np.exp(law.log_start),
        start_mean=middle,
        start_scale=np.maximum(
            np.where(np.isnan(first).all(0), UNSEEN, np.sqrt(seen_mean((first - middle) ** 2))), 1.0
        ),
        shift=scales.shift,
        scale=floor,
        action_scale=scales.action,
        channels=[c.name for c in seen[0].channels],
        roughness=rough,
    )


def together_of(
    couples: Bool[np.ndarray, "modes things"], things: Things
) -> Bool[np.ndarray, "modes channels channels"]:
    """Which two channels are axes of one body that goes with the hand in a mode.

    Such a body is not glued to the hand: it slips, tilts and catches up, the more the faster the hand goes.
    """
    held = np.array([[name == n and n not in MACHINE for n in things.names] for name in things.of_channel])
    return np.any((held[:, None] & held[None]) & couples[:, None, None], axis=-1)
