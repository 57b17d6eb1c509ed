"""The drawings of the documentation, each made by the software from what comes with the package.

    python docs/figures/make.py            # all of them, about two minutes; or names: log certificate law page pictures

`page` and `pictures` are photographs of pages of runs, and need Chromium. The other photographs here are of
results, by the commands that their captions name.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax
import numpy as np

import vhydro as vh
from vhydro.certificate import adaptive
from vhydro.cli import main as vhydro_command
from vhydro.data import sample, write
from vhydro.episodes import Channel, episode
from vhydro.filter import FilterSettings, filter
from vhydro.laws import Problem, Recording, candidates, recover
from vhydro.laws import text as equations
from vhydro.library import polynomial
from vhydro.model import axis_emission, hybrid_model, mode_kernel, port_hamiltonian
from vhydro.report.page import ASSETS, FONT, HAIRLINE, INK, QUIET, page
from vhydro.report.run_laws import pictures_html
from vhydro.report.timeline import COLOURS
from vhydro.systems import Puck, simulate, to_episodes
from vhydro_audits.labels import fit_contact_labeller

HERE = Path(__file__).parent
TEAL, ORANGE, BLUE, RED = COLOURS[1], COLOURS[2], COLOURS[3], COLOURS[6]
WIDE, LEFT, RIGHT = 760, 76, 24


class Panel(NamedTuple):
    """A box of the drawing with its own axes: pixels from the top, and what its edges mean."""

    top: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    right: float = WIDE - RIGHT

    def px(self, x) -> np.ndarray:
        return LEFT + (np.asarray(x) - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - LEFT)

    def py(self, y) -> np.ndarray:
        return self.top + self.height * (self.y[1] - np.clip(y, *self.y)) / (self.y[1] - self.y[0])

    def line(self, x, y, colour: str, width: float = 1.6, dash: str = "") -> str:
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.px(x), self.py(y), strict=True) if np.isfinite(b))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'

    def band(self, x, low, high, colour: str) -> str:
        edge = [*zip(self.px(x), self.py(high), strict=True), *zip(self.px(x)[::-1], self.py(low)[::-1], strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in edge)
        return f'<polygon points="{points}" fill="{colour}" fill-opacity=".18"/>'

    def dots(self, x, y, colour: str, radius: float = 1.7) -> str:
        shown = [(a, b) for a, b in zip(self.px(x), self.py(y), strict=True) if np.isfinite(b)]
        return "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius}" fill="{colour}"/>' for a, b in shown)

    def span(self, start: float, end: float, colour: str, opacity: float = 1.0) -> str:
        a, b = self.px([start, end])
        return (
            f'<rect x="{a:.1f}" y="{self.top}" width="{b - a:.1f}" height="{self.height}" fill="{colour}" '
            f'fill-opacity="{opacity}"/>'
        )

    def frame(self, ticks: Sequence[float] = (), name: str = "") -> str:
        """The ticks of the left edge, and what it shows."""
        out = [
            f'<line x1="{LEFT}" x2="{self.right}" y1="{self.py(t):.1f}" y2="{self.py(t):.1f}" stroke="{HAIRLINE}"/>'
            + text(LEFT - 8, self.py(t) + 4, f"{t:g}", QUIET, "end")
            for t in ticks
        ]
        return "".join(out) + (text(LEFT, self.top - 8, name, INK) if name else "")

    def times(self, ticks: Sequence[float]) -> str:
        return "".join(text(self.px(t), self.top + self.height + 17, f"{t:g} s", QUIET, "middle") for t in ticks)


def text(x, y, words: str, colour: str = INK, anchor: str = "start", size: float = 12, style: str = "") -> str:
    return (
        f'<text x="{float(x):.1f}" y="{float(y):.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}"{style}>'
        f"{escape(words)}</text>"
    )


def drawing(name: str, height: int, about: str, parts: Sequence[str]) -> Path:
    path = HERE / f"{name}.svg"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" width="{WIDE}" height="{height}" '
        f'role="img" '
        f'aria-label="{escape(about, quote=True)}" font-family="{escape(FONT, quote=True)}">'
        f'<rect width="100%" height="100%" rx="8" fill="#fff"/>{"".join(parts)}</svg>\n',
        "utf-8",
    )
    return path


def runs(values: np.ndarray) -> list[tuple[int, int]]:
    """Where a row of values stays the same: first index, and the one after the last."""
    cuts = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1), len(values)]
    return list(pairwise(cuts))


def draw_log() -> Path:
    """One log of the shipped sample, half of it hidden: what was seen, what is believed, which contact was on."""
    logs = list(sample("PokeCube"))
    fitted = vh.fit(logs[:2], validation=logs[2:], modes=3, refine=False)
    log = logs[2]
    dark = vh.occlude(log, 0.5, key=jax.random.key(5), burst=20)  # encoders are never in the dark: bodies alone
    bodies = np.array([c.group == "object" for c in log.channels])
    hidden = replace(log, observations=np.where(bodies, dark.observations, log.observations))
    belief, smooth = fitted.filter(hidden), fitted.smooth(hidden)
    low, high = fitted.intervals(hidden, belief)
    seen, truth = fitted.see(hidden), fitted.see(log)
    mean, _ = fitted.readings(belief)
    names = [c.name for c in seen.channels]
    time = np.arange(log.steps + 1) * log.dt
    end = float(time[-1])
    parts = [text(LEFT, 26, "One log, half of it hidden", INK, size=16, style=' font-weight="600"')]
    panels = []
    for k, body in enumerate(("peg", "cube")):
        column = names.index(f"{body}.x")
        values = truth.observations[:, column]
        middle, half = (values.max() + values.min()) / 2, max(0.72 * np.ptp(values), 0.05)
        panel = Panel(64 + 128 * k, 92, (0, end), (middle - half, middle + half))
        panels.append(panel)
        unseen = ~seen.observed[:, column]
        parts += [
            panel.span(max(time[a] - log.dt / 2, 0), min(time[b - 1] + log.dt / 2, end), "#f1f2f4")
            for a, b in runs(unseen) if unseen[a]
        ]  # fmt: skip
        ticks = np.round(np.linspace(values.min(), values.max(), 3), 2)
        parts += [
            panel.frame(ticks, f"{body}, x (m)"), panel.band(time, low[:, column], high[:, column], TEAL),
            panel.line(time, values, INK, 1, "3 3"), panel.line(time, mean[:, column], TEAL),
            panel.dots(time, np.where(unseen, np.nan, values), INK),
        ]  # fmt: skip
    first = panels[0]
    legend = (("● seen", INK, 272), ("┄ truth", INK, 206), ("▬ belief, 90 % band", TEAL, 70), ("■ hidden", QUIET, 0))
    parts += [text(first.right - left, 56, words, colour, "end", 11) for words, colour, left in legend]
    configuration = fit_contact_labeller(logs)(log).labels["configuration"]
    ours = Panel(310, 20, (0, end), (0, 1))
    theirs = Panel(352, 8, (0, end), (0, 1))
    parts.append(text(LEFT, 304, "contact, found without labels"))
    for a, b in runs(smooth.path):
        mode = int(smooth.path[a])
        parts.append(ours.span(time[a], time[min(b, log.steps)], COLOURS[mode]))
    order = {c: i for i, c in enumerate(dict.fromkeys(configuration.tolist()))}
    parts += [
        theirs.span(time[a], time[min(b, log.steps)], COLOURS[order[configuration[a]]], 0.55)
        for a, b in runs(configuration)
    ]
    parts += [
        text(LEFT, 347, "the simulator's contact forces, for comparison", QUIET, size=11),
        theirs.times(range(int(end) + 1)),
    ]
    for i, name in enumerate(fitted.names):
        y = 404 + 19 * i
        parts.append(
            f'<rect x="{LEFT}" y="{y - 10}" width="11" height="11" rx="2" fill="{COLOURS[i]}"/>'
            + text(LEFT + 18, y, name)
        )
    return drawing(
        "log", 456, "Place of a peg and a cube with the belief of the filter, and the contact modes below", parts
    )


def draw_certificate() -> Path:
    """What two certificates spend on one log: the paper's, and the two-sided one."""
    flow = port_hamiltonian(
        modes=2, latent=2, inputs=1, library=polynomial(latent=2, degree=2),
        coefficients=[[0, 0, 0, 0, 0.5], [0, 0, 6, 0, 0.5]], dissipation=np.diag([0, 0.1]), port=[[0], [1]],
    )  # fmt: skip
    emission = axis_emission(2, [0], noise=0.03)
    model = hybrid_model(mode_kernel(2, stay=0.95), flow, emission, noise=0.05, channels=["position"])
    rng, dt, z, path = np.random.default_rng(3), 0.05, np.array([-0.2, 0.35]), []
    for t in range(161):
        path.append(z[0])
        z[1] += dt * (-(12.0 if t >= 40 else 0.0) * z[0] - 0.1 * z[1]) + 0.05 * np.sqrt(dt) * rng.normal()
        z[0] += dt * z[1]
    seen = np.array(path) + 0.03 * rng.normal(size=161)
    seen[60:90] = np.nan
    seen[125] += 1.2  # a fault of the sensor
    log = episode(seen, np.zeros(160), dt=dt, channels=["position"])
    time = np.arange(161) * dt
    shown = {}
    for name in ("guide-free", "two-sided"):
        gate = adaptive(certificate=name, tolerance=0.5)
        settings = FilterSettings(particles=64, engine="mixture", gate=gate, lookahead=True, ess_threshold=1.0)
        shown[name] = filter(model, log, key=jax.random.key(0), settings=settings)
    belief = shown["two-sided"]
    mean, deviation = np.asarray(belief.mean)[:, 0], np.sqrt(np.asarray(belief.variance)[:, 0])
    top = Panel(52, 120, (0, 8), (-1.0, 1.9))
    low = Panel(222, 90, (0, 8), (-2.4, 0.1))
    parts = [text(LEFT, 26, "What a step spends, and what it certifies", size=16, style=' font-weight="600"')]
    parts += [
        top.span(60 * dt, 89 * dt, "#f1f2f4"),
        top.frame((-0.5, 0, 0.5), "position: readings, belief and its 90 % band; hidden from 3 to 4.5 s"),
    ]
    parts += [
        top.band(time, mean - 1.645 * deviation, mean + 1.645 * deviation, TEAL), top.line(time, mean, TEAL),
        top.dots(time, seen, INK), text(top.px(125 * dt) + 8, top.py(seen[125]) + 4, "a faulty reading", RED, size=11),
    ]  # fmt: skip
    parts.append(text(LEFT, 214, "λ, the share of draws from the model's own law"))
    for exponent in (-2, -1, 0):
        y = low.py(exponent)
        parts.append(
            f'<line x1="{LEFT}" x2="{low.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{HAIRLINE}"/>'
            + text(LEFT - 8, y + 4, f"{10.0**exponent:g}", QUIET, "end")
        )
    for name, colour, at in (("guide-free", ORANGE, -0.25), ("two-sided", TEAL, -1.62)):
        spent = np.asarray(shown[name].record.mixing)[1:]
        spent = spent.reshape(len(spent), -1).mean(1)
        parts += [
            low.line(time[1:], np.log10(np.maximum(spent, 1e-3)), colour),
            text(low.right, low.py(at), f"{name}: {np.median(spent):.2f}", colour, "end"),
        ]
    strip = Panel(340, 14, (0, 8), (0, 1))
    certified = np.asarray(belief.record.certified)
    for a, b in runs(certified[1:]):
        parts.append(strip.span(time[a], time[b], TEAL if certified[a + 1] else RED, 0.75))
    parts += [
        text(LEFT, 334, "certified (two-sided)"),
        text(strip.right, 334, "red: no promise for ten steps after a reading that nothing explains", RED, "end", 11),
    ]
    parts.append(strip.times(range(0, 9, 2)))
    return drawing("certificate", 386, "Belief, mixing share and certified steps of one log", parts)


