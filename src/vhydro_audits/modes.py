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
from vhydro_audits.grid import Group, run_grid
from vhydro_audits.labels import ContactLabeller, ProxyLabeller, fit_contact_labeller, fit_proxy_labeller
from vhydro_audits.labels.proxy import score
from vhydro_audits.modes_paths import LEVELS, METHODS, VALIDATION, Found, Logs, Paths, Truth, found_paths
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
DIGITS = 5


@dataclass(frozen=True)
class ModesAuditConfig:
    """`vhydro audit modes`: contact modes found without labels, scored against a proxy and against contact truth."""

    family: Literal["maniskill", "unseen", "sawyer", "all"] = "all"
    """maniskill: the paper's four tasks; unseen: three that nobody tuned on; sawyer: four MuJoCo stand-ins."""
    data: Path | None = None
    """Folder with the recorded logs of every task."""
    quick: bool = False
    """One task a family, two seeds, on the shipped sample: under three minutes on two cores, too little to conclude."""
    seeds: int = 20
    """Each divides the logs, hides bodies and starts in its own way."""
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
        known = [t for f in self.families for t in FAMILIES[f]]
        refuse_unknown(self.tasks, known, "task", f" in --family {self.family}")

    @property
    def families(self) -> tuple[str, ...]:
        named = {"maniskill": ("maniskill",), "unseen": ("unseen",), "sawyer": ("sawyer-bridge",)}
        return named.get(self.family, tuple(FAMILIES))

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
    """One group for every task and seed: all methods see the same logs."""
    out = []
    for seed in range(QUICK_SEEDS if config.quick else config.seeds):
        for family in config.families:
            for task in config.of(family):
                key = {"family": family, "task": task, "seed": seed}
                places = [(o, m, n) for o in LEVELS for m in METHODS for n in LABELS]
                cells = [{"occlusion": o, "method": m, "labels": n} for o, m, n in places]
                out.append(Group(key, tuple({"experiment": "modes"} | key | cell for cell in cells)))
    return out


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
    logs, seed = logs_of(key["task"], config["data"]), key["seed"]
    parts = [list(part) for part in split(logs, seed=seed).of(logs)]
    labels = Labels(parts[0], parts[1])
    truth: Truth = {VALIDATION: labels(parts[1]), "test": labels(parts[2])}
    bare = Logs(*([e.unlabelled() for e in part] for part in parts))
    found = found_paths(bare, len(labels.contact.configurations), truth, seed, config["burst"])
    place = {"experiment": "modes", **key}
    records = [
        place | {"occlusion": level, "method": method, "labels": name} | _record(found, truth, level, method, name)
        for level in LEVELS
        for method in METHODS
        for name in LABELS
    ]
    for record in records:
        record |= _shown(record, found, truth, labels, parts[2]) if record["method"] == "full" else {}
    kept = [{k: v for k, v in r.items() if not seed or k not in PICTURED} for r in records]
    return rounded(kept, DIGITS)


def _record(found: Found, truth: Truth, level: float, method: str, name: str) -> dict[str, Any]:
    """The scores of one method's paths, read as validation logs say, and as they are."""
    told = name if method == "changes" else ""
    held, tested = found.paths[VALIDATION, method, told], found.paths[level, method, told]
    reading = max(held, key=lambda r: _agreement(held[r], truth[VALIDATION][name]))
    paths, labels = tested[reading], truth["test"][name]
    raw = _metrics(tested["modes"], labels)
    out: dict[str, Any] = _metrics(paths, labels) | {f"raw_{n}": raw[n] for n in SCORES if f"raw_{n}" in RAW}
    out |= {"reading": reading, "modes": len(np.unique(np.concatenate(tested["modes"])))}
    return out | {"confusion": _confusion(paths, labels), "shown": _runs(paths[0])}


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


def _shown(record, found: Found, truth: Truth, labels: Labels, test: Sequence[Episode]) -> dict[str, Any]:
    """What pictures need: the truth of the first test log, the proxy's score, and Thm 2 on held-out segments."""
    name, level = record["labels"], record["occlusion"]
    out: dict[str, Any] = {"words": list(found.full.names), "classes": list(labels.classes(name)), "dt": test[0].dt}
    out["truth"] = _runs(truth["test"][name][0])
    if name == "proxy" and not level:
        out |= _scored(labels.proxy, test, truth["test"]["regime"])
    if name == "configuration":
        out["theorem"] = _theorem(found, truth, level)
    return out


def _scored(proxy: ProxyLabeller, test: Sequence[Episode], regimes: Paths) -> dict[str, Any]:
    """The proxy's score of the first test log, and its histogram over all of them for every true regime."""
    found = [score(e, proxy) for e in test]
    values, regime = np.log10(np.maximum(np.concatenate(found), 1e-6)), np.concatenate(regimes)
    edges = np.linspace(values.min(), values.max() + 1e-9, BINS + 1)
    counts = {n: np.histogram(values[regime == i], edges)[0].tolist() for i, n in enumerate(REGIMES)}
    histogram = {"edges": edges.tolist(), "counts": counts}
    return {"thresholds": list(proxy.thresholds), "histogram": histogram, "score": found[0].tolist()}


def _theorem(found: Found, truth: Truth, level: float) -> dict[str, Any]:
    held, name = truth[VALIDATION]["configuration"], "configuration"
    mode_of = modes_of(found.paths[VALIDATION, "full", ""]["modes"], held)
    constants = constants_of(found.full, found.seen[VALIDATION], stretches(held, mode_of))
    tested = stretches(truth["test"][name], mode_of)
    every = sum(len(run_starts(path)) for path in truth["test"][name])
    return theorem_record(found.full, found.seen[level], found.beliefs[level], tested, constants, every)


# --- the summary ----------------------------------------------------------------------------------------------------


def table(found: Sequence[dict[str, Any]]) -> str:
    """The families' rows as text."""
    head = "".join(f"{name:>7}" for name in ("F1", "ARI", "cp ±2", "cp ±5"))
    lines = [f"{'family':14}{'hidden':>7}  {'labels':14}{'method':14}{head}{'purity':>8}"]
    for r in (r for r in found if "task" not in r):
        numbers = "".join(f"{r[m]:7.3f}" for m in SCORES[:4]) + f"{r['purity']:8.3f}"
        lines.append(f"{r['family']:14}{100 * r['occlusion']:6.0f}%  {r['labels']:14}{r['method']:14}{numbers}")
    return "\n".join(lines)
