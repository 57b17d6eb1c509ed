"""The modes audit: contact regimes as segments, beside peers that see the same logs. Paper: Exp 2 and 2B."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from vhydro.audits.grid import Group, run_grid
from vhydro.audits.store import rounded
from vhydro.audits.summary import meta, published, published_row, rows, write_summary
from vhydro.audits.support_data import PUBLISHED_TASKS as NAMES
from vhydro.audits.support_data import logs_of
from vhydro.baselines.segmenters import ar_hmm, changes, gaussian_hmm, slds
from vhydro.data.dataset import split
from vhydro.episodes import Episode
from vhydro.labels import fit_contact_labeller
from vhydro.labels.contact import regime_of
from vhydro.labels.proxy import differences, fit_proxy_labeller
from vhydro.modes.learn import AUTO, Learned, learned
from vhydro.modes.metrics import change_points, scores
from vhydro.modes.posterior import mode_posterior
from vhydro.modes.view import MACHINE, ContactView, contact_view
from vhydro.occlusion import occlude

FAMILIES = {
    "maniskill": ("PushCube", "PokeCube", "PullCubeTool", "PegInsertionSide"),
    "unseen": ("PickCube", "StackCube", "PullCube"),  # looked at by nobody while the channels were chosen
    "sawyer-bridge": ("tower", "laundry", "search", "bridge"),
}
PUBLISHED_TASKS = {**{task: f"{task}-v1" for task in FAMILIES["maniskill"]}, **NAMES}
LEVELS = (0.0, 0.5)  # of the test logs; every method learns in full sight
LABELS = ("proxy", "regime", "configuration")
# The modes as they are, and two readings of them by what each couples: in touch or not, and free, impact, sustained.
READINGS = ("full", "full-contact", "full-regime")
METHODS = (*READINGS, "auto", "no-mode", "hmm", "ar-hmm", "slds", "changes")
METRICS = ("mode_f1", "ari", "change_point_f1", "change_point_f1_5", "purity", "over", "under", "modes")
PUBLISHED_LABELS = "proxy"
DIGITS = 5


@dataclass(frozen=True)
class ModesAuditConfig:
    """`vhydro audit modes`: contact modes found without labels, scored against a proxy and against contact truth."""

    family: Literal["maniskill", "unseen", "sawyer", "all"] = "all"
    """maniskill: the paper's four tasks; unseen: three that nobody tuned on; sawyer: four MuJoCo stand-ins."""
    data: Path | None = None
    """Folder with the recorded logs of every task; the shipped sample, too small to conclude from, if not given."""
    seeds: int = 20
    """Each divides the logs, hides bodies and starts in its own way."""
    out: Path = Path("results/modes")
    """Where cells and summary go."""
    tasks: tuple[str, ...] = ()
    """Of the family; all of them if not given."""
    burst: int = 8
    """Rows over which hiding is smoothed."""
    workers: int | None = None
    """Processes; 0: this one."""
    fresh: bool = False
    """Begin anew where results of another configuration are."""

    def __post_init__(self):
        for name in ("seeds", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1.")
        known = [t for f in self.families for t in FAMILIES[f]]
        if unknown := [t for t in self.tasks if t not in known]:
            raise ValueError(f"no task {', '.join(unknown)} in family {self.family}; there are {', '.join(known)}.")

    @property
    def families(self) -> tuple[str, ...]:
        named = {"maniskill": ("maniskill",), "unseen": ("unseen",), "sawyer": ("sawyer-bridge",)}
        return named.get(self.family, tuple(FAMILIES))


def run_modes_audit(config: ModesAuditConfig) -> Path:
    """The path of the summary, after every cell was computed or found and a table was printed."""
    asked = [t for f in config.families for t in FAMILIES[f] if not config.tasks or t in config.tasks]
    if config.data is None and (few := [t for t in asked if len(logs_of(t, None)) < 3]):
        raise ValueError(
            f"the shipped sample of {', '.join(few)} has too few logs to divide; expected three. Record logs with "
            "`vhydro collect` and give their folder as --data, or name other --tasks."
        )
    plain = {"data": None if config.data is None else str(config.data), "burst": config.burst}
    results = run_grid(groups(config), work, plain, config.out, workers=config.workers, fresh=config.fresh)
    seeds = len({cell["seed"] for cell in results.cells})
    found = summary_rows(results.cells)
    path = write_summary(config.out, meta(results, seeds), found)
    print(table(found))
    print(path)
    return path


def groups(config: ModesAuditConfig) -> list[Group]:
    """One group for every task and seed: all methods see the same logs."""
    out = []
    for seed in range(config.seeds):
        for family in config.families:
            for task in (t for t in FAMILIES[family] if not config.tasks or t in config.tasks):
                key = {"family": family, "task": task, "seed": seed}
                places = [(o, m, n) for o in LEVELS for m in METHODS for n in LABELS]
                cells = [{"occlusion": o, "method": m, "labels": n} for o, m, n in places]
                out.append(Group(key, tuple({"experiment": "modes"} | key | cell for cell in cells)))
    return out


# --- one group ------------------------------------------------------------------------------------------------------


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of every method on one division of one task's logs."""
    logs, seed = logs_of(key["task"], config["data"]), key["seed"]
    train, validation, test = (list(part) for part in split(logs, seed=seed).of(logs))
    truth, count = _labels(train, validation, test)
    bare, held, unseen = ([e.unlabelled() for e in part] for part in (train, validation, test))
    paths = found_paths(bare, held, unseen, count, truth["configuration"], seed, config["burst"])
    out = []
    for (level, method), found in paths.items():
        modes = len(np.unique(np.concatenate(found)))
        for name, labels in truth.items():
            place = {"experiment": "modes", **key, "occlusion": level, "method": method, "labels": name}
            out.append(place | _metrics(found, labels) | {"modes": modes})
    return rounded(out, DIGITS)


def _labels(train, validation, test) -> tuple[dict[str, list[np.ndarray]], int]:
    """Test labels of every kind, constants frozen on training and validation logs; and how many configurations."""
    contact = fit_contact_labeller(train)
    proxy = fit_proxy_labeller([contact(e) for e in validation])
    labelled = [proxy(contact(e)) for e in test]
    return {n: [np.asarray(e.labels[n], np.int64) for e in labelled] for n in LABELS}, len(contact.configurations)


def _metrics(found: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
    s = scores(found, labels)
    near, wide = s.change_points[2].f1, s.change_points[5].f1
    return {
        "mode_f1": s.mode_f1, "ari": s.ari, "change_point_f1": near, "change_point_f1_5": wide, "purity": s.purity,
        "over": s.over_segmentation, "under": s.under_segmentation,
    }  # fmt: skip


Paths = dict[tuple[float, str], list[np.ndarray]]


def found_paths(
    train: list[Episode],
    validation: list[Episode],
    test: list[Episode],
    count: int,
    truth: Sequence[np.ndarray],
    seed: int,
    burst: int,
) -> Paths:
    """The path of every test log by every method at every level; `truth` tells `changes` how many there are."""
    view = contact_view(train)
    seen = {level: [_hidden(view(e), level, burst, seed, i) for i, e in enumerate(test)] for level in LEVELS}
    out: Paths = {}
    asked: dict[str, int | Literal["auto"]] = {"full": count, "auto": AUTO, "no-mode": 1}
    for name, modes in asked.items():
        found = learned(train, validation, modes, seed=seed)
        for level, logs in seen.items():
            paths = [mode_posterior(found.model, e).path for e in logs]
            read = zip(READINGS, _readings(found, paths), strict=True) if name == "full" else ((name, paths),)
            out |= {(level, reading): path for reading, path in read}
    told = [len(change_points(t)) for t in truth]
    shown = [view(e) for e in train]
    for level, logs in seen.items():
        bright = [_bridged(e) for e in logs]
        for name, peer in _peers(view, train, shown, test, bright, count, told, seed).items():
            out[level, name] = peer()
    return out


def _readings(found: Learned, paths: list[np.ndarray]) -> tuple[list[np.ndarray], ...]:
    """The modes, whether anything is in touch, and the regime, which has a window around every make and break."""
    touching = [found.touching[path] for path in paths]
    return paths, [t.astype(int) for t in touching], [regime_of(t) for t in touching]


def _peers(view: ContactView, train, shown, test, bright, count: int, told: list[int], seed: int):
    """Every peer as a call; all see what ours sees, hidden readings bridged by straight lines."""
    inputs = [e.actions for e in shown], [e.actions for e in bright]
    places = [e.observations for e in shown], [e.observations for e in bright]
    steps = [_moved(e) for e in shown], [_moved(e) for e in bright]
    kinematic = _kinematics(view, train, shown), _kinematics(view, test, bright)
    calls: dict[str, Callable[[], list[np.ndarray]]] = {
        "hmm": lambda: gaussian_hmm(*kinematic, count, seed=seed),
        "ar-hmm": lambda: ar_hmm(*places, count, seed=seed, inputs=inputs),
        "slds": lambda: slds(*places, count, seed=seed, inputs=inputs),
        "changes": lambda: changes(*steps, count, told, seed=seed),
    }
    return calls


def _hidden(seen: Episode, level: float, burst: int, seed: int, number: int) -> Episode:
    """The log with bodies hidden in bursts; the machine's own encoders are never in the dark."""
    if not level:
        return seen
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), number)
    bodies = [c.name for c in seen.channels if c.group not in MACHINE]
    dark = occlude(seen.select(bodies), level, burst=burst, key=key).observations
    return replace(seen, observations=np.concatenate([dark, seen.observations[:, len(bodies) :]], 1))