def draw_law() -> Path:
    """Positions of a puck between two walls, and the law that was read off them."""
    puck = simulate(Puck(), 6, 400, 0.005, key=jax.random.key(0))
    seen = puck.states[..., :1] + np.random.default_rng(0).normal(scale=0.001, size=(6, 401, 1))
    names = ("q", "p"), ("m", "kg m/s"), ("force",), ("free", "left wall", "right wall")
    problem = Problem(*names, candidates(("length",)), dissipation=np.array([np.nan]), port=np.array([[0.0], [1.0]]))
    law = recover(Recording(seen, puck.actions, np.eye(3)[puck.modes], 0.005), problem)
    which = int(np.argmax([min(np.sum(m == 1), np.sum(m == 2)) for m in puck.modes]))  # it meets both walls
    path = np.asarray(law.simulate(np.asarray(puck.states[which, 0]), np.asarray(puck.actions[which]), dt=0.005))
    time = np.arange(401) * 0.005
    panel = Panel(64, 210, (0, 2), (-1.15, 1.15), right=392)
    parts = [text(24, 26, "From positions to an equation", size=16, style=' font-weight="600"')]
    parts += [panel.frame((-1, 0, 1), "position (m), 1 mm of noise")]
    parts += [panel.line(time, path[:, 0], ORANGE, 2.2)]
    for mode, colour in enumerate(("#7b8491", TEAL, BLUE)):
        keep = (puck.modes[which] == mode) & (np.arange(401) % 9 == 0)
        parts.append(panel.dots(time[keep], seen[which, keep, 0], colour, 2.4))
    parts.append(panel.times((0, 1, 2)))
    parts.append(
        text(LEFT, 312, "● readings, by mode    ", QUIET, size=11)
        + text(LEFT + 130, 312, "▬ the law, simulated from its start", ORANGE, size=11)
    )
    y = 74
    for block in equations(law).split("\n\n")[:3]:
        head, *rows = block.split("\n")
        parts.append(
            text(430, y, head, ("#626b79", TEAL, BLUE)[names[3].index(head)], size=13, style=' font-weight="600"')
        )
        for row in rows:
            y += 19
            parts.append(
                text(
                    442,
                    y,
                    row.strip(),
                    INK,
                    size=13,
                    style=" font-family=\"Cambria, 'STIX Two Text', 'Liberation Serif', Georgia, serif\"",
                )
            )
        y += 31
    parts.append(text(430, y + 2, "truth: 1200 N/m at ±1 m, damping 5.5 N s/m, 0.5 kg", QUIET, size=11))
    return drawing("law", 352, "Noisy positions of a bouncing puck and the equations recovered for each mode", parts)


