"""Bodies that move by themselves: what was let go of or knocked keeps its last step, and nothing holds it.

A mode in which such a body is free has a twin in which it goes on as it went: `z' = z + d + noise`, d its last step as
the log shows it. The noise grows with d, for what rolls slows down. Twins begin when something is let go of, rarely
otherwise, and are told as the mode they are twins of: nothing touches what coasts. They serve to tell the modes of
whole logs, and only where logs often show such motion: a steady push looks just the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from vhydro.episodes import Channel, Episode
from vhydro.filter import Belief
from vhydro.gap import GapDrive
from vhydro.learning.contact import Scales, smoothed_log
from vhydro.learning.contact_em import ContactLaw
from vhydro.learning.start import FEWEST_ROWS
from vhydro.model import HybridModel
from vhydro.views.contact import MACHINE

OFTEN = 0.1  # of the rows in which a body moves: the least that coast, for twins of it
FAR = 4.0  # noise floors, or deviations of what sensors leave in a step: one that counts as motion
APART = 0.6  # of a step: how far it is from the hand's where a body coasts …
STEADY, LONG_STEADY = 0.3, 0.5  # … and from its own before, or from one some rows back, for it slows down meanwhile
RARELY = 0.001  # how often a body begins to move by itself that nothing has let go of
LET_GO = 0.5  # of all releases: the body moves on
BACK = 0.05  # the chance of every step to come to rest
SLOWS = 0.4  # of the last step: by how much the next one differs
SPAN = 2.0  # rows over which a last step is taken, in widths of the window that noisy bodies are smoothed by


@dataclass(frozen=True)
class Coasting:
    """How logs are shown to a model with twins, and which mode each of its modes is told as."""

    told_as: tuple[int, ...]
    channels: tuple[str, ...]  # that may coast
    span: int = 1  # rows over which a last step is taken

    def show(self, seen: Episode) -> Episode:
        """The log with the last step of every channel that may coast as an input."""
        names = [c.name for c in seen.channels]
        mine = [names.index(name) for name in self.channels]
        inputs = tuple(Channel(f"{names[i]}.last", "last step", seen.channels[i].unit) for i in mine)
        actions = np.concatenate([seen.actions, last_steps(seen.observations[:, mine], self.span)], 1)
        return replace(seen, actions=actions, inputs=(*seen.inputs, *inputs))

    def told(self, belief: Belief, modes: int) -> Belief:
        """The belief over so many modes: twins count among those they are told as."""
        fold = np.eye(modes)[list(self.told_as)]
        moments, smoothed = (
            None if m is None else m._replace(mode=np.asarray(m.mode) @ fold) for m in (belief.moments, belief.smoothed)
        )
        likeliest = None if belief.likeliest is None else np.asarray(self.told_as)[np.asarray(belief.likeliest)]
        return belief._replace(moments=moments, smoothed=smoothed, likeliest=likeliest, history=None, trajectories=None)


def coasting_of(record: Mapping[str, Any], model: HybridModel, twice: HybridModel | None) -> Coasting:
    """What a file says of it, if it fits the model and the one with twins."""
    out = Coasting(tuple(map(int, record["told_as"])), tuple(map(str, record["channels"])), int(record["span"]))
    known = set(out.channels) <= set(model.channels) and set(out.told_as) <= set(range(model.modes)) and out.span >= 1
    sizes = (len(out.told_as), model.inputs + len(out.channels))
    if not known or twice is None or (twice.modes, twice.inputs) != sizes or twice.channels != model.channels:
        raise ValueError("the modes in which bodies coast do not fit the model")
    return out


def last_steps(values: Float[np.ndarray, "rows channels"], span: int = 1) -> Float[np.ndarray, "steps channels"]:
    """How far each went in the step before every step, as a mean over so many; the last one seen where it is hidden."""
    out = np.full((len(values) - 1, values.shape[1]), np.nan)
    out[:1] = 0.0
    if len(values) > span + 1:
        out[span:] = (values[span:-1] - values[: -1 - span]) / span
    rows = np.maximum.accumulate(np.where(np.isnan(out), 0, np.arange(len(out))[:, None]), axis=0)
    return np.take_along_axis(out, rows, 0)


# --- which bodies coast ---------------------------------------------------------------------------------------------


def coasting_rows(seen: Episode, scales: Scales, bodies: Sequence[str]) -> Bool[np.ndarray, "steps channels"]:
    """The steps in which one of the bodies moves on by itself: far, apart from the hand's, and like the step before."""
    return _motion(seen, scales)[1] & np.array([c.group in bodies for c in seen.channels])


def coasting_bodies(seen: Sequence[Episode], scales: Scales) -> tuple[str, ...]:
    """The bodies that coast in a good part of the rows in which they move."""
    each = [_motion(e, scales) for e in seen]
    moving, coasting = (sum(part.sum(0) for part in parts) for parts in zip(*each, strict=True))
    least = FEWEST_ROWS * sum(e.steps for e in seen)
    groups = np.array([c.group for c in seen[0].channels], object)
    often = np.asarray((coasting > OFTEN * moving) & (coasting > least))
    return tuple(name for name in dict.fromkeys(groups) if often[groups == name].all())


