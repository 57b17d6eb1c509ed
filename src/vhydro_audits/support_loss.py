"""Where branches are lost: one task a family, and the particles of a guide that lost one beside gates that kept it."""

from typing import Any

import jax
import numpy as np

from vhydro.episodes import Episode
from vhydro.occlusion import channel_groups
from vhydro_audits.labels.contact import SUPPORTS, touches
from vhydro_audits.support_data import divided, episodes_of, view_of
from vhydro_audits.support_fits import (
    LEVELS,
    REGIMES,
    Stream,
    fitted,
    parts_of,
    seed_keys,
    settings_of,
    stacked,
    units_of,
)
from vhydro_audits.support_records import seed_records
from vhydro_audits.support_runs import Film, Runs, Shot, runs

REGIME = "plain"
TASKS = {"contact": "PickCube", "sawyer-bridge": "bridge"}
METHODS = ("adaptive", "no-support", "two-sided")
FILM_LEVEL = LEVELS.index(0.75)


def loss_records(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of three methods on one task, and in one of each the film of an occluded contact."""
    seeds, task, data = key["seeds"], key["task"], config["data"]
    divisions, tests = zip(*(divided(task, data, seed, config["sensor_noise"]) for seed in range(seeds)), strict=True)
    view, length = view_of(task, data), max(e.steps + 1 for e in episodes_of(task, data))
    test = [[view(e) for e in own] for own in tests]
    groups, batch = channel_groups(test[0][0]), stacked(test, length)
    hiding = {"sensor_noise": config["sensor_noise"], "burst": REGIMES[REGIME].longer * config["burst"]}
    parts = {m: parts_of(fitted(m, REGIME, config, list(divisions), view, length)) for m in METHODS}
    settings = {m: settings_of(m, REGIME, config["particles"], history=True, pareto=True) for m in METHODS}
    keys, units = seed_keys(seeds, Stream.TEST), units_of(divisions, view)
    found = {m: runs(parts[m], settings[m], batch, LEVELS, groups, keys=keys, units=units, **hiding) for m in METHODS}
    valid = np.asarray(batch.valid)
    records = [r for m in METHODS for s in range(seeds) for r in seed_records(key, config, m, found[m], valid, s)]
    shot_of = _shot(found, np.stack([_padded_rows([held(e) for e in own], length) for own in test]))
    if shot_of is None:
        return records
    seed, shot = shot_of
    own = jax.tree.map(lambda x: x[seed : seed + 1], batch)
    for m in METHODS:
        alone = parts[m][seed : seed + 1], settings[m], own, LEVELS, groups
        again = runs(*alone, keys=keys[seed : seed + 1], units=units[seed : seed + 1], shot=shot, **hiding)
        record = next(r for r in records if _is_of(r, m, seed))
        record["film"] = _shown(again, shot, test[seed][shot.episode])
    return records


def _is_of(record: dict[str, Any], method: str, seed: int) -> bool:
    return (record["method"], record["seed"], record["occlusion"]) == (method, seed, LEVELS[FILM_LEVEL])


def _padded_rows(rows: list[np.ndarray], length: int) -> np.ndarray:
    return np.stack([np.pad(r, (0, length - len(r))) for r in rows])


def _shot(found: dict[str, Runs], touching: np.ndarray) -> tuple[int, Shot] | None:
    """The seed, episode and channel that no-support loses for longest in contact while the gates keep it, if any."""

    def lost(method: str) -> np.ndarray:  # (seeds, episodes, channels)
        readings = jax.tree.map(lambda x: x[:, FILM_LEVEL], found[method].readings)
        return (readings.lost & readings.hidden & touching[..., None]).sum(2)

    worth = lost("no-support") - 1000 * (lost("adaptive") + lost("two-sided"))
    if worth.max() <= 0:
        return None
    seed, episode, channel = (int(i) for i in np.unravel_index(int(np.argmax(worth)), worth.shape))
    return seed, Shot(FILM_LEVEL, episode, channel)


def _shown(run: Runs, shot: Shot, episode: Episode) -> dict[str, Any]:
    """A film as plain lists; `lost_at` is the first of the hidden readings that count as lost."""
    rows = episode.steps + 1
    film: Film = jax.tree.map(lambda x: x[0, :rows], run.film)
    lost = np.flatnonzero(run.readings.lost[0, shot.level, shot.episode, :rows, shot.channel] & ~film.seen)
    return {
        "channel": episode.channels[shot.channel].name, "dt": episode.dt,
        "truth": episode.observations[:, shot.channel].tolist(),
        "seen": film.seen.astype(int).tolist(), "particles": film.particles.tolist(),
        "weights": film.weights.tolist(), "contact": held(episode).astype(int).tolist(),
        "lost_at": int(lost[0]) if lost.size else None,
    }  # fmt: skip


def held(episode: Episode) -> np.ndarray:
    """The rows in which the hand touches something that is not a support."""
    touched = np.zeros(episode.steps + 1, bool)
    if episode.contacts:
        for pair, on in touches(episode, threshold=1e-3, minimum_run=2).items():
            touched |= on & ("hand" in pair and SUPPORTS.isdisjoint(pair))
    return touched