def photograph(file: Path, out: Path, height: int) -> Path:
    """The top of a page, so many pixels high, as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("there is no Chromium here; expected one to photograph a page. Install it.")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--user-data-dir={file.parent}/browser", f"--screenshot={out}", f"--window-size=1100,{height}"]
    subprocess.run([browser, *options, f"file://{file.resolve()}"], check=True, capture_output=True)
    return out


def photograph_page() -> Path:
    """The page of the run that docs/start.md makes of its own logs."""
    written = re.findall(
        r"^```python\n(.*?)^```", (HERE.parent / "start.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )[0]
    view = ["--hand", "hand_x", "hand_y", "hand_z", "--body", "cup=cup_x,cup_y,cup_z"]
    with TemporaryDirectory() as folder, chdir(folder):
        exec(written, {})  # our own document: it writes the logs
        vhydro_command(["fit", "my_logs", *view, "--out", "run"])
        vhydro_command(["segment", "run", "my_logs", "--out", "run"])
        vhydro_command(["filter", "run", "my_logs", "--out", "run"])
        return photograph(Path(folder, "run", "index.html"), HERE / "run_page.png", 1230)


def photograph_pictures() -> Path:
    """The pictures of a law on the page of a run, of six logs of the puck with 1 mm of noise and no labels."""
    puck = simulate(Puck(), 6, 400, 0.005, key=jax.random.key(0))
    force = (Channel("force", "action", "N"),)
    logs = [replace(log.unlabelled(), inputs=force) for log in to_episodes(puck, 0.001, key=jax.random.key(1))]
    with TemporaryDirectory() as folder, chdir(folder):
        write(logs, "puck.npz")
        vhydro_command(["fit", "puck.npz", "--modes", "3", "--out", "run"])
        vhydro_command(["laws", "run", "puck.npz", "--out", "run"])
        drawn = pictures_html(json.loads(Path("run", "laws.json").read_text("utf-8")))
        small, style = Path(folder, "pictures.html"), (ASSETS / "run.css").read_text("utf-8")
        small.write_text(page("", [drawn], style=f"{style} .head, footer {{ display: none; }}"), "utf-8")
        return photograph(small, HERE / "law_pictures.png", 640)


DRAWINGS = {"log": draw_log, "certificate": draw_certificate, "law": draw_law, "page": photograph_page,
            "pictures": photograph_pictures}  # fmt: skip

if __name__ == "__main__":
    for chosen in sys.argv[1:] or DRAWINGS:
        print(DRAWINGS[chosen]())