def _motion(seen: Episode, scales: Scales) -> tuple[np.ndarray, np.ndarray]:
    """Of every step and channel: whether its body moves, and whether it does so by itself.

    Steps of smoothed paths are compared with one so far back that it shares no reading with them.
    """
    log = smoothed_log(seen, scales.width) if scales.width else seen
    width = len(scales.floor)
    step, drive = np.diff(log.observations, axis=0), log.actions[:, :width]
    groups, back = np.array([c.group for c in seen.channels]), 1 + round(SPAN * scales.width)
    steady = STEADY if back == 1 else LONG_STEADY
    moving, alone = np.zeros(step.shape, bool), np.zeros(step.shape, bool)
    for body in dict.fromkeys(groups):
        mine = groups == body
        if body in MACHINE:
            continue
        far, apart = np.linalg.norm(step[:, mine], axis=1), np.linalg.norm((step - drive)[:, mine], axis=1)
        change = np.full(len(step), np.inf)
        change[back:] = np.linalg.norm((step[back:] - step[:-back])[:, mine], axis=1)
        moves = far > FAR * max(scales.floor[mine].mean(), np.linalg.norm(scales.jitter[mine]))
        moving[:, mine] = moves[:, None]
        alone[:, mine] = (moves & (apart > APART * far) & (change < steady * far))[:, None]
    return moving, alone


# --- twins ----------------------------------------------------------------------------------------------------------


class Twins(NamedTuple):
    """The modes that have a twin, and what coasts in each."""

    coasting: Coasting
    moves: Bool[np.ndarray, "twins channels"]
    lets_go: Bool[np.ndarray, "modes twins"]  # of which modes the twin is a release
    own: int  # modes without twins

    @property
    def bases(self) -> tuple[int, ...]:
        return self.coasting.told_as[self.own :]


def twins_of(
    bodies: Sequence[str],
    couples: Bool[np.ndarray, "modes things"],
    share: np.ndarray,
    things: Sequence[str],
    seen: Episode,
    width: float,
) -> Twins | None:
    """A twin of the likeliest mode of every set of bodies that coast and are free in it; None where there are none."""
    if not bodies:
        return None
    free = ~couples[:, [things.index(b) for b in bodies]]
    first: dict[tuple[bool, ...], int] = {}
    for mode in np.argsort(-share[: len(couples)], kind="stable"):
        first.setdefault(tuple(free[mode].tolist()), int(mode))
    bases = sorted(mode for pattern, mode in first.items() if any(pattern))
    if not bases:
        return None
    groups = [c.group for c in seen.channels]
    loose = [[g in bodies and bool(free[b][bodies.index(g)]) for g in groups] for b in bases]
    lets_go = np.stack([(free[b] & ~free).any(1) for b in bases], 1)
    channels = tuple(c.name for c in seen.channels if c.group in bodies)
    coasting = Coasting((*range(len(couples)), *bases), channels, max(1, round(SPAN * width)))
    return Twins(coasting, np.array(loose), lets_go, len(couples))


def with_twins(law: ContactLaw, twins: Twins) -> ContactLaw:
    """The law with all twins; logits are relative to those of the mode that each is a twin of."""
    for twin, base in enumerate(twins.bases):
        released = np.append(twins.lets_go[:, twin], np.zeros(twin, bool))
        begins = law.logits[:, base] + np.log(np.where(released, LET_GO, RARELY))
        goes_on = np.append(law.logits[base], law.logits[base, base] + np.log1p(-BACK))
        goes_on[base] += np.log(BACK)
        law = law._replace(
            gain=np.vstack([law.gain, law.gain[base]]),
            logits=np.vstack([np.column_stack([law.logits, begins]), goes_on]),
            drive=np.column_stack([law.drive, law.drive[:, base]]) if law.drive.size else law.drive,
            log_start=np.append(law.log_start, law.log_start[base] + np.log(RARELY)),
        )
    return law


def coasting_model(model: HybridModel, twins: Twins, scales: Scales) -> HybridModel:
    """The model of a law with twins, its last steps as inputs that free bodies follow."""
    names = list(model.channels)
    mine = np.array([names.index(c) for c in twins.coasting.channels])
    moves = np.concatenate([np.zeros((twins.own, len(names)), bool), twins.moves])
    size, floor = scales.action[mine], scales.floor
    port, loose = np.zeros((2, *model.log_noise.shape, len(mine)))
    body = np.array([name.rsplit(".", 1)[0] for name in names])
    for j, c in enumerate(mine):
        port[:, c, j] = moves[:, c] * size[j] / floor[c]
        same = body == body[c]
        loose[:, same, j] = SLOWS * moves[:, same] * size[j] / floor[same]
    blur = np.sqrt(2) * scales.sensor / (twins.coasting.span * floor)  # of a last step
    noise = np.hypot(np.asarray(model.noise), np.where(moves, blur, 0.0))
    assert model.roughness is not None
    wider = [
        jnp.asarray(np.concatenate(x, -1), model.dtype) for x in ((model.flow.port, port), (model.roughness, loose))
    ]
    return replace(
        model,
        kernel=replace(model.kernel, drive=_blind_to(model.kernel.drive, len(mine))),
        flow=replace(model.flow, port=wider[0]),
        roughness=wider[1],
        log_noise=jnp.asarray(np.log(noise - model.noise_floor), model.dtype),
        action_scale=jnp.asarray(np.append(scales.action, size), model.dtype),
    )


def _blind_to(drive, inputs: int):
    """The drive of a kernel with so many more inputs, that it does not see."""
    if not isinstance(drive, GapDrive):
        return drive
    seen = drive.geometry
    wide = {n: getattr(seen, n) for n in ("before", "after", "others")}
    wide = {n: jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, inputs),)) for n, x in wide.items()}
    return replace(drive, geometry=replace(seen, **wide))
