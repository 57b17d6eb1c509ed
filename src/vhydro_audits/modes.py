"""The modes audit: contact regimes as segments, beside peers that see the same logs. Paper: Exp 2 and 2B."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vhydro.data.dataset import split
from vhydro.episodes import Episode
from vhydro.modes.metrics import scores
from vhydro.modes.segments import run_starts
from vhydro.usage import UsageError, at_least, refuse_unknown
from vhydro.views.contact import contact_view
from vhydro_audits.grid import Group, run_grid
from vhydro_audits.labels import ContactLabeller, ProxyLabeller, fit_contact_labeller, fit_proxy_labeller
from vhydro_audits.labels.proxy import score
from vhydro_audits.modes_conditions import (
    CLEAN,
    HIDDEN,
    LEARNED,
    POLICY,
    Parts,
    changed,
    hidden,
    noisy_logs,
    offered,
    tested,
)
from vhydro_audits.modes_paths import HALF, OURS, PEERS, TOLD, VALIDATION, Found, Logs, Paths, Truth, found_paths
from vhydro_audits.modes_theorem import constants_of, modes_of, stretches, theorem_record
from vhydro_audits.spec import MODES
from vhydro_audits.store import rounded
from vhydro_audits.summary import meta, summary_rows, write_summary
from vhydro_audits.support_data import digest, logs_of

FAMILIES, LABELS, RAW = MODES.families, MODES.known["labels"], MODES.extra
REGIMES = ("free", "impact", "sustained")
SCORES = ("mode_f1", "ari", "change_point_f1", "change_point_f1_5", "purity", "over", "under")
QUICK_TASKS, QUICK_SEEDS = ("PokeCube", "PickCube", "tower"), 2
BINS = 40  # of the proxy's score
PICTURED = ("shown", "truth", "score")  # of one log, for the pictures: the first seed's is enough
FIRST = 100  # seed that is reported; 0 to 9 were looked at while the model was built
FIXED, CHOSEN = "fixed", VALIDATION  # readings: one that is settled in advance, or the one that labels choose
ABLATIONS = OURS[1:]
CEILING = "simulator"  # its own contacts, held against the proxy
DIGITS = 5


@dataclass(frozen=True)
class ModesAuditConfig:
    """`vhydro audit modes`: contact modes found without labels, scored against a proxy and against contact truth."""

    family: Literal["maniskill", "unseen", "new", "sawyer", "all"] = "all"
    """maniskill: the paper's four tasks; unseen: three more; new: six more, on which heights and coasting were settled;
    sawyer: four MuJoCo stand-ins."""
    conditions: tuple[str, ...] = ()
    """In which is learned: clean (tested in full sight, half hidden and, where DATA/noisy has logs, on a noisy policy),
    noise 1 mm, noise 2 mm, noise 5 mm, 10 Hz, 5 logs; all of them if not given."""
    data: Path | None = None
    """Folder with the recorded logs of every task."""
    quick: bool = False
    """One task a family, two seeds, on the shipped sample: under three minutes on two cores, too little to conclude."""
    seeds: int = 20
    """Each divides the logs, hides bodies and starts in its own way."""
    first_seed: int = FIRST
    """0 to 9 were looked at while the model was built."""
    out: Path = Path("results/modes")
    """Where cells, summary and page go."""
    tasks: tuple[str, ...] = ()
    """Of the family; all of them if not given."""
    burst: int = 8
    """Rows over which hiding is smoothed."""
    workers: int | None = None
    """Processes; 0: this one."""
    on: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster; an embedded one if not given."""
    overwrite: bool = False
    """Begin anew where results of another configuration are."""

    def __post_init__(self):
        for name in ("seeds", "burst"):
            at_least(name, getattr(self, name), 1)
        if self.quick and (self.data, self.seeds) != (None, 20):
            raise UsageError(
                f"--quick always runs {QUICK_SEEDS} seeds on the shipped sample; it goes with neither --data nor "
                "--seeds. Leave those out, or leave out --quick."
            )
        refuse_unknown(self.conditions, LEARNED, "condition", " to learn in")
        known = [t for f in self.families for t in FAMILIES[f]]
        refuse_unknown(self.tasks, known, "task", f" in --family {self.family}")

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(FAMILIES) if self.family == "all" else (self.family,)

    def of(self, family: str) -> list[str]:
        """The tasks of a family that are asked for."""
        asked = self.tasks or (QUICK_TASKS if self.quick else FAMILIES[family])
        return [t for t in FAMILIES[family] if t in asked]


