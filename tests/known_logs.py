"""Small logs for every view, made by systems whose modes are known."""

import numpy as np

from vhydro.episodes import Channel, Episode

BODIES = ("cup", "plate")


def hand_log(seed: int, *, opens: float = 1.0, steps: int = 60) -> Episode:
    """A hand that wanders and, between two moments, has the cup between its fingers; the plate never moves."""
    random = np.random.default_rng(seed)
    grasp, release = random.integers(15, 25), random.integers(40, 50)
    held = (np.arange(steps + 1) > grasp) & (np.arange(steps + 1) <= release)
    asked = random.normal(size=(steps, 3))
    hand = np.concatenate([np.zeros((1, 3)), np.cumsum(0.01 * asked, 0)])
    cup = 0.1 + np.concatenate([np.zeros((1, 3)), np.cumsum(0.01 * asked * held[1:, None], 0)])
    command = np.where(held[1:], -1.0, 1.0)
    width = [0.04]
    for c in command:  # closes halfway to its target in a step, but for the cup between the fingers
        target = 0.02 * (1 + c)
        width.append(max(width[-1] + 0.5 * (target - width[-1]), 0.02 if c < 0 else 0.0))
    fingers = np.array(width)[:, None] * [1.0, -1.0]
    plate = np.full((steps + 1, 3), 0.3)
    names = [*(f"tcp.{a}" for a in "xyz"), "gripper.finger_1", "gripper.finger_2"]
    names += [f"{b}.{a}" for b in BODIES for a in "xyz"]
    groups = ["end_effector"] * 3 + ["gripper"] * 2 + ["object"] * 6
    return Episode(
        np.concatenate([hand, fingers, cup, plate], 1) + 1e-5 * random.normal(size=(steps + 1, 11)),
        np.concatenate([asked, opens * command[:, None]], 1),
        0.05,
        tuple(Channel(n, g, "m") for n, g in zip(names, groups, strict=True)),
        tuple(Channel(n, "action") for n in ("tcp.dx", "tcp.dy", "tcp.dz", "gripper.command")),
        labels={"configuration": held.astype(int)},
    )


def cloth_log(seed: int, steps: int = 80) -> Episode:
    """A hand that wanders over three knots in a row, and from time to time pulls the nearest by a third of its way."""
    random = np.random.default_rng(seed)
    place, knots, pulled = np.array([0.0, 0.0, 0.1]), np.array([[0.0, 0, 0], [0.2, 0, 0], [0.4, 0, 0]]), []
    hands, cloths = [place], [knots]
    for t in range(steps):
        step, pulls = 0.01 * random.normal(size=3), 20 <= t % 40 < 35
        nearest = np.linalg.norm(knots - place, axis=1).argmin()
        knots = knots + 1e-6 * random.normal(size=knots.shape)
        knots[nearest] += pulls * step / 3
        place = place + step
        hands.append(place)
        cloths.append(knots)
        pulled.append(pulls)
    names = [*(f"tcp.{a}" for a in "xyz"), *(f"cloth.v{k}.{a}" for k in (1, 2, 3) for a in "xyz")]
    values = np.concatenate([np.array(hands), np.array(cloths).reshape(steps + 1, 9)], 1)
    channels = tuple(Channel(n, "object" if n[0] == "c" else "end_effector", "m") for n in names)
    commands = np.zeros((steps, 1))
    labels = {"pulled": np.array([False, *pulled]).astype(int)}
    return Episode(values, commands, 0.05, channels, (Channel("gripper.command", "action"),), labels=labels)


def rolled_log(seed: int, steps: int = 90) -> Episode:
    """A hand that comes to a ball, pushes it, stops and goes back while the ball rolls on and slows down."""
    random = np.random.default_rng(seed)
    touch = int(random.integers(14, 20))
    push = int(random.integers(10, 15))
    heading = random.uniform(-0.5, 0.5)
    way = np.array([np.cos(heading), np.sin(heading), 0.0])
    pace = 0.008 * random.uniform(0.8, 1.2)
    speed = np.concatenate([np.full(touch + push, pace), np.zeros(4), np.full(steps - touch - push - 4, -0.6 * pace)])
    asked = speed[:, None] * way + 1e-4 * random.normal(size=(steps, 3))
    ball, last, touching = np.array([0.3, 0.1, 0.02]), np.zeros(3), [False]
    balls = [ball]
    for t in range(steps):
        held = touch <= t < touch + push
        last = asked[t] * [1, 1, 0] + 2e-4 * random.normal(size=3) * [1, 1, 0] if held else 0.97 * last
        ball = ball + last
        balls.append(ball)
        touching.append(held)
    start = balls[0] - 0.05 * way - pace * touch * way
    hand = start + np.concatenate([np.zeros((1, 3)), np.cumsum(asked, 0)])
    values = np.concatenate([hand, np.array(balls)], 1) + 1e-5 * random.normal(size=(steps + 1, 6))
    channels = tuple(
        Channel(f"{g}.{a}", group, "m") for g, group in (("tcp", "end_effector"), ("ball", "object")) for a in "xyz"
    )
    inputs = (Channel("gripper.command", "action"),)
    return Episode(
        values, np.zeros((steps, 1)), 0.05, channels, inputs, labels={"configuration": np.array(touching).astype(int)}
    )


