"""`vhydro laws MODEL DATA`: the law of every contact mode of a log, printed and kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import Positional

from vhydro.data import read
from vhydro.episodes import Episode
from vhydro.laws.chain import ChainConfig, chain, smoothed_modes
from vhydro.laws.constants import table
from vhydro.laws.law import Law, write_whole
from vhydro.laws.problem import Problem, candidates
from vhydro.laws.recording import Recording
from vhydro.laws.recover import LawsConfig, recover
from vhydro.laws.writing import latex, text
from vhydro.model import HybridModel
from vhydro.storage import load_model, save

FIND = "find"


@dataclass(frozen=True)
class LawsCommand:
    """Print the law of every contact mode of a log, with its constants and their 95 % intervals."""

    model: Positional[str]
    """A model file, whose smoothed modes are used; or `find`, to find modes and law from the log alone."""
    data: Positional[Path]
    """File or folder of episodes; the format is recognised from its content."""
    positions: tuple[str, ...] = ()
    """Channels that are positions or angles (unit rad); the model's channels, or all of them, if not given."""
    forces: tuple[str, ...] = ()
    """Inputs that are forces, one for each position in order; `-` where there is none. All inputs if not given."""
    carried_by: tuple[str, ...] = ()
    """Inputs that are velocities of the frame a position is measured in, one for each; `-` where there is none."""
    friction: tuple[float, ...] = ()
    """Known friction along each position in N s/m, where no input is a force; nan where it is to be estimated."""
    modes: int = 2
    """How many modes to find."""
    estimator: Literal["shooting", "weak", "lasso"] = "shooting"
    """shooting: the default. weak: quick, without simulation. lasso: the paper's."""
    out: Path | None = None
    """Folder for law.json, law.txt, law.tex and, with `find`, the model."""
    seed: int = 0


def run_laws(config: LawsCommand) -> Law:
    """The law, after it was printed and written."""
    episodes = list(read(config.data))
    saved = None if config.model == FIND else load_model(config.model)[0]
    names = config.positions or (saved.channels if saved else tuple(c.name for c in episodes[0].channels))
    recording = recording_of(episodes, names, saved.modes if saved else config.modes)
    problem = problem_of(episodes[0].select(list(names)), config, recording.modes.shape[-1])
    if saved is None:
        found = chain(recording, problem, ChainConfig(laws=LawsConfig(estimator=config.estimator)), seed=config.seed)
        law, model = found.law, found.model
    else:
        recording = recording._replace(modes=smoothed(saved, episodes, recording, config.seed))
        law, model = recover(recording, problem, LawsConfig(estimator=config.estimator)), None
    print(text(law))
    print(table(law), end="")
    if config.out is not None:
        _write(config.out, law, model)
    return law


def recording_of(episodes: Sequence[Episode], positions: Sequence[str], modes: int) -> Recording:
    """The named channels of all episodes side by side, every mode as likely as the others."""
    steps = {e.dt for e in episodes}
    if len(steps) > 1:
        raise ValueError(
            f"the episodes have steps of {min(steps):g} to {max(steps):g} s; expected one for all. Resample them, or "
            "fit each kind by itself."
        )
    times, m = max(e.steps for e in episodes) + 1, episodes[0].actions.shape[1]
    seen = np.full((len(episodes), times, len(positions)), np.nan)
    actions, weights = np.zeros((len(episodes), times - 1, m)), np.zeros((len(episodes), times, modes))
    for i, episode in enumerate(episodes):
        chosen = episode.select(list(positions))
        values = np.where(chosen.observed, chosen.observations, np.nan)
        seen[i, : len(values)], actions[i, : episode.steps] = values, episode.actions
        weights[i, : len(values)] = 1 / modes
    return Recording(seen, actions, weights, float(next(iter(steps))))


def problem_of(episode: Episode, config: LawsCommand, modes: int) -> Problem:
    """What the flags and the channels' units say is known."""
    channels, n = episode.channels, len(episode.channels)
    inputs = tuple(c.name for c in episode.inputs)
    port = np.zeros((2 * n, len(inputs)))
    forces = config.forces or (inputs[:n] if len(inputs) == n and not config.carried_by else ())
    for row, name in enumerate(forces):
        if name != "-":
            port[n + row, _input(name, inputs)] = 1.0
    for row, name in enumerate(config.carried_by):
        if name != "-":
            port[row, _input(name, inputs)] = -1.0
            port[n + row, _input(name, inputs)] = np.nan
    friction = np.array(config.friction) if config.friction else np.full(n, np.nan)
    if len(friction) != n:
        raise ValueError(f"{len(friction)} frictions for {n} positions; expected one for each, nan where unknown.")
    kinds: tuple[Literal["length", "angle"], ...] = tuple("angle" if c.unit == "rad" else "length" for c in channels)
    units = [c.unit or "m" for c in channels]
    momenta = ["kg m²/s" if unit == "rad" else "kg m/s" for unit in units]
    names = ("q",) if n == 1 and len(channels[0].name) > 12 else tuple(c.name for c in channels)
    return Problem(
        (*names, *(f"p_{x}" if n > 1 else "p" for x in names)),
        (*units, *momenta),
        inputs,
        tuple(f"mode {i + 1}" for i in range(modes)),
        candidates(kinds),
        friction,
        port,
    )


def _input(name: str, inputs: Sequence[str]) -> int:
    if name not in inputs:
        raise ValueError(f"unknown input {name!r}; the log has {', '.join(inputs) or 'none'}. Check the spelling.")
    return list(inputs).index(name)


def smoothed(model: HybridModel, episodes: Sequence[Episode], recording: Recording, seed: int) -> np.ndarray:
    """The smoothed weight of every mode: (episodes, times, modes), 0 in padding."""
    chosen = [episode.select(list(model.channels)) for episode in episodes]
    out = np.zeros_like(recording.modes)
    for i, modes in enumerate(smoothed_modes(model, chosen, ChainConfig(trajectories=128), seed)):
        out[i, : len(modes)] = modes
    return out


def _write(folder: Path, law: Law, model: HybridModel | None) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder for the law. Give another one.")
    folder.mkdir(parents=True, exist_ok=True)
    law.save(folder / "law.json")
    write_whole(folder / "law.txt", text(law) + "\n" + table(law))
    write_whole(folder / "law.tex", latex(law))
    if model is not None:
        save(folder / "model.safetensors", model=model)
    print(f"\n{folder}: law.json, law.txt, law.tex" + (", model.safetensors" if model is not None else ""))
