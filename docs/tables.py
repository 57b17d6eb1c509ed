"""The numbers of the documents, from the result files: tables that are written, and sentences that are checked.

    python docs/tables.py     # writes every table between `<!-- table NAME -->` and `<!-- end -->`

`tests/test_documents.py` fails where a table or a sentence says something else than the results. After an audit was run
again: run this, then read the prose around what has changed.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
Row = dict


@cache
def _read(path: str) -> dict:
    return json.loads((ROOT / path).read_text("utf-8"))


def result(audit: str) -> list[Row]:
    return _read(f"results/{audit}/summary.json")["rows"]


def proofs() -> list[Row]:
    """The planning audit's rows of systems with known equations."""
    return [row for row in result("planning") if row["family"] == "known-equations"]


def bench(name: str) -> dict:
    return _read(f"benchmarks/results/{name}.json")


def published() -> list[Row]:
    return _read("src/vhydro_audits/published.json")  # pyright: ignore[reportReturnType]


def one(rows: Sequence[Row], **keys) -> Row:
    """The only row with these values; a key that is None must be absent or null."""
    found = [r for r in rows if all(r.get(k) == v for k, v in keys.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows with {keys}")
    return found[0]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def significant(x: float, digits: int = 2) -> str:
    """A number rounded to so many digits, all of them shown, and never as a power of ten."""
    if x == 0 or abs(x) >= 10 ** (digits - 1):
        return f"{x:.0f}" if abs(x) >= 10 else f"{x:.{digits - 1}f}"
    places = digits - 1 - math.floor(math.log10(abs(float(f"{x:.{digits - 1}e}"))))
    return f"{x:.{places}f}"


def signed(x: float, digits: int = 2) -> str:
    return f"{x:.{digits}f}".replace("-", "−")


# --- laws -----------------------------------------------------------------------------------------------------------

SINDY = {"sindy-stlsq": "PySINDy STLSQ", "sindy-ensemble": "PySINDy ensemble", "sindy-weak": "PySINDy weak form"}
LAW_METRICS = ("support_f1", "coefficient_error", "vector_field_nrmse", "physical_constant_error")
LAW_CONDITIONS = (
    ("modes given, noise 0.1 %", "noise 0.1 %, missing 0 %, flips 0 %", "given"),
    ("given, noise 5 %, 20 % missing, 2 % of labels wrong", "noise 5 %, missing 20 %, flips 2 %", "given"),
    ("positions alone, noise 1 %", "noise 1 %, missing 0 %", "filtered"),
)


def _law(method: str, condition: str, source: str) -> Row:
    return one(result("laws"), experiment="laws", family="four", method=method, condition=condition, source=source)


def _law_cell(row: Row) -> str:
    values = [row[m] for m in LAW_METRICS]
    return " / ".join([f"{values[0]:.3f}", *map(significant, values[1:])])


def laws_main() -> str:
    methods = (("derivative form, Lasso", "lasso"), ("weak form, all subsets", "weak"), ("shooting", "full"))
    rows = [
        [words, *(("**{}**" if m == "full" else "{}").format(_law_cell(_law(m, c, s))) for _, c, s in LAW_CONDITIONS)]
        for words, m in methods
    ]
    return table(["", *(head for head, _, _ in LAW_CONDITIONS)], rows)


def laws_new() -> str:
    """The nine systems of other classes: ours, and the PySINDy variant that is best at each noise."""

    def row(method: str, noise: float, missing: float = 0.0, source: str = "given") -> Row:
        where = {"noise": noise, "missing": missing, "source": source}
        return one(result("laws"), experiment="laws", family="new", method=method, **where)

    conditions = [(0.001, 0.0), (0.01, 0.0), (0.01, 0.2), (0.05, 0.0), (0.05, 0.2)]
    rows = []
    for noise, missing in conditions:
        words = f"{100 * noise:g} %" + (f", {100 * missing:.0f} % missing" if missing else "")
        ours, weak = row("full", noise, missing), row("weak", noise, missing)
        field, peer = min((row(m, noise, missing)["vector_field_nrmse"], name) for m, name in SINDY.items())
        wrong = " / ".join(f"{100 * r['confident_wrong']:.1f}" for r in (ours, weak))
        cells = [f"{r['support_f1']:.3f} / {significant(r['vector_field_nrmse'])}" for r in (ours, weak)]
        rows.append([words, f"**{cells[0]}**", cells[1], f"{significant(field)} ({peer})", wrong])
    heads = ["noise", "shooting", "weak form", "best PySINDy", "unmarked and wrong, %"]
    return table(heads, rows)


def laws_paper() -> str:
    paper = {r["method"]: r for r in published() if r["experiment"] == "laws"}
    named = {"full": "full", "no-mode": "no-mode", "no-sparsity": "no-sparsity", "no-ph": "no-pH"}
    named |= SINDY

    def cell(row: Row | None) -> str:
        if row is None:
            return "–"
        known = [row.get(m) for m in LAW_METRICS]
        return " / ".join(
            "–" if v is None else (f"{v:.3f}" if i == 0 or row is paper.get(row["method"]) else significant(v))
            for i, v in enumerate(known)
        )

    rows = [
        [words, cell(paper.get(m)), *(cell(_law(m, c, s)) for _, c, s in (LAW_CONDITIONS[0], LAW_CONDITIONS[2]))]
        for m, words in named.items()
    ]
    return table(["", "the paper's", "ours, modes given, noise 0.1 %", "ours, positions alone, noise 1 %"], rows)


# --- modes ----------------------------------------------------------------------------------------------------------

PEERS = ("hmm", "ar-hmm", "slds", "hdp-hmm")
FAMILIES = {
    "maniskill": ("PushCube", "PokeCube", "PullCubeTool", "PegInsertionSide"),
    "unseen": ("PickCube", "StackCube", "PullCube"),
    "new": ("StackPyramid", "PlaceSphere", "PushPair", "RegraspCube", "ToppleTower"),
    "sawyer": ("tower", "laundry", "search", "bridge"),
}
CONDITIONS = (
    "clean", "half hidden", "noise 1 mm", "noise 2 mm", "noise 5 mm", "10 Hz", "5 logs", "noisy policy",
)  # fmt: skip


def _mode(
    family: str,
    task: str | None,
    method: str,
    labels: str = "configuration",
    condition: str = "clean",
    reading: str = "fixed",
) -> Row:
    keys = {"family": family, "task": task, "method": method, "labels": labels}
    return one(result("modes"), **keys, condition=condition, reading=reading)


def _best_peer(family: str, task: str | None, metric: str, condition: str = "clean") -> str:
    value, peer = max((_mode(family, task, p, condition=condition)[metric], p) for p in PEERS)
    return f"{value:.3f} ({peer})"


def modes_audit() -> str:
    head = [
        "", "ARI", "mode F1", "change points", "purity", "ARI, half hidden", "best peer's ARI", "its change points",
        "ARI, number and reading by labels",
    ]  # fmt: skip
    titles = {"unseen": "*three more:*", "new": "*five more, on which heights were settled:*"}
    titles |= {"sawyer": "*Sawyer stand-ins:*"}
    rows = []
    for family, tasks in FAMILIES.items():
        if family in titles:
            rows.append([titles[family], *[""] * 8])
        for task in (*tasks, None):
            ours = _mode(family, task, "auto")
            values = [f"{ours[m]:.3f}" for m in ("ari", "mode_f1", "change_point_f1", "purity")]
            hidden = _mode(family, task, "auto", condition="half hidden")["ari"]
            told = _mode(family, task, "full", reading="validation")["ari"]
            peers = [_best_peer(family, task, m) for m in ("ari", "change_point_f1")]
            rows.append([task or "**mean**", *values, f"{hidden:.3f}", *peers, f"{told:.3f}"])
    return table(head, rows)


def modes_conditions() -> str:
    names = {"maniskill": "first four", "unseen": "three more", "new": "new tasks", "sawyer": "Sawyer"}
    there = {r["condition"] for r in result("modes")}
    rows = []
    for condition in (c for c in CONDITIONS if c in there):
        cells = []
        for family in names:
            try:
                ours = _mode(family, None, "auto", condition=condition)["ari"]
                cells.append(f"**{ours:.3f}**, {_best_peer(family, None, 'ari', condition)}")
            except LookupError:
                cells.append("–")
        rows.append([condition, *cells])
    return table(["ours, and the best peer", *names.values()], rows)


def modes_labels() -> str:
    def paper(family: str) -> str:
        row = one(published(), experiment="modes", family=family, method="full")
        return ", ".join(f"{row[m]:.3f}" for m in ("mode_f1", "ari", "change_point_f1", "purity"))

    named = {"proxy": "proxy", "regime": "three-class regime of the forces", "configuration": "configuration"}
    rows = []
    for labels, words in named.items():
        for family, whose in (("maniskill", "first four"), ("sawyer", "Sawyer")):
            note = {
                "maniskill": f" tasks (paper {paper('maniskill')})",
                "sawyer": f" (paper, on other logs: {paper('sawyer-bridge')})",
            }
            ours = _mode(family, None, "auto", labels)
            rows.append([
                f"{words}, {whose}{note[family] if labels == 'proxy' else ''}",
                *(f"{ours[m]:.3f}" for m in ("mode_f1", "ari", "change_point_f1", "purity")),
            ])  # fmt: skip
            if labels == "proxy":
                best = _mode(family, None, "simulator", labels)
                values = (f"{best[m]:.3f}" for m in ("mode_f1", "ari", "change_point_f1", "purity"))
                rows.append([f"the simulator's own contacts, {whose}", *values])
    return table(["mean of the family, in full sight", "mode F1", "ARI", "change points", "purity"], rows)


# --- support --------------------------------------------------------------------------------------------------------


def _support(family: str, method: str, regime: str, occlusion: float = 0.9) -> Row:
    keys = {"family": family, "task": None, "method": method, "regime": regime, "occlusion": occlusion}
    return one(result("support_plain" if regime == "plain" else "support"), **keys)


def _both(of: Callable[[Row], str], *where) -> str:
    both = [of(_support(family, *where)) for family in ("contact", "sawyer-bridge")]
    return both[0] if both[0] == both[1] and both[0].startswith("<") else " / ".join(both)


def _small(x: float) -> str:
    """A variance to one digit, two from 0.02 on; below a millionth it says no more than that."""
    if x < 1e-6:
        return "< 10⁻⁶"
    return significant(x, 1 if x < 0.02 else 2)


def support_main() -> str:
    rows = []
    paper = [
        one(published(), experiment="support", family=f, method="conservative", occlusion=0.9)
        for f in ("contact", "sawyer-bridge")
    ]
    metrics = ("ess", "empirical_relative_variance", "ece", "cov90")
    rows.append(["paper's best, conservative", *(" / ".join(f"{p[m]:.3f}" for p in paper) for m in metrics)])
    for method, regime in (
        ("conservative", "matched"), ("no-support", "shift"), ("two-sided", "matched"),
        ("two-sided+conformal", "matched"),
        ("two-sided+conformal", "shift"), ("two-sided+conformal", "lit"),
    ):  # fmt: skip
        ess, ece, cov = (_both(lambda r, m=m: f"{r[m]:.3f}", method, regime) for m in ("ess", "ece", "cov90"))
        variance = _both(lambda r: _small(r["empirical_relative_variance"]), method, regime)
        mark = "**{}**" if "conformal" in method else "{}"
        rows.append([f"{method}, {regime}", ess, variance, mark.format(ece), mark.format(cov)])
    return table(["", "ESS/N", "empirical relative variance", "ECE", "Cov90"], rows)


def _lost(x: float) -> str:
    return f"{100 * x:.2f} %" if x < 0.002 else f"{100 * x:.1f} %"


def support_loss() -> str:
    rows = []
    for regime, methods in (
        ("shift", ("adaptive", "no-support", "smooth")),
        ("lit", ("adaptive", "conservative", "no-support", "smooth")),
    ):
        for method in methods:
            rows.append([
                f"{regime}, {method}", _both(lambda r: _nll(r["nll"]), method, regime),
                _both(lambda r: _small(r["realised_variance"]), method, regime),
                _both(lambda r: f"{r['certified']:.2f}", method, regime),
                _both(lambda r: _lost(r["lost"]), method, regime),
            ])  # fmt: skip
    return table(["", "NLL", "realised variance", "certified", "hidden readings lost"], rows)


def _nll(x: float) -> str:
    return signed(x, 1 if abs(x) >= 10 else 2)


def support_plain() -> str:
    rows = []
    for method in ("adaptive", "no-support", "two-sided"):

        def nll(r: Row) -> str:
            return f"{signed(r['nll'], 1)} ± {r['nll_sem']:.1f}" if r["method"] == "no-support" else signed(r["nll"])

        rows.append([
            method, _both(nll, method, "plain"), _both(lambda r: _small(r["realised_variance"]), method, "plain"),
            _both(lambda r: f"{r['certified']:.2f}", method, "plain"),
            _both(lambda r: _lost(r["lost"]), method, "plain"),
        ])  # fmt: skip
    return table(["plain, at 90 %", "NLL", "realised variance", "certified", "hidden readings lost"], rows)


# --- planning -------------------------------------------------------------------------------------------------------

TASKS = {
    "puck": "puck: reach a place, walls in the way", "block": "block: slide to a place",
    "pendulum": "pendulum: swing to an angle",
    "pushing": "pushing: follow at a distance", "off a wall": "puck: a target off the wall",
    "to a stop": "pushing: drag sideways, leave at rest",
}  # fmt: skip


def planning() -> str:
    head = [
        "task, process noise on momenta",
        "certified",
        "ε mean (worst)",
        "margin",
        "bound",
        "really failed (worst plan)",
        "executions",
        "energy: true, bound (J)",
    ]
    rows = []
    for task, words in TASKS.items():
        r = one(proofs(), task=task)
        rows.append([
            f"{words}, {r['process_noise']:g}", f"{100 * r['certified_share']:.0f} %",
            f"{r['epsilon']:.3f} ({r['epsilon_worst']:.3f})", f"{r['margin']:.3f}", f"{r['bound']:.3f}",
            f"{r['realised_failure']:.4f} ({r['worst_plan']:.3f})", f"{r['executions']:,}",
            f"{r['energy_end']:.2f}, {r['energy_bound']:.2f}",
        ])  # fmt: skip
    return table(head, rows)


def simulated() -> list[Row]:
    """The planning audit's rows of ManiSkill's tasks."""
    return [row for row in result("planning") if row["family"] == "maniskill"]


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".removeprefix("0")


def predictions() -> str:
    head = [
        "task",
        "model",
        "1 step",
        "16 steps",
        "mean of 1 to 16",
        "wandering, 16 steps",
        "90 % band, moving",
        "resting",
    ]
    names = ("rmse_h1", "rmse_h16", "rmse_mean16", "rmse_h16_wandering", "coverage90_moving", "coverage90_resting")
    rows = [[r["task"], r["method"], *(_three(r[n]) for n in names)] for r in simulated() if r["rmse_h16"] is not None]
    return table(head, rows)


def episodes() -> str:
    head = [
        "task",
        "method",
        "succeeded",
        "return",
        "safe return",
        "risk told at 0, 5",
        "gap",
        "ECE",
        "Brier (base rate)",
        "AUC",
    ]
    rows = []
    for r in simulated():
        if r["success"] is None:
            continue
        pair = lambda name, r=r: f"{_three(r[name])}, {_three(r[name + '_t5'])}"  # noqa: E731
        risks = f"{_three(r['predicted_risk_t0'])}, {_three(r['predicted_risk_t5'])}"
        brier = f"{pair('brier')} ({_three(r['brier_base_rate'])})"
        told = [risks, pair("risk_gap"), pair("ece"), brier, pair("auc")]
        if r["predicted_risk_t0"] is None:
            told = ["–"] * 5
        won = f"{round(r['success'] * r['episodes'])} of {r['episodes']}"
        safe = "–" if r["safe_return"] is None else f"{r['safe_return']:.1f}"
        rows.append([r["task"], r["method"], won, f"{r['return']:.1f}", safe, *told])
    return table(head, rows)


# --- filter ---------------------------------------------------------------------------------------------------------


def _gap(x: float, worst: bool) -> str:
    if worst and x >= 100:
        return f"{x:,.0f}"
    if not worst and x < 0.1:
        return f"{x:.2f}".lstrip("0")
    return f"{x:.0f}" if x >= 10 else f"{x:.1f}".removeprefix("0") if x < 1 else f"{x:.1f}"


def gaps() -> str:
    rows, found = [], bench("path")["gaps"]
    names = {"three modes": "three modes, linear", "block": "block, linear", "pushing": "pushing, 4 coordinates"}
    for system in dict.fromkeys(g["system"] for g in found):
        mine = {g["method"].split(",")[0].split(" n")[0]: g for g in found if g["system"] == system}
        order = [
            next(g for m, g in mine.items() if m.startswith(k))
            for k in ("ours", "drawn", "cuthbert", "mixture", "bootstrap")
        ]
        cells = [f"{_gap(g['median_gap'], False)} / {_gap(g['worst_gap'], True)}" for g in order]
        rows.append([names.get(system, system), *cells, f"{order[0]['seconds_ratio']:.2f}".lstrip("0")])
    return table(
        ["system", "ours", "drawn", "cuthbert, adapted", "mixture", "bootstrap", "time of ours, mixture N = 64 is 1"],
        rows,
    )


def speed() -> str:
    rows = {r["name"]: r["seconds"] for r in bench("filter")["rows"]}
    said = (
        ("bootstrap, N = 1024", "bootstrap n1024", "cuthbert", "cuthbert n1024", "vs_cuthbert_n1024"),
        ("bootstrap, N = 1024", "bootstrap n1024", "particles", "particles n1024", "vs_particles_n1024"),
        ("bootstrap, N = 16384", "bootstrap n16384", "cuthbert", "cuthbert n16384", "vs_cuthbert_n16384"),
        ("bootstrap, 32 logs × 1024", "bootstrap 32 x n1024", "cuthbert", "cuthbert 32 x n1024", "vs_cuthbert_batch32"),
    )

    def time(s: float) -> str:
        return f"{1000 * s:.0f} ms" if s < 0.5 else f"{s:.2f} s" if s < 1 else f"{s:.1f} s"

    link = {
        "cuthbert": "[cuthbert](https://pypi.org/project/cuthbert)",
        "particles": "[particles](https://pypi.org/project/particles)",
    }
    return table(
        ["", "ours", "peer", "ratio"],
        [[w, time(rows[o]), f"{link[p]} {time(rows[n])}", f"{bench('filter')[r]:.1f}"] for w, o, p, n, r in said],
    )


def kernels() -> str:
    """Filters on a GPU: a kernel, the scan and cuthbert."""
    found = bench("gpu")
    rows = {r["name"]: r for r in found["rows"]}

    def time(name: str) -> str:
        return f"{1000 * rows[name]['seconds']:.1f} ms" if name in rows else "–"

    def line(words: str, own: str, scan: str, peer: str) -> list[str]:
        ours = min(own, scan, key=lambda n: rows[n]["seconds"])
        ratio = f"{rows[peer]['seconds'] / rows[ours]['seconds']:.1f}" if peer in rows else "–"
        kernel = rows[own]["program"].startswith("one kernel")
        return [words, time(own) if kernel else "–", time(scan), time(peer), ratio]

    sizes = ("1024x1", "1024x32", "64x1024", "1024x1024", "16384x1", "262144x1")
    written = [
        line("bootstrap, {1} × {0}".format(*n.split("x")), f"kernel {n}", f"scan {n}", f"cuthbert {n}") for n in sizes
    ]
    engines = (
        ("gated with the conditional guide, 32 × 1024", "gated_vs_scan_1024x32"),
        ("modes summed, z drawn, 32 × 1024", "drawn_vs_scan_1024x32"),
        ("Gaussian branches, 32 × 64", "marginal_vs_scan"),
    )
    written += [line(words, f"{name}: kernel", f"{name}: scan", "") for words, name in engines]
    return table(["logs × particles", "kernel", "scan", "cuthbert", "cuthbert / ours"], written)


def conformal() -> str:
    kinds = {
        "none": "not at all",
        "mild": "mildly",
        "strong": "strongly",
        "heavy": "heavy tails",
        "offset": "offsets",
        "rare": "one in ten, fivefold",
    }
    rows = []
    for kind, words in kinds.items():
        for count in (5, 9, 20, 100):
            r = one(bench("conformal")["rows"], kind=kind, episodes=count)
            place = [r["levels"].index(x) for x in (0.8, 0.9, 0.95)]
            cells = [
                f"{r['coverage'][i]:.3f} ± {r['se'][i]:.3f}" + ("" if r["levels"][i] <= count / (count + 1) else "*")
                for i in place
            ]
            widths = " / ".join(f"{r['width_ratio'][i]:.2f}" for i in place)
            rows.append([words, str(count), *cells, f"{r['coverage_by_readings'][place[1]]:.3f}", widths])
    return table(["episodes differ", "K", ".80", ".90", ".95", ".90 by readings", "width at .80 / .90 / .95"], rows)


# --- hardware -------------------------------------------------------------------------------------------------------


EMPS_ROWS = {
    "M (kg)": ("M", "mass", 2), "Fv forward (N s/m)": ("Fv", "friction", 1),
    "Fv backward (N s/m)": ("Fv", "friction of backward", 1), "Fc (N)": ("Fc", "sliding friction", 2),
    "offset (N)": ("offset", "constant force", 2),
}  # fmt: skip


def emps() -> str:
    e = bench("hardware")["emps"]
    rows = []
    for words, (known, name, digits) in EMPS_ROWS.items():
        sign = -1 if name == "constant force" else 1  # an offset is a force that has to be overcome
        cells = []
        for form in e["forms"].values():
            value = form["constants"].get(name)
            low, high = sorted(sign * x for x in value[1:]) if value else (0, 0)
            cells.append(
                f"{signed(sign * value[0], digits)} [{signed(low, digits)}, {signed(high, digits)}]"
                if value else "the same"
            )  # fmt: skip
        rows.append([words, signed(e["published"][known], 2), *cells])
    for words, of in (
        ("ours", lambda form: form["left"]),
        ("inverse dynamics, the same form", lambda form: form.get("inverse_dynamics", {}).get("left")),
    ):
        left = [of(form) for form in e["forms"].values()]
        cells = [" / ".join(f"{x:.2f}" for x in both) if both else "–" for both in left]
        rows.append([f"force left over on the other half (N, rms): {words}", "", *cells])
    return table(["", "published", *(f"{name}, 95 %" for name in e["forms"])], rows)


def cube() -> str:
    c = bench("hardware")["cube"]
    g, r = ([f"{x:.3f}" for x in c[k]] for k in ("gravity", "restitution"))
    low, high = c["middle_half"]
    rows = [
        ["flight: weight over mass (m/s²)", "", f"{g[0]} [{g[1]}, {g[2]}]"],
        ["restitution of the corner", f"{c['restitution_reported']:.3f}, the authors'", f"{r[0]} [{r[1]}, {r[2]}]"],
        [f"its middle half over {c['impacts']:,} impacts", "", f"{low:.2f} … {high:.2f}"],
    ]
    return table(["", "reported", "ours, 95 %"], rows)


def tosses() -> str:
    rows = []
    for burst, both in bench("tosses")["bursts"].items():
        for who, words in (("ours", "from the law"), ("kalman", "constant-acceleration Kalman filter")):
            s = both[who]
            mm = [f"{s[k]:.1f}" for k in ("hidden_rmse_mm", "hidden_width_mm")]
            rows.append([burst, words, signed(s["hidden_nll"], 2), signed(s["seen_nll"], 2), *mm])
    return table(["rows in a burst", "", "NLL, hidden", "NLL, seen", "RMSE, hidden (mm)", "width for 90 % (mm)"], rows)


def _scored(
    rows: dict, names: dict[str, str], columns: Sequence[tuple[str, str, int]], best: Sequence[str], first: str
) -> str:
    out = []
    for method, words in names.items():
        cells = []
        for key, _, digits in columns:
            top = key in best and rows[method][key] == max(r[key] for r in rows.values())
            cells.append(("**{}**" if top else "{}").format(f"{rows[method][key]:.{digits}f}"))
        out.append([words, *cells])
    return table([first, *(words for _, words, _ in columns)], out)


CUBE_COLUMNS = (
    ("ari", "ARI", 3), ("mode_f1", "mode F1", 3), ("change_points_2", "change points ±2", 3),
    ("change_points_5", "±5", 3), ("purity", "purity", 3), ("extra", "extra segments", 2),
)  # fmt: skip


def _cube_modes(which: str, first: str) -> str:
    rows = bench("hardware")["cube_modes"][which]
    names = {m: m.replace("*", ", told how many changes") for m in rows}
    return _scored(rows, names, CUBE_COLUMNS, [c for c, _, _ in CUBE_COLUMNS[:-1]], first)


def bees() -> str:
    rows = bench("hardware")["bees"]
    columns = (
        ("change_points_2", "change points ±2", 3), ("change_points_5", "±5", 3), ("change_points_10", "±10", 3),
        ("purity", "purity", 3), ("ratio", "found / true changes", 2),
    )  # fmt: skip
    names = {m: m.replace("*", ", told how many changes") for m in rows}
    return _scored(rows, names, columns, [c for c, _, _ in columns[:-1]], "")


# --- README ---------------------------------------------------------------------------------------------------------


def readme() -> str:
    families = ("contact", "sawyer-bridge")
    ours = [_support(f, "two-sided+conformal", "shift") for f in families]
    paper = [one(published(), experiment="support", family=f, method="conservative", occlusion=0.9) for f in families]
    covered, promised = (" / ".join(f"{r['cov90']:.2f}" for r in rows) for rows in (ours, paper))
    rows = [["coverage of 90 % intervals, 90 % of the readings hidden¹", covered, promised, "–"]]
    proxy = one(published(), experiment="modes", family="maniskill", method="full")["ari"]
    for words, labels, theirs in (
        ("contact segments against the paper's proxy labels, ARI²", "proxy", f"{proxy:.2f}"),
        ("contact segments against simulated contact forces, ARI²", "configuration", "–"),
    ):
        value, peer = max((_mode("maniskill", None, p, labels)["ari"], p) for p in PEERS)
        rows.append([words, f"{_mode('maniskill', None, 'auto', labels)['ari']:.2f}", theirs, f"{value:.2f} ({peer})"])
    full = one(published(), experiment="laws", method="full")["support_f1"]
    for words, condition, theirs in (
        ("terms of the law that are right (support F1), modes given, 0.1 % noise³", LAW_CONDITIONS[0], f"{full:.2f}"),
        ("the same from positions alone, 1 % noise³", LAW_CONDITIONS[2], "–"),
    ):
        value, peer = max((_law(m, *condition[1:])["support_f1"], words) for m, words in SINDY.items())
        rows.append([words, f"{_law('full', *condition[1:])['support_f1']:.2f}", theirs, f"{value:.2f} ({peer})"])
    plans = proofs()
    executed = sum(r["executions"] for r in plans)
    failed = 100 * sum(r["realised_failure"] * r["executions"] for r in plans) / executed
    shares = [100 * r["certified_share"] for r in plans]
    words = f"plans certified at a risk of 0.3; failures in {executed:,} executions of them"
    rows.append([words, f"{min(shares):.0f} to {max(shares):.0f} %; {failed:.1f} %", "–", "–"])
    seconds = {r["name"]: r["seconds"] for r in bench("filter")["rows"]}
    mine, theirs = f"{seconds['bootstrap n1024']:.3f}", f"{seconds['cuthbert n1024']:.2f} (cuthbert)"
    rows.append(["seconds of a bootstrap filter, N = 1024, 1000 steps", mine, "–", theirs])
    return table(["", "ours", "the paper's", "best peer"], rows)


# --- sentences ------------------------------------------------------------------------------------------------------


def sentences() -> Iterator[tuple[str, str]]:
    """A document, and what it has to say somewhere, in one line."""
    plans, filtered, path, replans = proofs(), bench("filter"), bench("path"), bench("planning")
    executed = f"{sum(r['executions'] for r in plans):,}"
    yield "docs/ideas/planning.md", f"over {executed} executions in the true systems"
    seconds = {r["name"]: r for r in filtered["rows"]}
    boot = seconds["bootstrap n1024 (efficiency)"]["sd_sqrt_time"]
    mixture = boot / seconds["mixture n1024"]["sd_sqrt_time"]
    many = one(bench("gpu")["rows"], name="scan 262144x1")["seconds"]
    speeds = "docs/measured/filter.md"
    yield speeds, f"is then {filtered['gate_efficiency']:.0f} times smaller than the bootstrap's with 256 branches"
    yield speeds, f"and {filtered['drawn_efficiency']:.1f} times with z drawn and modes summed"
    yield speeds, f"{path['gaussian_vs_bootstrap_ph']:.0f} and {path['gated_vs_bootstrap_ph']:.1f} times on a"
    yield speeds, f"is not ahead on this problem ({mixture:.1f})"
    yield (
        speeds,
        f"takes {filtered['stream_p50_ms']:.2f} ms in the median and {filtered['stream_p99_ms']:.2f} ms at the 99th",
    )
    for page in (speeds, "docs/howto/gpu.md"):
        yield page, f"262,144 particles × 1000 steps take {many:.2f} s"
    large = bench("dataset")
    here, there = (large[k]["seconds"] for k in ("processes", "ray"))
    many = f"Segmenting {large['episodes']:,} episodes of {large['rows']} rows took {here:.0f} s"
    yield "docs/howto/ray.md", f"{many} on a machine of two busy cores, and {there:.0f} s on a local Ray cluster"
    soak = bench("soak")
    yield speeds, f"ran {soak['steps']:,} control-loop steps"
    yield speeds, f"memory grew by {soak['growth_mb']:.0f} MB"
    best, worst = (-1000 * of(path["learning_gaps"]) for of in (max, min))
    yield speeds, f"within .{best:03.0f} to .{worst:03.0f} nats per reading"
    faults = bench("outliers")
    yield speeds, f"spoils {faults['streams']} random streams"
    yield speeds, f"Of {faults['large_faults']} with a fault of 100 noise levels and more"
    yield (
        "docs/measured/planning.md",
        f"takes {replans['vs_pytorch_mppi_cpu_s']:.1f} times the CPU time with one thread",
    )
    theorem = _read("results/laws/summary.json")["meta"]["theorem"]
    held, every = (sum(t[k] for t in theorem) for k in ("conditions_hold", "modes"))
    yield "docs/measured/laws.md", f"They did in {held:,} of {every:,} regressions ({100 * held / every:.0f} %"
    ways = list(zip(*bench("hardware")["emps"]["friction_by_bump"], strict=True))
    ends = [f"{of(ways[0]):.0f} / {of(ways[1]):.0f}" for of in (max, min)]
    yield "docs/measured/hardware.md", f"at every width of bump ({' to '.join(ends)})"
    five = [_mode(f, t, "auto", condition="noise 5 mm")["ari"] for f in ("maniskill", "unseen") for t in FAMILIES[f]]
    yield "README.md", f"with 5 mm of camera noise it has {sum(five) / len(five):.2f} on seven tasks"
    both = [
        _support(f, "two-sided+conformal", regime, level)
        for f in ("contact", "sawyer-bridge") for regime in ("matched", "shift", "lit")
        for level in (0, 0.25, 0.5, 0.75, 0.9)
    ]  # fmt: skip
    least, most = (of(r["cov90"] for r in both) for of in (min, max))
    yield (
        "docs/measured/support.md",
        f"Cov90 between {least:.3f} and {most:.3f} and an ECE of at most {max(r['ece'] for r in both):.3f}",
    )
    sindy = max(_law(m, *LAW_CONDITIONS[0][1:])["support_f1"] for m in SINDY)
    yield "docs/peers.md", f"finds {sindy:.2f} of the terms (support F1)"
    ratios = [r["weak_over_stlsq"] for r in bench("laws")["rows"].values()]
    yield "docs/peers.md", f"({min(ratios):.1f} to {max(ratios):.1f} times, `benchmarks/results/laws.json`)"
    scored = {
        t: (_mode(f, t, "auto")["ari"], *max((_mode(f, t, p)["ari"], p) for p in PEERS))
        for f, ts in FAMILIES.items()
        for t in ts
    }
    ahead = [f"{t} ({peer.upper()})" for t, (ours, theirs, peer) in scored.items() if theirs > ours + 0.01]
    yield "README.md", f"Peers are ahead by more than 0.01 on {', '.join(ahead)}."
    yield "docs/peers.md", f"Peers are ahead by more than 0.01 in ARI on {', '.join(ahead)}; of the sixteen tasks"
    off = [g["median_gap"] for g in path["gaps"] if g["method"].startswith("cuthbert")]
    yield "docs/peers.md", f"{min(off):.1f} to {max(off):.1f} nats off"
    proxy = {}
    for r in bench("labels")["rows"]:
        proxy.setdefault(r["task"].removesuffix("-v1"), []).append((r["regime"], r["configuration"]))
    means = {t: [sum(x) / len(x) for x in zip(*v, strict=True)] for t, v in proxy.items()}
    named = ", ".join(f"{t} {means[t][0]:.2f}" for t in FAMILIES["maniskill"])
    yield "docs/howto/simulators.md", f"{named} for the regime"
    yield (
        "docs/howto/simulators.md",
        f"{', '.join(f'{means[t][1]:.2f}' for t in FAMILIES['maniskill'])} for the configuration",
    )


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "laws": laws_main,
    "laws of other classes": laws_new,
    "laws beside the paper": laws_paper,
    "modes audit": modes_audit,
    "modes labels": modes_labels,
    "modes conditions": modes_conditions,
    "support": support_main,
    "support loss": support_loss,
    "support plain": support_plain,
    "planning": planning,
    "predictions in ManiSkill": predictions,
    "episodes in ManiSkill": episodes,
    "gaps": gaps,
    "speed": speed,
    "kernels": kernels,
    "conformal": conformal,
    "emps": emps,
    "cube": cube,
    "tosses": tosses,
    "cube modes four": lambda: _cube_modes("four", "four modes"),
    "cube modes five": lambda: _cube_modes("five", "five modes (`--apart`)"),
    "bees": bees,
}
MARKED = re.compile(r"(<!-- table (?P<name>[^>]+?) -->\n\n)(?P<body>.*?)(\n\n<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str) -> str:
    """A document with every table as the results have it."""
    return MARKED.sub(lambda m: m[1] + TABLES[m["name"]]() + m[4], text)


if __name__ == "__main__":
    for path in documents():
        before = path.read_text("utf-8")
        after = written(before)
        if after != before:
            path.write_text(after, "utf-8")
            print(path.relative_to(ROOT))
