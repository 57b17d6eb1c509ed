"""The law of a real linear drive, from its encoder and its voltage alone, and what the textbook law misses.

The machine is EMPS (Janot, Gautier, Brunot 2019): one prismatic axis, sampled at 1 kHz. The textbook law is
`M q̈ = force − Fv q̇ − Fc sign(q̇) − offset`. Which way the axis moves is read off its own motion; published values are
only printed beside the results.

    python examples/emps_law.py --path emps.npz
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from vhydro.data import read
from vhydro.laws import weak
from vhydro.laws.form import Form, form_of
from vhydro.laws.law import Law, Number
from vhydro.laws.nested import Step, held_out_width, ladder
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.tracks import Tracks, prepared
from vhydro.laws.weak import Rows, rows
from vhydro.laws.weak_errors import covariance_in_units_of_force, robust_covariance
from vhydro.laws.writing import text
from vhydro.library import Monomial

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "real" / "emps.npz"
WIDTHS = (15, 25, 35, 50, 70, 100, 140, 200, 280, 400)  # samples: half a bump; 15 ms to 0.4 s
LEAST_SPEED = 0.1  # of the usual speed: a motion that never gets that fast is not a reversal
FORWARD, BACKWARD = 0, 1
PUSH, KINETIC = Monomial((1, 0)), Monomial((0, 2))  # a constant force, as an energy; the energy of motion

PROBLEM = Problem(
    coordinates=("q", "p"),
    units=("m", "kg m/s"),
    inputs=("force",),
    modes=("forward", "backward"),
    library=candidates(("length",)),
    dissipation=np.array([np.nan]),
    port=np.array([[0.0], [1.0]]),  # the force is known in newtons: it gives the mass its scale
)


def directions(velocity: np.ndarray) -> np.ndarray:
    """Which way something moves at every sample, 1 or −1; a sign that only flickers does not count as a turn."""
    sign = np.where(velocity >= 0, 1, -1)
    run = np.concatenate([[0], np.cumsum(np.diff(sign) != 0)])
    fastest = np.zeros(run[-1] + 1)
    np.maximum.at(fastest, run, np.abs(velocity))
    sure = fastest[run] > LEAST_SPEED * np.sqrt(np.mean(velocity**2))
    last_sure = np.maximum.accumulate(np.where(sure, np.arange(len(run)), -1))
    return sign[np.where(last_sure < 0, np.argmax(sure), last_sure)]


def recorded(path: Path) -> tuple[Tracks, dict]:
    """The tracks of the axis, its modes the directions of its motion, and what the file says about itself."""
    episode = read(path)[0]
    unknown = np.full((1, len(episode.observations), 2), 0.5)
    log = Recording(episode.observations[None, :, :1], episode.actions[None], unknown, episode.dt)
    tracks = prepared(log, PROBLEM)
    way = directions(tracks.smooth.velocity[0, :, 0])
    return tracks._replace(modes=np.stack([way > 0, way < 0], -1)[None] * 1.0), dict(episode.info)


@dataclass(frozen=True)
class Study:
    """The weak form of a track at every width of bump, and the law to begin with."""

    tracks: Tracks

    @property
    def form(self) -> Form:
        """Forward is the base law; backward adds to it."""
        return form_of(PROBLEM, FORWARD, {BACKWARD: None}, ())

    @property
    def symmetric(self) -> np.ndarray:
        """The entries of the textbook law: one viscous friction, and a constant force that depends on direction."""
        return np.array([(e.block < 0 and e.kind != "energy") or e.term == PUSH for e in self.form.entries])

    @property
    def optional(self) -> np.ndarray:
        """What else a law may ask for: every other candidate, and a viscous friction of its own when backward."""
        return self.form.free & ~self.symmetric & np.array([not e.is_kinetic for e in self.form.entries])

    def rows(self, half_width: int) -> Rows:
        """The weak form's rows: bumps reach across the reversals."""
        backward, entries = self.tracks.modes[..., BACKWARD:], len(self.form.entries)
        return rows(self.form, self.tracks, backward, np.ones(backward.shape[:2]), np.zeros(entries), half_width)

    def width(self) -> int:
        """The bump that predicts the unseen half of the log best, with every candidate in the law."""
        return held_out_width(self.rows, WIDTHS, self.symmetric | self.optional)

    def law(self, found: Rows, support: np.ndarray) -> Law:
        """The law on a support, in units of force, its errors those of rows whose disturbances last."""
        form, theta = self.form, found.solution(support)
        covariance = covariance_in_units_of_force(form, theta, robust_covariance(found, support))
        whole = support | np.array([e.is_kinetic for e in form.entries])
        force = weak.in_units_of_force(form, theta)
        names = (PROBLEM.coordinates, PROBLEM.units, PROBLEM.inputs, PROBLEM.modes)
        return Law(*names, form, np.where(whole, force, 0.0), whole, covariance, "weak form")