def _bridged(seen: Episode) -> Episode:
    """The log with straight lines where readings are hidden."""
    values, rows_ = seen.observations.copy(), np.arange(seen.steps + 1)
    for column in values.T:
        known = ~np.isnan(column)
        column[~known] = np.interp(rows_[~known], rows_[known], column[known]) if known.any() else 0.0
    return replace(seen, observations=values)


def _moved(seen: Episode) -> np.ndarray:
    """Displacements and drives of every row, the first's repeated."""
    step = np.concatenate([np.diff(seen.observations, axis=0), seen.actions], 1)
    return np.concatenate([step[:1], step]) if len(step) else np.zeros((1, 2 * len(seen.channels)))


def _kinematics(view: ContactView, logs: Sequence[Episode], seen: Sequence[Episode]) -> list[np.ndarray]:
    """The paper's features: how far objects, the end effector and the action moved, in logarithms."""
    out = []
    for raw, shown in zip(logs, seen, strict=True):
        columns = [f"{b}.{a}" for b in view.bodies for a in "xyz"]
        values = raw.observations.copy()
        names = [c.name for c in raw.channels]
        values[:, [names.index(n) for n in columns]] = shown.observations[:, : len(columns)]
        out.append(np.log(differences(replace(raw, observations=values)).T + 1e-6))
    return out


