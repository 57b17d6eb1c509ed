"""Which attempts become episodes, and when to give up."""

import itertools
from collections.abc import Callable

PATIENCE = 20  # attempts in a row that may come to nothing


def collected(
    play: Callable[[int], bool | None], keep: Callable[[], int], say: Callable[..., None],
    *, episodes: int, seed: int, successes_only: bool,
) -> dict:  # fmt: skip
    """Lengths and successes of the episodes that were kept, and the number of attempts, one seed each.

    `play` tells whether the episode of a seed succeeded, or None where there was nothing to play; `keep` writes the
    episode just played and tells its length.
    """
    lengths, successes, vain = [], [], 0
    for attempts in itertools.count(1):
        number = seed + attempts - 1
        success = play(number)
        if success or (success is False and not successes_only):
            lengths.append(keep())
            successes.append(success)
            vain = 0
        else:
            vain += 1
        say("attempt", seed=number, success=success, done=len(lengths))
        if len(lengths) == episodes:
            return {"attempts": attempts, "lengths": lengths, "successes": successes}
        if vain == PATIENCE:
            raise ValueError(
                f"{vain} attempts in a row came to nothing (seeds {number - vain + 1} to {number}); nothing was "
                "written. Try another --seed."
            )
    raise AssertionError("seeds do not end")
