"""A contact model from logs alone: modes, their couplings in words, and how many of them the logs can tell apart."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from vhydro.episodes import Episode
from vhydro.gap import GapDrive, Geometry
from vhydro.learning.contact import ContactFit, Scales, contact_fits, driven_fit, geometry_of, scales_of
from vhydro.learning.contact_em import Law, refined_law
from vhydro.learning.noise import seen_mean
from vhydro.learning.switching import Switching
from vhydro.learning.start import AUTO, FEWEST_ROWS, LEAST_MOVE, Start, Tried, best_count, refuse_too_few
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.views.contact import MACHINE, ContactView

MOST = 6  # modes that `auto` tries
COUPLED = 0.5  # a gain above this is a thing that goes with its drive
PULLED = 0.15  # the same of a cloth, whose other knots hold back the one that is touched
SENSOR = 0.1  # of the noise floor: the least that a reading is off
LEAST_WALK = float(os.environ.get("WALK", "1.0"))
ROUGH = float(os.environ.get("ROUGH", "0.3"))  # of a hand's displacement: by how much a thing that goes with it may miss it
UNSEEN = 1e3  # noise floors: where a body that no log shows at first may be


class Search(NamedTuple):
    """Every start for several numbers of modes, before one of them is chosen."""

    view: ContactView
    seen: list[Episode]  # training logs through the view
    scales: Scales
    fits: dict[int, list[ContactFit]]  # by the number of modes


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
    fits = {count: contact_fits(seen, held, count, scales, seed=seed) for count in sorted(set(counts))}
    return Search(view, seen, scales, fits)


def chosen(search: Search, modes: int | Literal["auto"]) -> Start:
    """The best start of so many modes, or of the number that the logs speak for."""
    counts = [n for n in search.fits if n <= MOST] if modes == AUTO else [modes]
    found = [max(search.fits[count], key=_worth) for count in counts]
    things = things_of(search.seen[0], search.view)
    tried = tuple(
        Tried(c, f.validation, len(f.share) - len(_collapsed(f, things))) for c, f in zip(counts, found, strict=True)
    )
    geometry = geometry_of(search.seen, search.scales, [b for b in search.view.bodies if b not in search.view.cloths])
    best = driven_fit(_ordered(found[best_count(tried)], things), search.seen, search.scales, geometry)
    scales, found = search.scales, best.switching
    model_of = lambda law: contact_model(found, law, scales, search.seen, geometry, things)  # noqa: E731
    walk = np.sqrt(np.maximum(found.noise[0] ** 2 - (scales.jitter / scales.floor) ** 2, LEAST_WALK**2))
    law = Law(_gains(best), walk)
    if os.environ.get("EM", "1") == "1":
        law = refined_law(law, model_of, search.seen, scales, lambda gain: _rough(gain, things))
    couples = patterns(law.gain, things)
    return Start(
        model_of(law),
        tuple(contact_words(p, things.names) for p in couples),
        tried,
        _collapsed(best, things),
        couples,
    )


class Things(NamedTuple):
    """What a view shows: things, the thing of every channel, and which of them are cloths."""

    names: tuple[str, ...]
    of_channel: tuple[str, ...]
    cloths: frozenset[str]


def things_of(seen: Episode, view: ContactView) -> Things:
    """What a log shows through the view."""
    groups = tuple(c.group for c in seen.channels)
    return Things(tuple(dict.fromkeys(groups)), groups, view.cloths)


def _gains(fit: ContactFit) -> Float[np.ndarray, "modes channels"]:
    return np.asarray(fit.switching.coefficients)[..., 0]


def _worth(fit: ContactFit) -> tuple[bool, float]:
    """A start with a mode of a few odd rows has one mode less than was asked for, however likely it is."""
    return bool(fit.share.min() >= FEWEST_ROWS), fit.validation


def _ordered(fit: ContactFit, things: Things) -> ContactFit:
    """The same with modes in the order of how much they couple."""
    pattern = patterns(_gains(fit), things)
    order = sorted(range(len(pattern)), key=lambda m: (pattern[m].sum(), tuple(~pattern[m]), -fit.share[m]))
    s = fit.switching
    moved = s._replace(
        coefficients=s.coefficients[order], noise=s.noise[order], logits=s.logits[order][:, order],
        drive=s.drive[:, order], log_start=s.log_start[order],
    )  # fmt: skip
    return fit._replace(switching=moved, share=fit.share[order])


def patterns(gain: Float[np.ndarray, "modes channels"], things: Things) -> Bool[np.ndarray, "modes things"]:
    """What every mode couples: each body to the hand, the fingers to something between them, the arm to a load."""
    out = []
    for thing in things.names:
        own = gain[:, [i for i, name in enumerate(things.of_channel) if name == thing]]
        follows = (own > (PULLED if thing in things.cloths else COUPLED)).any(1)
        out.append(_falls_short(own) if thing in MACHINE else follows)
    return np.stack(out, 1)


def _falls_short(gain: np.ndarray) -> np.ndarray:
    """Modes in which the machine does far less than it does in another with the same command."""
    size = gain.mean(1)
    return (size < COUPLED * size.max()) & (size.max() > 0)  # a machine that never follows says nothing


def contact_words(pattern: Bool[np.ndarray, "things"], things: Sequence[str]) -> str:
    """What a mode couples, in words."""
    on = [thing for thing, coupled in zip(things, pattern, strict=True) if coupled]
    bodies = [thing for thing in on if thing not in MACHINE]
    parts = [f"{' and '.join(bodies)} with the hand"] if bodies else []
    return ", ".join([*parts, *(MACHINE[thing] for thing in on if thing in MACHINE)]) or "nothing"


def _collapsed(fit: ContactFit, things: Things) -> tuple[int, ...]:
    kept: set[tuple[bool, ...]] = set()
    out = []
    for mode, pattern in enumerate(patterns(_gains(fit), things)):
        if fit.share[mode] < FEWEST_ROWS or tuple(pattern) in kept:
            out.append(mode)
        else:
            kept.add(tuple(pattern))
    return tuple(out)


def contact_model(
    found: Switching, law: Law, scales: Scales, seen: Sequence[Episode], geometry: Geometry, things: Things
) -> HybridModel:
    """The hybrid model of what was found, in units of the noise floor."""
    gain, floor = law.gain, scales.floor
    modes, width = gain.shape
    couples = patterns(gain, things)
    port = np.zeros((modes, width, len(scales.action)))
    port[:, range(width), range(width)] = gain * scales.action[:width] / floor
    first = (np.stack([e.observations[0] for e in seen]) - scales.shift) / floor
    middle = seen_mean(first)
    sensor = np.maximum(scales.sensor / floor, SENSOR)
    moves = jnp.asarray(np.maximum(found.logits, np.log(LEAST_MOVE)), jnp.float32)
    drive = GapDrive(geometry, jnp.asarray(found.drive.T, jnp.float32)) if found.drive.size else None
    return hybrid_model(
        replace(mode_kernel(modes, drive=drive), logits=moves),
        linear_flow(np.broadcast_to(np.eye(width), (modes, width, width)), port=port),
        axis_emission(width, range(width), noise=sensor),
        noise=law.walk,
        start_mode=np.exp(found.log_start),
        start_mean=middle,
        start_scale=np.maximum(
            np.where(np.isnan(first).all(0), UNSEEN, np.sqrt(seen_mean((first - middle) ** 2))), 1.0
        ),
        shift=scales.shift,
        scale=floor,
        action_scale=scales.action,
        channels=[c.name for c in seen[0].channels],
        roughness=roughness_of(couples, things, scales),
    )


def _rough(gain, things):
    couples, out = patterns(gain, things), np.zeros_like(gain)
    for thing, held in zip(things.names, couples.T, strict=True):
        own = [i for i, name in enumerate(things.of_channel) if name == thing]
        if thing not in MACHINE:
            out[np.ix_(held, own)] = ROUGH * np.sqrt(3)
    return out


def roughness_of(
    couples: Bool[np.ndarray, "modes things"], things: Things, scales: Scales
) -> Float[np.ndarray, "modes channels inputs"]:
    """A share of the hand's displacement, for every axis of what goes with it: things are not glued to a hand."""
    width = len(scales.floor)
    out = np.zeros((len(couples), width, len(scales.action)))
    for thing, held in zip(things.names, couples.T, strict=True):
        own = [i for i, name in enumerate(things.of_channel) if name == thing]
        if thing not in MACHINE:
            out[np.ix_(held, own, own)] = ROUGH * (scales.action[own] / scales.floor[own][:, None])
    return out
