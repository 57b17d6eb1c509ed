"""How a contact model that commands drive moves many particles at once: what a planner for a robot's hand asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from vhydro.commanded import CommandedModel
from vhydro.filter import Particles
from vhydro.particles import Draw, step_noise
from vhydro.planning.dynamics import Gap, Noise, Population, drawn_mode, population
from vhydro.planning.task import Readout, readout
from vhydro.small import beside, over, pick
from vhydro.views import ContactView


class ContactDynamics(eqx.Module):
    """A `CommandedModel` in steps of one sample; the mode counts what every body does, in base three."""

    model: CommandedModel
    readout: Readout
    actions: Readout
    seconds: float = eqx.field(static=True)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.actions.names

    @property
    def dtype(self):
        return self.model.noise.dtype

    def population(self, belief: Any) -> Population:
        """The points of what `Fitted.present` or `seen` gives."""
        if not isinstance(belief, Particles) or belief.z.shape[:1] != (self.model.latent,):
            raise ValueError(
                f"a {type(belief).__name__} that says nothing of the hand was given to plan from; expected a log so "
                "far, a running stream, or what `Fitted.present` makes of one. Call `fitted.plan(log, task)`."
            )
        return population(belief, self.model.latent, self.model.modes)

    def seen(self, view: ContactView, rows: Sequence[Mapping[str, float]], command: Any = None, mode: int = 0):
        """The belief where everything is seen: the last rows by channel name, the latest last, up to three of them.

        The last steps are between them; `command` is the one that led to the latest row.
        """
        z = seen_state(view, rows, command)
        one = jnp.ones((1,), self.dtype)
        return Particles(jnp.full((1,), mode, jnp.int32), jnp.asarray(z[:, None], self.dtype), 0 * one, one[0], None)

    def noise(self, key: PRNGKeyArray, steps: int, particles: int) -> Noise:
        """Uniform and normal numbers for every step."""
        n = len(self.model.bodies)
        layout = (Draw("mode", (n, particles), "uniform"), Draw("servo", (4, particles), "normal"),
                  Draw("body", (3 * n, particles), "normal"))  # fmt: skip
        return jax.vmap(lambda t: step_noise(layout, key, t, self.dtype))(jnp.arange(steps))

    def settle(self, mode, z, action):  # noqa: ARG002
        """The start as it is."""
        return mode, z

    def step(self, mode, z, action, noise: Noise):
        """The hand by its servo, then every body by what it is drawn to do."""
        model, shape = self.model, mode.shape
        axes = len(shape)
        command = jnp.broadcast_to(beside(action, axes), (action.shape[0], *shape))
        step = model.servo_step(z, command) + over(model.servo_noise, axes) * noise["servo"]
        hand, opening = z[:3] + step[:3], jnp.maximum(z[6:7] + step[3:4], 0.0)
        places, steps, after = [], [], jnp.zeros(shape, jnp.int32)
        for i in range(len(model.bodies)):
            regime = (mode // 3**i) % 3
            new = drawn_mode(model.log_regime(i, regime, z, step, command), noise["mode"][i])
            moved = model.body_step(i, new, z, step, command)
            moved = moved + pick(over(model.noise[i], axes), new) * noise["body"][3 * i : 3 * i + 3]
            places, steps, after = [*places, z[model.place(i)] + moved], [*steps, moved], after + new * 3**i
        memory = [z[3:6], opening - z[6:7], command]
        return after, jnp.concatenate([hand, step[:3], opening, *places, *steps, *memory])

    def compared(self, truth: Any, batched: bool, mode, z, action, noise: Noise, gap: Gap):  # noqa: ARG002
        """Refused: a network has no path law."""
        raise ValueError("networks have no path law to compare; certify by `conformal(record)` of held-out episodes.")

    def refuse_unlike(self, truth: Any) -> None:  # noqa: ARG002
        """Refused: a network has no path law."""
        raise ValueError("networks have no path law to compare; certify by `conformal(record)` of held-out episodes.")


def seen_state(view: ContactView, rows: Sequence[Mapping[str, float]], command: Any = None) -> np.ndarray:
    """The state of the latest of up to three rows; what they do not tell of the past was at rest."""
    if not rows:
        raise ValueError("no row is given; expected one to three, the latest last, each with the places of all things.")
    rows = [rows[0]] * (3 - len(rows)) + list(rows[-3:])
    things = [view.hand, *view.bodies.values()]
    place = lambda row, names: np.array([row[n] for n in names])  # noqa: E731
    width = lambda row: np.mean([abs(row[f]) for f in view.fingers])  # noqa: E731
    first, before, now = rows
    steps = [place(now, names) - place(before, names) for names in things]
    earlier = place(before, view.hand) - place(first, view.hand)
    told = np.zeros(4) if command is None else np.asarray(command, float)
    memory = [earlier, [width(now) - width(before)], told]
    places = [place(now, names) for names in things]
    return np.concatenate([places[0], steps[0], [width(now)], *places[1:], *steps[1:], *memory])


def contact_dynamics(model: CommandedModel, view: ContactView, dt: float) -> ContactDynamics:
    """The dynamics of a commanded model; a state has the log's channels, `opening`, and `NAME step` of places."""
    return ContactDynamics(model, *readouts(view, model.latent), dt)


def readouts(view: ContactView, latent: int) -> tuple[Readout, Readout]:
    """What a task may read: of the state all but its memory, and the commands."""
    places = [*view.hand, *(f"{n} step" for n in view.hand), "opening", *(n for b in view.bodies.values() for n in b)]
    places += [f"{n} step" for b in view.bodies.values() for n in b]
    return readout(tuple(places), np.eye(len(places), latent)), readout((*view.moves, view.grip), np.eye(4))