def run_modes_audit(config: ModesAuditConfig) -> Path:
    """The path of the audit's page, after every cell was computed or found and a table was printed."""
    from vhydro_audits.pages.modes import write_modes_page

    if config.data is None and not config.quick:
        raise UsageError(
            "a full run needs --data FOLDER with the recorded logs of every task (record them with `vhydro collect`). "
            "For a small run on the shipped sample use --quick."
        )
    tasks = [t for f in config.families for t in config.of(f)]
    data = None if config.data is None else str(config.data)
    if few := [t for t in tasks if len(logs_of(t, data)) < 3]:
        raise ValueError(f"there are too few logs of {', '.join(few)} to divide; expected three. Name other --tasks.")
    if mute := [t for t in tasks if not logs_of(t, data)[0].contacts]:
        raise ValueError(
            f"the logs of {', '.join(mute)} have no contact forces; expected them, to score by. Name other --tasks."
        )
    for peer in ("hmmlearn", "ruptures"):
        if find_spec(peer) is None:
            raise ValueError(f"{peer} is not installed; expected it, for the peers. Run `pip install 'vhydro[peers]'`.")
    logs = {task: digest(list(logs_of(task, data))) for task in tasks}
    plain = {"data": data, "burst": config.burst, "logs": logs}
    results = run_grid(
        groups(config), work, plain, config.out,
        workers=config.workers, on=config.on, address=config.address, overwrite=config.overwrite,
    )  # fmt: skip
    seeds = len({cell["seed"] for cell in results.cells})
    found = summary_rows(MODES, results.cells)
    write_summary(config.out, meta(results, seeds) | {"quick": config.quick}, found)
    page = write_modes_page(config.out)
    print(table(found))
    print(page)
    return page


def groups(config: ModesAuditConfig) -> list[Group]:
    """One group for every task, seed and condition to learn in: all methods see the same logs."""
    out = []
    data = None if config.data is None else str(config.data)
    for seed in range(config.first_seed, config.first_seed + (QUICK_SEEDS if config.quick else config.seeds)):
        for family in config.families:
            for task in config.of(family):
                for learned in offered(family, data, config.conditions):
                    key = {"family": family, "task": task, "seed": seed}
                    cells = [
                        {"experiment": "modes"} | key | {"condition": c} | cell
                        for c in tested(learned, task, data)
                        for cell in cells_of(learned)
                    ]
                    out.append(Group(key | {"learned": learned}, tuple(cells)))
    return out


def cells_of(learned: str) -> list[dict[str, str]]:
    """Methods, labels and readings of what was learned in a condition; ablations are of clean logs alone."""
    out = []
    for method in ("auto", *(ABLATIONS if learned == CLEAN else ()), *PEERS):
        for labels in LABELS:
            for reading in (FIXED, CHOSEN):
                if method != "changes" or reading == CHOSEN:  # it is told the number of changes
                    out.append({"method": method, "labels": labels, "reading": reading})
    return [*out, *({"method": CEILING, "labels": "proxy", "reading": r} for r in (FIXED, CHOSEN))]


# --- one group ------------------------------------------------------------------------------------------------------