def constants(law: Law) -> dict[str, Number]:
    """The constants of an axis with friction. Coulomb friction is half of what the constant force changes by at a turn;
    what is left of it is the offset, so that friction of either direction and an offset cannot all be told apart.
    """
    inverse = law.energy(FORWARD)[KINETIC]
    base, change = (i for i, e in enumerate(law.form.entries) if e.term == PUSH)
    half_turn, middle = np.zeros(len(law.theta)), np.zeros(len(law.theta))
    half_turn[change], middle[[base, change]] = -0.5, (1.0, 0.5)
    return {
        "M": Number(0.5 / inverse.value, 0.5 * inverse.error / inverse.value**2),
        "Fv forward": law.dissipation(FORWARD)[0],
        "Fv backward": law.dissipation(BACKWARD)[0],
        "Fc": _combined(law, half_turn),
        "offset": _combined(law, middle),
    }


def _combined(law: Law, weights: np.ndarray) -> Number:
    return Number(float(weights @ law.theta), float(np.sqrt(weights @ law.covariance @ weights)))


def force_left(found: Rows, law: Law, support: np.ndarray) -> float:
    """The root mean square force that a law leaves unexplained, averaged under a bump, in N."""
    left = found.residuals(found.solution(support)) * found.acceleration[:, None]
    return float(constants(law)["M"].value * np.sqrt(np.mean(left**2)))


def sensitivity(study: Study) -> dict[str, tuple[float, float]]:
    """The least and the largest value of every constant of the symmetric law over all widths of bump."""
    found = [constants(study.law(r, study.symmetric)) for r in map(study.rows, WIDTHS)]
    return {name: (min(c[name].value for c in found), max(c[name].value for c in found)) for name in found[0]}


def described(law: Law, support: np.ndarray, found: Rows, published: dict[str, float]) -> str:
    """A law's equations, its constants with 95 % intervals beside the published ones, and what it leaves over."""
    lines = [text(law).rstrip(), ""]
    for name, number in constants(law).items():
        low, high = number.interval
        stated = published[name.split()[0]]
        change = f"{100 * (number.value / stated - 1):+.1f} %" if name != "offset" else ""
        lines.append(f"  {name:12}{number.value:9.2f}   [{low:.2f}, {high:.2f}]   published {stated:.2f} {change}")
    return "\n".join([*lines, f"  unexplained force: {force_left(found, law, support):.2f} N", ""])


def rung(study: Study, step: Step, number: int) -> str:
    """One line about an entry that the law asked for."""
    entry = study.form.entries[step.entry]
    what = "friction Fv" if entry.term is None else f"energy {entry.term.text(PROBLEM.coordinates)}"
    where = "another backward" if entry.block >= 0 else "both ways"
    seen = step.against
    return (
        f"  {number}. {what}, {where}: BIC gain {seen.bic_gain:.0f} on {seen.effective_rows:.0f} effective rows, "
        f"misfit × {seen.wide / seen.narrow:.2f}, Wald χ² {seen.wald:.0f}"
    )


def main(path: Path = DATA) -> None:
    """Print the textbook law, what the data ask for beyond it, and the law with the first of that."""
    tracks, info = recorded(path)
    study = Study(tracks)
    published = {name: float(info[f"published_{name}"]) for name in ("M", "Fv", "Fc", "offset")}
    width = study.width()
    found = study.rows(width)
    print(f"Bumps of ±{width} samples, chosen by held-out error.\n\nSYMMETRIC LAW")
    print(described(study.law(found, study.symmetric), study.symmetric, found, published))
    print("Over bumps of " + ", ".join(map(str, WIDTHS)) + " samples:")
    for name, (low, high) in sensitivity(study).items():
        print(f"  {name:12}{low:9.2f} … {high:.2f}")
    steps = ladder(found, study.symmetric, study.optional)
    print("\nWHAT THE DATA ASK FOR BEYOND IT" + ("" if steps else ": nothing"))
    for number, step in enumerate(steps, 1):
        print(rung(study, step, number))
    if steps:
        print("\nLAW WITH THE FIRST OF THESE")
        print(described(study.law(found, steps[0].support), steps[0].support, found, published))


if __name__ == "__main__":
    tyro.cli(main)
