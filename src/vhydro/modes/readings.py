"""Readings of modes by what they couple: which bodies touch, contact or none, and the regime; labels have no part.

A model's modes say what goes with the hand, and whether fingers and arm do as they are told. What rests on another
thing does not show in motion, but gravity says it: a body that nothing holds stands on something else than before where
it stands higher than it began, or lower and began above another body. Where the hand has kept its place beside it and
not opened its fingers, it still is in that hand. An arm that falls short while its fingers hold something presses it
against something else. And what a mode says of holding is checked against where hand and bodies go: see `holding`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.ndimage import median_filter

from vhydro.episodes import Episode
from vhydro.modes.holding import borne_out, falls_short, reach_of
from vhydro.modes.segments import Segment
from vhydro.occlusion import straight_lines
from vhydro.views.contact import ContactView
from vhydro.views.view import AXES

FREE, IMPACT, SUSTAINED = 0, 1, 2
REGIMES = ("free", "impact", "sustained")
SURELY = 5.0  # deviations of a height, over rows of rest
OPENED = 0.001  # metres that a finger moves out where it lets go
HIGHER = 0.003  # metres: more than a body tilts when it is pushed, less than the floor of a bin


class Touching(NamedTuple):
    """What touches what in every row."""

    held: Bool[np.ndarray, "rows bodies"]  # by the hand, or goes with what the hand holds
    standing: Bool[np.ndarray, "rows bodies"]  # on something else than at first, held by nothing
    pressed: Bool[np.ndarray, "rows"]  # what fingers hold is against something


class Readings(NamedTuple):
    """One path of modes, read in four ways, and words for the second."""

    modes: Int[np.ndarray, "rows"]
    touching: Int[np.ndarray, "rows"]  # a number for every set of bodies that touch; 0 is none
    contact: Int[np.ndarray, "rows"]  # 1 where anything touches
    regime: Int[np.ndarray, "rows"]  # free, impact, sustained: a window around every make and break
    words: dict[int, str]  # of the numbers of `touching`


def readings(
    path: Int[np.ndarray, "rows"],
    couples: Bool[np.ndarray, "modes things"],
    view: ContactView,
    seen: Episode,
    places: Float[np.ndarray, "rows bodies 3"] | None = None,
    noise: Float[np.ndarray, "bodies"] | float = 0.0,
) -> Readings:
    """The readings of the modes of a log that was seen through the view.

    `places` are where the bodies are believed to be; without them where the log shows them, straight lines between.
    `noise` is by how much a sensor misses the height of each, in metres.
    """
    path = np.asarray(path)
    places = shown_places(view, seen) if places is None else places
    found = touching_of(path, couples, view, seen, places, np.broadcast_to(noise, places.shape[1]))
    flags = np.column_stack([*found[:2], found.pressed])
    codes = flags.astype(np.int64) @ (1 << np.arange(flags.shape[1], dtype=np.int64))
    firsts = {int(code): int(row) for code, row in zip(*np.unique(codes, return_index=True), strict=True)}
    words = {code: _words(Touching(*(part[row] for part in found)), view) for code, row in firsts.items()}
    touches = codes > 0
    return Readings(path, codes, touches.astype(int), regime_of(touches), words)


def touching_of(
    path: Int[np.ndarray, "rows"],
    couples: Bool[np.ndarray, "modes things"],
    view: ContactView,
    seen: Episode,
    places: Float[np.ndarray, "rows bodies 3"],
    noise: Float[np.ndarray, "bodies"],
) -> Touching:
    """What touches what: by what the mode of every row couples, by reach, and by height."""
    things = list(dict.fromkeys(c.group for c in seen.channels))
    bodies = list(view.bodies)
    coupled = np.asarray(couples)[path]

    def is_on(thing: str) -> np.ndarray:
        return coupled[:, things.index(thing)] if thing in things else np.zeros(len(path), bool)

    goes = np.stack([is_on(body) for body in bodies], 1)
    arm = [i for i, c in enumerate(seen.channels) if c.group == "end_effector"]
    stopped = falls_short(is_on("end_effector"), seen.actions[:, arm], np.diff(seen.observations[:, arm], axis=0))
    blocked = (is_on("gripper") | stopped) & ~goes.any(1)
    cloth = np.array([body in view.cloths for body in bodies])
    hand, least = _hand(seen), np.maximum(HIGHER, SURELY * noise)
    goes[:, ~cloth] = borne_out(goes[:, ~cloth], places[:, ~cloth], hand, least[~cloth])
    elsewhere = _stands_elsewhere(places, goes, noise) & ~cloth
    held = goes | _still_held(goes, elsewhere, places - hand[:, None], _opening(seen), noise)
    gap = np.where(cloth, 0.0, np.linalg.norm(places - hand[:, None], axis=2))  # a cloth is everywhere
    near, rows = gap.argmin(1), np.arange(len(path))
    blocked &= ~held.any(1) & (gap <= reach_of(goes, gap, least))[rows, near]
    held[blocked, near[blocked]] = True  # fingers that are on something are on what is near
    return Touching(held, elsewhere & ~held, is_on("joints") & is_on("gripper") & goes.any(1))


def _still_held(
    goes: Bool[np.ndarray, "rows bodies"],
    elsewhere: Bool[np.ndarray, "rows bodies"],
    beside: Float[np.ndarray, "rows bodies 3"],
    opening: Float[np.ndarray, "rows"],
    noise: Float[np.ndarray, "bodies"],
) -> Bool[np.ndarray, "rows bodies"]:
    """What was lifted and is held still: no motion shows it, but neither did the hand leave nor the fingers open."""
    out = np.zeros_like(goes)
    for body, reach in enumerate(np.maximum(HIGHER, SURELY * noise)):
        for last in np.flatnonzero(goes[:-1, body] & ~goes[1:, body]):
            rest = slice(last + 1, last + 1 + _first(goes[last + 1 :, body]))
            off = np.linalg.norm(beside[rest, body] - beside[last, body], axis=1)
            wider = opening[rest] > opening[last] + OPENED
            stays = slice(rest.start, rest.start + _first((off > reach) | wider | ~elsewhere[rest, body]))
            out[stays, body] = True
    return out


def _first(flags: Bool[np.ndarray, "rows"]) -> int:
    """The first row that is so; as many as there are where none is."""
    return int(flags.argmax()) if flags.any() else len(flags)


def _hand(seen: Episode) -> Float[np.ndarray, "rows 3"]:
    """Where the hand is in every row."""
    inputs = [c.name for c in seen.inputs]
    before = seen.actions[:, [inputs.index(f"hand.{a}") for a in AXES]]
    return np.concatenate([before, before[-1:] + seen.actions[-1:, :3]])  # the first drives are the hand's own steps


def _opening(seen: Episode) -> Float[np.ndarray, "rows"]:
    """How wide the fingers are open in every row; 0 where the log does not say."""
    inputs = [c.name for c in seen.inputs]
    if "opening" not in inputs:
        return np.zeros(len(seen.observations))
    after = seen.actions[:, inputs.index("opening")]
    return np.concatenate([after[:1], after])


def _stands_elsewhere(
    places: Float[np.ndarray, "rows bodies 3"],
    goes: Bool[np.ndarray, "rows bodies"],
    noise: Float[np.ndarray, "bodies"],
) -> Bool[np.ndarray, "rows bodies"]:
    """Which bodies stand on something else than at first, if nothing holds them.

    What falls over is lower too: only a body that began above another, nearer to it in the plane than in height, can
    have come off it.
    """
    each = zip(places[:, :, 2].T, goes.T, noise.tolist(), strict=True)
    height, least = (np.stack(x, 1) for x in zip(*(_settled(*one) for one in each), strict=True))
    risen = height - height[:1]
    begun = np.column_stack([places[0, :, :2], height[0]])
    apart = begun[:, None] - begun
    above = apart[..., 2] > np.maximum(np.linalg.norm(apart[..., :2], axis=-1), HIGHER)
    return (risen > least) | ((risen < -least) & above.any(1))


def _settled(
    height: Float[np.ndarray, "rows"], goes: Bool[np.ndarray, "rows"], noise: float
) -> tuple[Float[np.ndarray, "rows"], Float[np.ndarray, "rows"]]:
    """The height of a body, and the least difference that can be told: one beyond tilting and beyond its noise.

    Where nothing moves the body the height is the median over as many rows as that takes, if there are so many.
    """
    told = max(HIGHER, noise)
    rows = int((SURELY * noise / told) ** 2 + 0.5)
    out, least = height.copy(), np.full(len(height), max(HIGHER, SURELY * noise))
    for part in np.split(np.arange(len(goes)), 1 + np.flatnonzero(np.diff(goes))) if rows > 1 else []:
        if not goes[part[0]]:
            width = min(rows, len(part))
            out[part] = median_filter(height[part], width, mode="reflect")
            least[part] = max(told, SURELY * noise / np.sqrt(width))
    return out, least


def shown_places(view: ContactView, seen: Episode) -> Float[np.ndarray, "rows bodies 3"]:
    """Where the log shows every body; of hidden rows the straight line between seen ones."""
    names = [c.name for c in seen.channels]
    columns = [[names.index(f"{body}.{a}") for a in AXES] for body in view.bodies]
    return straight_lines(seen.observations[:, np.ravel(columns)]).reshape(len(seen.observations), -1, 3)


def _words(row: Touching, view: ContactView) -> str:
    bodies = np.array(list(view.bodies))
    held, standing = (" and ".join(bodies[flags]) for flags in row[:2])
    parts = [f"the hand on {held}" + (", pressed against something" if row.pressed else "")] if held else []
    return (
        "; ".join([*parts, *([f"{standing} on something else than at first"] if standing else [])]) or "nothing touches"
    )


def touching_words(found: Readings, segments: Sequence[Segment]) -> list[str]:
    """What touches in most rows of every segment, in words."""
    most = (np.unique(found.touching[s.start : s.end], return_counts=True) for s in segments)
    return [found.words[int(codes[counts.argmax()])] for codes, counts in most]


def regime_of(touching: np.ndarray, impact: int = 3) -> np.ndarray:
    """Free or sustained, with an impact window around each make and break."""
    regime = np.where(touching, SUSTAINED, FREE)
    for change in 1 + np.flatnonzero(np.diff(touching.astype(int))):
        begin = max(0, change - impact // 2)
        regime[begin : change - impact // 2 + impact] = IMPACT
    return regime