class Labels:
    """What test and validation logs are scored against: constants frozen on training and validation logs."""

    def __init__(self, train: Sequence[Episode], validation: Sequence[Episode]):
        self.contact: ContactLabeller = fit_contact_labeller(train)
        self.proxy: ProxyLabeller = fit_proxy_labeller([self.contact(e) for e in validation])

    def __call__(self, episodes: Sequence[Episode]) -> dict[str, Paths]:
        """The labels of every kind."""
        labelled = [self.proxy(self.contact(e)) for e in episodes]
        return {name: [np.asarray(e.labels[name], np.int64) for e in labelled] for name in LABELS}

    def classes(self, name: str) -> tuple[str, ...]:
        """The classes of one kind of label."""
        return self.contact.names if name == "configuration" else REGIMES


def work(key: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of every method on one division of one task's logs."""
    task, data, seed, learned = key["task"], config["data"], key["seed"], key["learned"]
    logs = logs_of(task, data)
    parts = [list(part) for part in split(logs, seed=seed).of(logs)]
    labels, view = Labels(parts[0], parts[1]), contact_view([e.unlabelled() for e in parts[0]])
    train, held, tests = ([e.unlabelled() for e in part] for part in parts)
    own = changed(learned, Parts(train, held, tests, labels(parts[1]), labels(parts[2])), view, seed)
    test, truth = {learned: own.test}, {VALIDATION: own.held_labels, learned: own.test_labels}
    if learned == CLEAN:
        test[HIDDEN] = [hidden(e, view, HALF, config["burst"], seed, i) for i, e in enumerate(own.test)]
        truth[HIDDEN] = own.test_labels
        if (noisy := noisy_logs(task, data)) is not None:
            test[POLICY], truth[POLICY] = [e.unlabelled() for e in noisy], labels(list(noisy))
    count = len(labels.contact.configurations)
    found = found_paths(Logs(own.train, own.validation, test), count, truth, seed, ablations=learned == CLEAN)
    place = {"experiment": "modes", **{k: key[k] for k in ("family", "task", "seed")}}
    out = []
    for condition in test:
        for cell in cells_of(learned):
            record = place | {"condition": condition} | cell | _record(found, truth, condition, cell)
            if (cell["method"], cell["reading"]) == ("auto", FIXED):
                record |= _shown(record, found, truth, labels, own.test[0].dt, parts[2] if condition == CLEAN else None)
            out.append(record)
    kept = [{k: v for k, v in r.items() if seed == FIRST or k not in PICTURED} for r in out]
    return rounded(kept, DIGITS)


def _record(found: Found, truth: Truth, condition: str, cell: dict[str, str]) -> dict[str, Any]:
    """The scores of one method's paths, read as was settled in advance or as validation logs say."""
    method, name = cell["method"], cell["labels"]
    if method == CEILING:
        held, tested_ = (_simulated(truth[place]) for place in (VALIDATION, condition))
    else:
        told = name if method == "changes" else ""
        if cell["reading"] == CHOSEN and (condition, method, TOLD) in found.paths:
            told = TOLD
        held, tested_ = found.paths[VALIDATION, method, told], found.paths[condition, method, told]
    labels = truth[condition][name]
    if cell["reading"] == FIXED:
        reading = settled(method, name)
    else:
        reading = max(held, key=lambda r: _agreement(held[r], truth[VALIDATION][name]))
    paths, raw = tested_[reading], _metrics(tested_["modes"], labels)
    out: dict[str, Any] = _metrics(paths, labels) | {f"raw_{n}": raw[n] for n in SCORES if f"raw_{n}" in RAW}
    out |= {"read": reading, "modes": len(np.unique(np.concatenate(tested_["modes"])))}
    return out | {"confusion": _confusion(paths, labels), "shown": _runs(paths[0])}


def settled(method: str, labels: str) -> str:
    """The reading that is fixed in advance: which bodies touch, or the regime; a peer's modes have no words."""
    if labels != "configuration":
        return "regime"
    return "touching" if method in OURS else "modes"


def _simulated(truth: dict[str, Paths]) -> dict[str, Paths]:
    """The simulator's contacts as a method's readings."""
    touches = [np.minimum(x, 1) for x in truth["configuration"]]
    return {"modes": truth["configuration"], "contact": touches, "regime": truth["regime"]}


def _agreement(paths: Paths, labels: Paths) -> float:
    """What a reading is chosen by, the earlier of equals: its classes, its rows and its changes count alike."""
    found = _metrics(paths, labels)
    return found["mode_f1"] + found["ari"] + found["change_point_f1"]


def _metrics(found: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, float]:
    s = scores(found, labels)
    near, wide = s.change_points[2].f1, s.change_points[5].f1
    return dict(
        zip(SCORES, (s.mode_f1, s.ari, near, wide, s.purity, s.over_segmentation, s.under_segmentation), strict=True)
    )


def _confusion(paths: Paths, labels: Paths) -> list[list[int]]:
    path, label = np.concatenate(paths), np.concatenate(labels)
    out = np.zeros((path.max() + 1, label.max() + 1), int)
    np.add.at(out, (path, label), 1)
    return out.tolist()


def _runs(path: np.ndarray) -> dict[str, Any]:
    starts = run_starts(path)
    return {"rows": len(path), "starts": starts.tolist(), "values": path[starts].tolist()}


def _shown(record, found: Found, truth: Truth, labels: Labels, dt: float, test: Sequence[Episode] | None):
    """What pictures need: the truth of the first test log, the proxy's score, and Thm 2 on held-out segments."""
    name, condition = record["labels"], record["condition"]
    out: dict[str, Any] = {"words": list(found.ours.names), "classes": list(labels.classes(name)), "dt": dt}
    out["truth"] = _runs(truth[condition][name][0])
    if name == "proxy" and test is not None:
        out |= _scored(labels.proxy, test, truth[condition]["regime"])
    if name == "configuration" and condition in (CLEAN, HIDDEN):
        out["theorem"] = _theorem(found, truth, condition)
    return out


def _scored(proxy: ProxyLabeller, test: Sequence[Episode], regimes: Paths) -> dict[str, Any]:
    """The proxy's score of the first test log, and its histogram over all of them for every true regime."""
    found = [score(e, proxy) for e in test]
    values, regime = np.log10(np.maximum(np.concatenate(found), 1e-6)), np.concatenate(regimes)
    edges = np.linspace(values.min(), values.max() + 1e-9, BINS + 1)
    counts = {n: np.histogram(values[regime == i], edges)[0].tolist() for i, n in enumerate(REGIMES)}
    histogram = {"edges": edges.tolist(), "counts": counts}
    return {"thresholds": list(proxy.thresholds), "histogram": histogram, "score": found[0].tolist()}


def _theorem(found: Found, truth: Truth, condition: str) -> dict[str, Any]:
    held, name = truth[VALIDATION]["configuration"], "configuration"
    mode_of = modes_of(found.paths[VALIDATION, "auto", ""]["modes"], held)
    constants = constants_of(found.ours, found.seen[VALIDATION], stretches(held, mode_of))
    own = truth[condition][name]
    every = sum(len(run_starts(path)) for path in own)
    return theorem_record(
        found.ours, found.seen[condition], found.beliefs[condition], stretches(own, mode_of), constants, every
    )


# --- the summary ----------------------------------------------------------------------------------------------------


def table(found: Sequence[dict[str, Any]]) -> str:
    """The families' rows as text."""
    head = "".join(f"{name:>7}" for name in ("F1", "ARI", "cp ±2", "cp ±5"))
    lines = [f"{'family':11}{'condition':14}{'labels':14}{'reading':11}{'method':11}{head}{'purity':>8}"]
    for r in (r for r in found if "task" not in r):
        numbers = "".join(f"{r[m]:7.3f}" for m in SCORES[:4]) + f"{r['purity']:8.3f}"
        place = f"{r['family']:11}{r['condition']:14}{r['labels']:14}{r['reading']:11}{r['method']:11}"
        lines.append(f"{place}{numbers}")
    return "\n".join(lines)
