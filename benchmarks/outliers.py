"""Wild readings and actions: how soon the belief is back, and whether anything was certified until then.

Every stream is a log of a system with its true model and one fault: a size, a sign, one row or ten in a row, in one
channel of the observations or of the actions, begun at random. The filter is the default one with 64 particles, in two
engines: `exact` where the modes are linear, `linearised` where they are not (which never certifies). A size is counted
in noise levels of the channel; an action has none, and is counted in root mean squares of its channel, which is also
the model's unit of it. An action that is bad at row t acts from row t + 1 on: those are its faulty rows.

Off, at a row: a coordinate of the belief's mean is more than 3 standard deviations (those of both beliefs together)
from that of the same filter, with the same key, on the log without the fault. Back: not off at any later row, to the
end of the log. `steps` are those from the last faulty row to the first row at which the belief is back; 0: it is never
off after the last faulty row. `certified` is the share of certified steps among those from the first faulty row until
the belief is back, and at least to the last faulty row. `back_strict` counts the deviations of the clean belief alone.
`caught` is the share of faulty rows that were taken for faults: 10 noise levels may be within what the belief expects.
Rows `instead: hidden` have NaN for the wild readings, which is the best a filter could make of them.

Writes `results/outliers.json`. Seeds from 100 on; seeds 0 to 9 were looked at.
"""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from path_systems import systems
from provenance import provenance
from vhydro.episodes import Episode
from vhydro.filter import FilterSettings, filter_episodes
from vhydro.filter.run import Belief
from vhydro.model import HybridModel

OUT = Path(__file__).parent / "results" / "outliers.json"
SIZES, KINDS, BURSTS = (10.0, 1e2, 1e3, 1e5, 1e10, 1e30), ("observation", "action"), (1, 10)
ENGINES = {"exact": ("three modes", "block"), "linearised": ("pendulum", "pushing")}
SETTINGS = FilterSettings(particles=64)
ROWS, AFTER = 64, 12  # rows of the shortest logs, and those that follow every fault
WITHIN, DEVIATIONS, LARGE = 5, 3.0, 1e2  # the claim: steps, and the size from which a fault has to be seen as one


class Fault(NamedTuple):
    """What goes wrong in one stream: `count` rows from `begin` on are off by `sign · size` units of a channel."""

    kind: str
    size: float
    sign: int
    count: int
    channel: int
    begin: int  # row of the observations, or of the actions

    @property
    def rows(self) -> slice:
        """The rows of the belief that are faulty."""
        begin = self.begin + (self.kind == "action")
        return slice(begin, begin + self.count)


class Course(NamedTuple):
    """How one stream went on from its fault."""

    steps: int
    strict: int  # the same by the clean belief's deviations alone
    certified: int
    uncertain: int  # steps that should not have been certified
    caught: int  # faulty rows that were taken for faults
    finite: bool
    negative: bool  # a variance is


class StreamResult(NamedTuple):
    system: str
    engine: str
    number: int
    fault: Fault
    course: Course
    hidden: Course  # with NaN for the wild readings


def standardised(model: HybridModel, logs: list[Episode]) -> HybridModel:
    """The same model with the actions' root mean squares as their unit."""
    unit = np.sqrt(np.mean(np.concatenate([log.actions for log in logs]) ** 2, axis=0))
    unit = jnp.asarray(unit, model.dtype)
    return eqx.tree_at(lambda m: (m.action_scale, m.flow.port), model, (unit, model.flow.port * unit))


def faults(model: HybridModel, logs: list[Episode], rng: np.random.Generator) -> list[Fault]:
    """A fault for every log: sizes, kinds and bursts in turn, everything else at random."""
    cells = itertools.cycle(itertools.product(SIZES, KINDS, BURSTS))
    out = []
    for log, (size, kind, count) in zip(logs, cells, strict=False):
        width = len(model.channels) if kind == "observation" else model.inputs
        begin = int(rng.integers(0, len(log.actions) - AFTER - count))
        out.append(Fault(kind, size, int(rng.choice((-1, 1))), count, int(rng.integers(width)), begin))
    return out


def spoiled(model: HybridModel, log: Episode, fault: Fault) -> Episode:
    """The log with the fault."""
    unit = model.action_scale if fault.kind == "action" else model.emission.channel_noise * model.scale
    wild = fault.sign * fault.size * float(unit[fault.channel])
    values = (log.actions if fault.kind == "action" else log.observations).copy()
    values[fault.begin : fault.begin + fault.count, fault.channel] += wild
    return replace(log, **{"actions" if fault.kind == "action" else "observations": values})


def hidden(log: Episode, fault: Fault) -> Episode:
    """The log with nothing where the fault's readings would be."""
    seen = log.observations.copy()
    if fault.kind == "observation":
        seen[fault.rows, fault.channel] = np.nan
    return replace(log, observations=seen)


