"""What modes say of holding, borne out by where hand and bodies go: what is held keeps its distance to the hand.

A mode is of many logs, and couples a body in every row it is given to. Where the hand goes far meanwhile and the body
stays, where the hand leaves it behind, or is far beyond where it held it for longest, the body is not in that hand. Nor
is a hand held back that is told little, or that does as it is told.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float

from vhydro.modes.segments import run_starts

STAYS = 0.15  # of how far the hand goes: a body that goes less is not with it
LEAVES = 0.7  # of how far the hand goes: where their distance grows by more, it leaves the body
BEYOND = 2.0  # times the distance at which it was held for longest: nothing is held there

SHORT = 0.5  # of how far it goes elsewhere by the same command: a hand that is held back goes less
TOLD = 0.5  # of the usual size of a command: one below says little, for an arm that stands still is a bit off anyway


def borne_out(
    goes: Bool[np.ndarray, "rows bodies"],
    places: Float[np.ndarray, "rows bodies 3"],
    hand: Float[np.ndarray, "rows 3"],
    least: Float[np.ndarray, "bodies"],
) -> Bool[np.ndarray, "rows bodies"]:
    """The rows in which bodies go with the hand, less those that their paths speak against.

    `least` is how far a body has to go to tell, in metres.
    """
    out, gap = goes.copy(), np.linalg.norm(places - hand[:, None], axis=2)
    for body, far in enumerate(least.tolist()):
        for start, end in _runs(goes[:, body]):
            rows = slice(max(start - 1, 0), end)  # a row is of the step that led to it
            if _stays(places[rows, body], hand[rows], far):
                out[start:end, body] = False
            else:
                out[end - _leaving(gap[rows, body], hand[rows], far) : end, body] = False
    reach = reach_of(out, gap, least)
    for body in range(len(reach)):
        for start, end in _runs(out[:, body]):
            out[start:end, body] &= gap[start:end, body].min() <= reach[body]
    return out


def reach_of(
    goes: Bool[np.ndarray, "rows bodies"], gap: Float[np.ndarray, "rows bodies"], least: Float[np.ndarray, "bodies"]
) -> Float[np.ndarray, "bodies"]:
    """How far the hand may be from each body where it is on it; of one that it never held, as of any other."""
    reach = np.full(len(least), np.nan)
    for body in np.flatnonzero(goes.any(0)):
        start, end = max(_runs(goes[:, body]), key=lambda run: run[1] - run[0])
        reach[body] = BEYOND * gap[start:end, body].max() + least[body]
    known = reach[~np.isnan(reach)]
    return np.where(np.isnan(reach), known.max() if len(known) else np.inf, reach)


def falls_short(
    held_back: Bool[np.ndarray, "rows"], told: Float[np.ndarray, "steps axes"], went: Float[np.ndarray, "steps axes"]
) -> Bool[np.ndarray, "rows"]:
    """The rows in which a hand is held back, less stretches in which it is told little or does as it is told.

    Steps in which the hand is not seen say nothing.
    """
    seen = ~np.isnan(told + went).any(1)
    asked, done = (np.where(seen, (told * x).sum(1), 0.0) for x in (told, went))
    usual, free = np.sqrt(asked.mean()) if len(asked) else 0.0, ~held_back[1:]
    if not asked[free].any():
        return held_back
    follows, out = done[free].sum() / asked[free].sum(), held_back.copy()
    if follows <= 0:  # a hand that is not seen to follow says nothing by falling short
        return held_back
    for start, end in _runs(held_back):
        steps = slice(max(start - 1, 0), end - 1)  # a row is of the step that led to it
        enough = asked[steps].sum() > (TOLD * usual) ** 2 * (end - start)
        out[start:end] = enough and done[steps].sum() < SHORT * follows * asked[steps].sum()
    return out


def _runs(flags: Bool[np.ndarray, "rows"]) -> Iterator[tuple[int, int]]:
    """Where each stretch of rows that are so begins and ends."""
    starts = run_starts(flags).tolist()
    return ((start, end) for start, end in pairwise([*starts, len(flags)]) if flags[start])


def _stays(place: Float[np.ndarray, "rows 3"], hand: Float[np.ndarray, "rows 3"], least: float) -> bool:
    """Whether a body is where it was when the hand has gone furthest."""
    gone, went = (np.linalg.norm(path - path[0], axis=1) for path in (place, hand))
    furthest = went.argmax()
    return bool(went[furthest] > least and gone[furthest] < STAYS * went[furthest])


def _leaving(gap: Float[np.ndarray, "rows"], hand: Float[np.ndarray, "rows 3"], least: float) -> int:
    """The number of last rows in which the hand leaves the body behind."""
    grown, gone = np.diff(gap), np.linalg.norm(np.diff(hand, axis=0), axis=1)
    grown = np.minimum(grown, gone)  # what goes away by itself is not left behind
    until_end = np.cumsum((grown - LEAVES * gone)[::-1])
    if not len(until_end) or until_end.max() <= 0:
        return 0
    rows = int(until_end.argmax()) + 1
    return rows if grown[-rows:].sum() > least else 0