# --- a ball that nobody holds -----------------------------------------------------------------------------------------

BALL_DT, GRAVITY = 0.01, 9.81
REST, FALL, STRUCK, SLIDE = range(4)
BALL_NOISE = np.array([[0.02, 0.02, 0.02], [0.05, 0.05, 0.05], [3.0, 3.0, 3.0], [0.05, 0.05, 0.05]]) * 1e-3
BALL_KEEP = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.9, 0.9, -0.3], [0.95, 0.95, 0.0]])
STEPS = (Channel("ball.dx", "level", "m"), Channel("ball.dy", "level", "m"), Channel("ball.dz", "upright", "m"))


def ball_steps(seed: int) -> Episode:
    """Steps of a ball that falls, is struck, falls again, is struck, slides and rests."""
    random = np.random.default_rng(seed)
    lengths = random.integers([15, 3, 10, 3, 25, 12], [25, 5, 16, 5, 35, 20])
    path = np.repeat([FALL, STRUCK, FALL, STRUCK, SLIDE, REST], lengths)
    steps = [np.array([*random.normal(0, 5e-3, 2), 0.0])]
    for mode in path[1:]:
        push = [0.0, 0.0, -GRAVITY * BALL_DT**2 if mode == FALL else 0.0]
        steps.append(BALL_KEEP[mode] * steps[-1] + push + BALL_NOISE[mode] * random.normal(size=3))
    return Episode(np.array(steps), np.zeros((len(steps) - 1, 0)), BALL_DT, STEPS, labels={"mode": path})


def ball_log(seed: int) -> Episode:
    """The places of the same ball, as a camera logs them; row 0 is before the first step."""
    steps = ball_steps(seed)
    places = np.concatenate([np.zeros((1, 3)), np.cumsum(steps.observations, 0)])
    channels = tuple(Channel(f"ball.{a}", "object", "m") for a in "xyz")
    labels = {"mode": np.concatenate([steps.labels["mode"][:1], steps.labels["mode"]])}
    return Episode(places, np.zeros((len(places) - 1, 0)), BALL_DT, channels, labels=labels)


# --- a mass on a spring, and a valve --------------------------------------------------------------------------------

MASS, STIFFNESS, FRICTION = 0.5, 8.0, 0.4


def spring_log(seed: int, *, rows: int = 60, dt: float = 0.05, noise: float = 2e-4) -> Episode:
    """The place of a mass on a spring, pushed by a force that changes from step to step."""
    random = np.random.default_rng(seed)
    force = np.repeat(random.normal(0, 1.0, -(-(rows - 1) // 5)), 5)[: rows - 1]
    state, places, small = random.normal(0, [0.2, 0.5]), [], 50
    for t in range(rows):
        places.append(state[0])
        for _ in range(small if t < rows - 1 else 0):
            speed = state[1] + dt / small * (force[t] - STIFFNESS * state[0] - FRICTION * state[1]) / MASS
            state = np.array([state[0] + dt / small * speed, speed])
    values = np.array(places)[:, None] + noise * random.normal(size=(rows, 1))
    channels, inputs = (Channel("cart.position", "object", "m"),), (Channel("cart.push", "action", "N"),)
    return Episode(values, force[:, None], dt, channels, inputs)


def valve_log(seed: int, steps: int = 60) -> Episode:
    """Pressure and flow that decay to rest where the valve is shut and follow it where it is open."""
    random = np.random.default_rng(seed)
    opened, closed = random.integers(12, 20), random.integers(40, 50)
    mode = ((np.arange(steps) >= opened) & (np.arange(steps) < closed)).astype(int)
    valve, value, rows = random.normal(size=steps), np.array([1.0, -1.0]), [np.array([1.0, -1.0])]
    for t in range(steps):
        gain = np.array([1.0, -0.5]) if mode[t] else np.zeros(2)
        value = value * ([0.7, 0.7] if mode[t] else [0.95, 0.9]) + gain * valve[t]
        value = value + 0.02 * random.normal(size=2)
        rows.append(value)
    channels = (Channel("pressure", "tank", "Pa"), Channel("flow", "pipe", ""))
    labels = {"mode": np.concatenate([mode[:1], mode])}
    return Episode(np.array(rows), valve[:, None], 0.1, channels, (Channel("valve", "action"),), labels=labels)
