"""What a switching regression hands on: a model to refine, what its modes are called, and how it was chosen."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from jaxtyping import Bool
from numpy import ndarray

from vhydro.episodes import Episode
from vhydro.model import HybridModel

AUTO: Literal["auto"] = "auto"
FEWEST_ROWS = 0.01  # share of the rows below which a mode counts as collapsed
LEAST_MOVE = 1e-6  # no mode is ever impossible


class Tried(NamedTuple):
    """One number of modes: how likely validation logs are, and how many of its modes differ in what they do."""

    modes: int
    validation: float  # log likelihood per row
    distinct: int


class Start(NamedTuple):
    """A model from a switching regression, before FIVO refines it.

    `law` is what its modes obey, where the view is one of mechanics (a `vhydro.laws.Law`): the model is the law's own.
    """

    model: HybridModel
    names: tuple[str, ...]  # of every mode, in words
    tried: tuple[Tried, ...]  # numbers of modes, in order
    collapsed: tuple[int, ...] = ()  # modes that hardly occur, or do nothing else than an earlier one
    couples: Bool[ndarray, "modes things"] | None = None  # what goes with what it is driven by
    law: Any = None
    notes: tuple[str, ...] = ()  # what a user is to know of the logs
    coasting: Any = None  # of a contact view: the model with bodies that move by themselves, and how it sees logs


def refuse_too_few(train: Sequence[Episode], validation: Sequence[Episode]) -> None:
    """Raises unless there is something to learn from and something to choose by."""
    if not train or not validation:
        raise ValueError(
            f"{len(train)} training and {len(validation)} validation logs; expected at least one of each. The second "
            "chooses between starts."
        )


def most_words(taken: int, tried: Sequence[Tried]) -> tuple[str, ...]:
    """What is to be said where the most modes that were tried are those that were taken."""
    if len(tried) < 2 or taken < tried[-1].modes:
        return ()
    return (f"{taken} modes are the most that are tried: there may be more; ask for them, as modes={taken + 1}",)


def best_count(tried: Sequence[Tried]) -> int:
    """The place of the last number of modes that is likelier than the one chosen before it, all of its modes distinct.

    Plain likelihood rises long after regimes are told apart, for further modes split speeds and transients: every mode
    has to earn its place by doing something of its own.
    """
    best = 0
    for i, one in enumerate(tried):
        if one.distinct == one.modes and one.validation > tried[best].validation:
            best = i
    return best