# --- the summary ----------------------------------------------------------------------------------------------------


def summary_rows(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every family at every level against every kind of label, then every task; published rows are of the proxy."""
    shared = ("experiment", "family", "occlusion", "labels", "method")
    whole = rows(cells, shared, METRICS)
    single = [r | {"experiment": "modes-by-task"} for r in rows(cells, (*shared, "task"), METRICS)]
    return [r | {"published": _published(r)} for r in whole + single]


def _published(row: dict[str, Any]) -> dict[str, Any] | None:
    """The paper's row beside ours: it has full sight and the proxy alone."""
    if row["labels"] != PUBLISHED_LABELS or row["occlusion"]:
        return None
    place = {k: v for k, v in row.items() if k != "occlusion"}
    return published_row(place | ({"task": PUBLISHED_TASKS.get(row["task"])} if "task" in row else {}), published())


def table(found: Sequence[dict[str, Any]]) -> str:
    """The families' rows as text."""
    head = "".join(f"{name:>7}" for name in ("F1", "ARI", "cp ±2", "cp ±5"))
    lines = [f"{'family':14}{'hidden':>7}  {'labels':14}{'method':14}{head}{'purity':>8}"]
    for r in (r for r in found if "task" not in r):
        numbers = "".join(f"{r[m]:7.3f}" for m in METRICS[:4]) + f"{r['purity']:8.3f}"
        lines.append(f"{r['family']:14}{100 * r['occlusion']:6.0f}%  {r['labels']:14}{r['method']:14}{numbers}")
    return "\n".join(lines)