def steps_until_back(out: Belief, clean: Belief, variance: np.ndarray, end: int) -> int:
    near = np.abs(out.mean - clean.mean) <= DEVIATIONS * np.sqrt(np.maximum(variance, 0))
    off = np.flatnonzero(~near[end:].all(-1))
    return int(off[-1]) + 2 if off.size else 0


def course(out: Belief, clean: Belief, fault: Fault) -> Course:
    """How a stream went on, beside the same stream without the fault."""
    begin, end = fault.rows.start, fault.rows.stop
    steps = steps_until_back(out, clean, clean.variance + out.variance, end)
    certified = out.record.certified[begin : end + max(steps - 1, 0)]
    told = jax.tree.leaves((out.moments, out.record.log_normaliser, out.log_evidence))
    return Course(
        steps,
        steps_until_back(out, clean, clean.variance, end),
        int(certified.sum()),
        len(certified),
        int(((out.record.outliers > 0) | out.record.refused)[fault.rows].sum()),
        all(np.isfinite(leaf).all() for leaf in told),
        bool((out.variance < 0).any()),
    )


def stream_results(system: str, engine: str, model: HybridModel, logs: list[Episode], seed: int) -> list[StreamResult]:
    """Every stream of one system; runs that are compared use the same random numbers."""
    model = standardised(model, logs)
    placed = faults(model, logs, np.random.default_rng(seed))
    pairs = list(zip(logs, placed, strict=True))
    clean, wild, without = (
        filter_episodes(model, some, key=jax.random.key(seed), settings=SETTINGS)
        for some in (logs, [spoiled(model, *pair) for pair in pairs], [hidden(*pair) for pair in pairs])
    )
    return [
        StreamResult(system, engine, i, fault, course(wild[i], clean[i], fault), course(without[i], clean[i], fault))
        for i, fault in enumerate(placed)
    ]


def row(streams: list[StreamResult], courses: list[Course], **cell) -> dict:
    steps = np.array([c.steps for c in courses])
    return cell | {
        "streams": len(courses), "back": float(np.mean(steps <= WITHIN)),
        "back_strict": float(np.mean([c.strict <= WITHIN for c in courses])),
        "median_steps": float(np.median(steps)), "most_steps": int(steps.max()),
        "certified": sum(c.certified for c in courses) / sum(c.uncertain for c in courses),
        "streams_certified": sum(c.certified > 0 for c in courses),
        "caught": sum(c.caught for c in courses) / sum(s.fault.count for s in streams),
        "not_finite": sum(not c.finite for c in courses), "negative_variance": sum(c.negative for c in courses),
    }  # fmt: skip


def summary(every: list[StreamResult]) -> list[dict]:
    """A row for every engine, kind, burst and size, and one for hidden readings."""
    rows = []
    for engine, kind, count in itertools.product(ENGINES, KINDS, BURSTS):
        alike = [s for s in every if (s.engine, s.fault.kind, s.fault.count) == (engine, kind, count)]
        cell = {"engine": engine, "kind": kind, "burst": count}
        for size in SIZES:
            some = [s for s in alike if s.fault.size == size]
            rows.append(row(some, [s.course for s in some], **cell, size=size))
        if kind == "observation":
            rows.append(row(alike, [s.hidden for s in alike], **cell, instead="hidden"))
    return rows


def failures(every: list[StreamResult]) -> list[str]:
    """The large faults that break the claim, each in words."""
    out = []
    for system, _, number, fault, c, _ in every:
        if fault.size >= LARGE and (c.steps > WITHIN or c.certified or not c.finite or c.negative):
            extra = ", not finite" * (not c.finite) + ", negative variance" * c.negative
            out.append(
                f"{system} {number}: {fault.kind} {fault.channel}, {fault.sign * fault.size:+.0e} from row "
                f"{fault.begin} for {fault.count}: {c.steps} steps, {c.certified} of {c.uncertain} certified{extra}"
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--streams", type=int, default=120, help="of every system; 24 cells take turns")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    simulated, every = systems(options.streams, ROWS, options.seed), []
    for engine, names in ENGINES.items():
        for name in names:
            every += stream_results(name, engine, *simulated[name], options.seed)
    rows, broken = summary(every), failures(every)
    for one in rows:
        print(json.dumps(one))
    print(*broken, sep="\n")
    large = sum(s.fault.size >= LARGE for s in every)
    print(f"{len(every)} streams, {large} with a fault of {LARGE:g} and more, of which {len(broken)} break the claim")
    found = {
        "streams": len(every), "large_faults": large, "broken": len(broken),
        "provenance": provenance(seed=options.seed, particles=SETTINGS.count), "rows": rows, "failures": broken,
    }  # fmt: skip
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
