"""A contact model from logs alone: modes, their couplings in words, and how many of them the logs can tell apart."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from vhydro.episodes import Episode
from vhydro.model import HybridModel, axis_emission, hybrid_model, linear_flow, mode_kernel
from vhydro.modes.switching import Found, floors, seen_mean, switching
from vhydro.modes.view import MACHINE, ContactView, contact_view

AUTO: Literal["auto"] = "auto"
MOST = 6  # modes that `auto` tries
FEWEST_ROWS = 0.01  # share of the rows below which a mode counts as collapsed
COUPLED = 0.5  # a gain above this is a thing that goes with its drive
PULLED = 0.15  # the same of a cloth, whose other knots hold back the one that is touched
SENSOR = 0.1  # of the noise floor
UNSEEN = 1e3  # noise floors: where a body that no log shows at first may be
LEAST_MOVE = 1e-6  # no mode is ever impossible


class Tried(NamedTuple):
    """One number of modes: how likely validation logs are, and how many of its modes differ in what they couple."""

    modes: int
    validation: float  # log likelihood per row
    different: int


class Learned(NamedTuple):
    """A contact model, the view it reads logs through, and how the search for it went."""

    model: HybridModel
    view: ContactView
    contacts: tuple[str, ...]  # of every mode, in words
    couples: Bool[np.ndarray, "modes things"]  # the same as a table: every body, then fingers and arm where commanded
    collapsed: tuple[int, ...]  # modes that hardly occur, or couple nothing else than an earlier one
    starts: np.ndarray  # validation log likelihood per row of every start
    tried: tuple[Tried, ...]  # numbers of modes, where they were chosen

    @property
    def touching(self) -> Bool[np.ndarray, "modes"]:
        """Whether anything is coupled in each mode."""
        return np.asarray(self.couples.any(1))


class Search(NamedTuple):
    """Every start for several numbers of modes, before one of them is chosen."""

    view: ContactView
    seen: list[Episode]  # training logs through the view
    floor: Float[np.ndarray, "channels"]
    starts: dict[int, list[Found]]  # by the number of modes


def learned(
    train: Sequence[Episode], validation: Sequence[Episode], modes: int | Literal["auto"] = AUTO, *, seed: int = 0
) -> Learned:
    """The contact model of raw robot logs; labels and forces are never looked at.

    `auto` takes the most modes that all couple different things and that validation logs speak for. Plain likelihood
    rises long after contacts are told apart, for further modes split speeds and transients: every mode has to earn its
    place by a coupling of its own.
    """
    if modes != AUTO and modes < 1:
        raise ValueError(f"modes is {modes}; expected at least 1, or `auto`.")
    counts = range(1, MOST + 1) if modes == AUTO else (modes,)
    return chosen(searched(train, validation, counts, seed=seed), modes)


def searched(
    train: Sequence[Episode], validation: Sequence[Episode], counts: Iterable[int], *, seed: int = 0
) -> Search:
    """Where every start has come to, for each of these numbers of modes."""
    if not train or not validation:
        raise ValueError(
            f"{len(train)} training and {len(validation)} validation logs; expected at least one of each. The second "
            "chooses between starts."
        )
    view = contact_view(train)
    seen, held = [view(e) for e in train], [view(e) for e in validation]
    floor = floors(seen)
    starts = {count: switching(seen, held, count, floor, seed=seed) for count in sorted(set(counts))}
    return Search(view, seen, floor, starts)


def chosen(search: Search, modes: int | Literal["auto"]) -> Learned:
    """The best start of so many modes, or of the number that the logs speak for."""
    counts = [n for n in search.starts if n <= MOST] if modes == AUTO else [modes]
    found = [max(search.starts[count], key=_worth) for count in counts]
    shown = things_of(search.seen[0], search.view)
    tried = tuple(Tried(c, f.validation, _different(f, shown)) for c, f in zip(counts, found, strict=True))
    taken = _chosen(tried)
    best = _ordered(found[taken], shown)
    couples = patterns(np.asarray(best.switching.gain), shown)
    return Learned(
        contact_model(best, search.floor, search.seen),
        search.view,
        tuple(contact_words(p, shown.things) for p in couples),
        couples,
        _collapsed(best, shown),
        np.array([start.validation for start in search.starts[counts[taken]]]),
        tried,
    )


class Shown(NamedTuple):
    """What a view shows: things, the thing of every channel, and which of them are cloths."""

    things: tuple[str, ...]
    of_channel: tuple[str, ...]
    cloths: frozenset[str]


def things_of(seen: Episode, view: ContactView) -> Shown:
    """What a log shows through the view."""
    groups = tuple(c.group for c in seen.channels)
    return Shown(tuple(dict.fromkeys(groups)), groups, view.cloths)


def _worth(start: Found) -> tuple[bool, float]:
    """A start with a mode of a few odd rows has one mode less than was asked for, however likely it is."""
    return bool(start.share.min() >= FEWEST_ROWS), start.validation


def _different(found: Found, shown: Shown) -> int:
    return len(found.share) - len(_collapsed(found, shown))


def _chosen(tried: Sequence[Tried]) -> int:
    """The last that is likelier than the one chosen before it, all of its modes different."""
    best = 0
    for i, one in enumerate(tried):
        if one.different == one.modes and one.validation > tried[best].validation:
            best = i
    return best


def _ordered(found: Found, shown: Shown) -> Found:
    """The same with modes in the order of how much they couple."""
    pattern = patterns(np.asarray(found.switching.gain), shown)
    order = sorted(range(len(pattern)), key=lambda m: (pattern[m].sum(), tuple(~pattern[m]), -found.share[m]))
    s = found.switching
    moved = s._replace(gain=s.gain[order], transition=s.transition[order][:, order], start=s.start[order])
    return found._replace(switching=moved, share=found.share[order])


def patterns(gain: Float[np.ndarray, "modes channels"], shown: Shown) -> Bool[np.ndarray, "modes things"]:
    """What every mode couples: each body to the hand, the fingers to something between them, the arm to a load."""
    out = []
    for thing in shown.things:
        own = gain[:, [i for i, name in enumerate(shown.of_channel) if name == thing]]
        follows = (own > (PULLED if thing in shown.cloths else COUPLED)).any(1)
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


def _collapsed(found: Found, shown: Shown) -> tuple[int, ...]:
    kept: set[tuple[bool, ...]] = set()
    out = []
    for mode, pattern in enumerate(patterns(np.asarray(found.switching.gain), shown)):
        if found.share[mode] < FEWEST_ROWS or tuple(pattern) in kept:
            out.append(mode)
        else:
            kept.add(tuple(pattern))
    return tuple(out)


def contact_model(found: Found, floor: Float[np.ndarray, "channels"], seen: Sequence[Episode]) -> HybridModel:
    """The hybrid model of what was found, in units of the noise floor."""
    gain = found.switching.gain
    modes, width = gain.shape
    shift = seen_mean(np.concatenate([e.observations for e in seen]))
    first = (np.stack([e.observations[0] for e in seen]) - shift) / floor
    middle = seen_mean(first)
    kernel = mode_kernel(modes)
    moves = jnp.asarray(np.log(np.maximum(found.switching.transition, LEAST_MOVE)), jnp.float32)
    return hybrid_model(
        replace(kernel, logits=moves),
        linear_flow(np.broadcast_to(np.eye(width), (modes, width, width)), port=gain[:, :, None] * np.eye(width)),
        axis_emission(width, range(width), noise=SENSOR),
        noise=found.switching.noise,
        start_mode=found.switching.start,
        start_mean=middle,
        start_scale=np.maximum(
            np.where(np.isnan(first).all(0), UNSEEN, np.sqrt(seen_mean((first - middle) ** 2))), 1.0
        ),
        shift=shift,
        scale=floor,
        action_scale=floor,
        channels=[c.name for c in seen[0].channels],
    )
