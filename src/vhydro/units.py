"""Units of channels: everything is turned into SI in one place, and a unit nobody knows is said."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import pi

import numpy as np

from vhydro.episodes import Channel, Episode

PREFIXES = {"": 1.0, "k": 1e3, "c": 1e-2, "m": 1e-3, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6}
BASE = ("m", "s", "N", "V", "A", "W", "J", "Pa", "Hz", "rad", "K")
NAMES = {  # of units without prefixes, or spelled out
    "": (1.0, ""), "1": (1.0, ""), "-": (1.0, ""),
    "deg": (pi / 180, "rad"), "°": (pi / 180, "rad"), "degree": (pi / 180, "rad"), "degrees": (pi / 180, "rad"),
    "radian": (1.0, "rad"), "radians": (1.0, "rad"), "rev": (2 * pi, "rad"), "turn": (2 * pi, "rad"),
    "meter": (1.0, "m"), "metre": (1.0, "m"), "meters": (1.0, "m"), "metres": (1.0, "m"), "in": (0.0254, "m"),
    "inch": (0.0254, "m"), "ft": (0.3048, "m"), "min": (60.0, "s"), "kg": (1.0, "kg"), "g": (1e-3, "kg"),
    "rpm": (2 * pi / 60, "rad/s"), "lbf": (4.4482216, "N"), "Nm": (1.0, "N m"), "kgf": (9.80665, "N"),
}  # fmt: skip


def si_unit(unit: str) -> tuple[float, str] | None:
    """What to multiply a value by, and the SI unit it then has; None of a unit that is not known.

    Products, quotients and powers of known units are known: `mm/s`, `deg/s^2`, `N·m`, `kg m²/s`.
    """
    text = unit.strip()
    if text in NAMES:
        return NAMES[text]
    above, *below = re.split(r"\s*/\s*", text)
    parts = [(p, 1) for p in re.split(r"[\s·*]+", above)] + [
        (p, -1) for one in below for p in re.split(r"[\s·*]+", one)
    ]
    found = [_power(part, sign) for part, sign in parts if part]
    if not found or any(f is None for f in found):
        return None
    known = [f for f in found if f is not None]
    return float(np.prod([f[0] for f in known])), _written([f[1] for f in known], [p[1] for p in parts if p[0]])


SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴", "-01234")


def _power(part: str, sign: int) -> tuple[float, str] | None:
    """The factor and the SI name of one unit to a power."""
    match = re.fullmatch(r"([^\d\^⁻⁰¹²³⁴-]+)\^?([\d⁻⁰¹²³⁴-]*)", part)
    one = None if match is None else _single(match[1])
    if match is None or one is None:
        return None
    exponent = match[2].translate(SUPERSCRIPTS)
    power = int(exponent) if re.fullmatch(r"-?\d+", exponent) else 1
    if exponent and not re.fullmatch(r"-?\d+", exponent):
        return None
    mark = "" if power == 1 else {2: "²", 3: "³"}.get(power, f"^{power}")
    return one[0] ** (sign * power), one[1] + mark


def _single(name: str) -> tuple[float, str] | None:
    if name in NAMES:
        return NAMES[name]
    for prefix, factor in PREFIXES.items():
        if name.startswith(prefix) and name[len(prefix) :] in BASE:
            return factor, name[len(prefix) :]
    return None


def _written(names: Sequence[str], signs: Sequence[int]) -> str:
    above = " ".join(n for n, s in zip(names, signs, strict=True) if s > 0)
    below = "/".join(n for n, s in zip(names, signs, strict=True) if s < 0)
    return f"{above}/{below}" if below else above


def in_si(episode: Episode) -> Episode:
    """The log with every channel and input in SI units; those of an unknown unit stay as they are."""
    factors, channels = _converted(episode.channels)
    input_factors, inputs = _converted(episode.inputs)
    if (channels, inputs) == (episode.channels, episode.inputs):
        return episode
    return replace(
        episode,
        observations=episode.observations * factors,
        channels=channels,
        actions=episode.actions * input_factors,
        inputs=inputs,
    )


def _converted(channels: Sequence[Channel]) -> tuple[np.ndarray, tuple[Channel, ...]]:
    found = [si_unit(c.unit) or (1.0, c.unit) for c in channels]
    named = tuple(replace(c, unit=unit) for c, (_, unit) in zip(channels, found, strict=True))
    return np.array([factor for factor, _ in found]), named


def unknown_units(episode: Episode) -> tuple[str, ...]:
    """The units of a log that nobody knows."""
    return tuple(dict.fromkeys(c.unit for c in (*episode.channels, *episode.inputs) if si_unit(c.unit) is None))
