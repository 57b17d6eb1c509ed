"""Contact truth from recorded forces, in two readings: the regime, and which bodies touch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from vhydro.episodes import Contact, Episode
from vhydro.modes.readings import regime_of
from vhydro_audits.labels.runs import without_short_runs

# Parts of one body: a grasp is one contact, whichever finger it is felt in.
HAND = frozenset({"hand", "lfinger", "rfinger", "grip", "gripper"})
# What things rest on. Lying on it is not an event; the hand touching it is.
SUPPORTS = frozenset({"table", "ground", "floor"})

Touching = frozenset[tuple[str, str]]


def _body(name: str) -> str:
    return "hand" if name in HAND else name


def _pair(contact: Contact) -> tuple[str, str]:
    first, second = sorted(_body(b) for b in contact.bodies)
    return first, second


def _is_resting(contact: Contact) -> bool:
    bodies = {_body(b) for b in contact.bodies}
    return bool(bodies & SUPPORTS) and "hand" not in bodies


@dataclass(frozen=True)
class ContactLabeller:
    """Labels from forces. `configurations` are the sets of touching pairs that count, the empty one first.

    `threshold`: newtons in a step's peak. `minimum_run`: shorter touches and gaps are dropped. `impact`: rows around
    each make or break. `slide_speed`: metres per second between two touching bodies. `slide_ratio`: tangential over
    normal force, as a share of the largest that the friction allows, where speeds do not tell.
    """

    configurations: tuple[Touching, ...]
    threshold: float = 1e-3
    minimum_run: int = 2
    impact: int = 3
    slide_speed: float = 0.01
    slide_ratio: float = 0.95
    friction: Mapping[tuple[str, str], float] = field(default_factory=dict)  # the largest ratio seen, per pair

    @property
    def names(self) -> tuple[str, ...]:
        """Every configuration in words."""
        return tuple(configuration_name(c) for c in self.configurations)

    def __call__(self, episode: Episode) -> Episode:
        """The episode with labels `regime`, `configuration` and `friction`.

        `regime`: free, impact or sustained. `configuration`: the index in `configurations`. `friction`: 1 where a
        touching pair slides, 0 where all stick, −1 where nothing touches or nothing tells.
        """
        touching = touches(episode, threshold=self.threshold, minimum_run=self.minimum_run)
        any_touch = np.any(list(touching.values()), axis=0) if touching else np.zeros(episode.steps + 1, bool)
        labels = {
            "regime": regime_of(any_touch, self.impact),
            "configuration": self._configuration(touching, episode.steps + 1),
            "friction": self._friction(episode, touching),
        }
        return replace(episode, labels={**episode.labels, **labels})

    def _configuration(self, touching: dict[tuple[str, str], np.ndarray], rows: int) -> np.ndarray:
        sets = _sets(touching, rows)
        index = {s: self._nearest(s) for s in set(sets)}
        return without_short_runs(np.array([index[s] for s in sets]), self.minimum_run)

    def _nearest(self, found: Touching) -> int:
        """The configuration itself, or for a rare one the most alike; the more frequent of equals."""
        return min(range(len(self.configurations)), key=lambda i: len(self.configurations[i] ^ found))

    def _friction(self, episode: Episode, touching: dict[tuple[str, str], np.ndarray]) -> np.ndarray:
        known = np.full(episode.steps + 1, -1)
        for pair, on in touching.items():
            slides = self._slides(episode, pair)
            if slides is not None:
                known = np.where(on, np.maximum(known, slides), known)
        return known

    def _slides(self, episode: Episode, pair: tuple[str, str]) -> np.ndarray | None:
        speed = sliding_speed(episode, *pair)
        if speed is not None:
            return np.where(np.isnan(speed), -1, speed > self.slide_speed)
        ratio = _ratios(episode).get(pair)
        if ratio is None or pair not in self.friction:
            return None
        return np.where(np.isnan(ratio), -1, ratio > self.slide_ratio * self.friction[pair])


def fit_contact_labeller(episodes: Iterable[Episode], *, share: float = 0.01, **options) -> ContactLabeller:
    """The labeller of these episodes: configurations that hold in at least `share` of their steps."""
    plain = ContactLabeller((frozenset(),), **options)
    counts: Counter[Touching] = Counter()
    ratios: dict[tuple[str, str], list[np.ndarray]] = {}
    for episode in episodes:
        touching = touches(episode, threshold=plain.threshold, minimum_run=plain.minimum_run)
        counts.update(_sets(touching, episode.steps + 1))
        for pair, ratio in _ratios(episode).items():
            ratios.setdefault(pair, []).append(ratio)
    total = sum(counts.values())
    if not total:
        raise ValueError("no episodes given; expected at least one with contact forces.")
    common = [c for c, n in counts.most_common() if n >= share * total and c]
    # Sliding is the upper edge of the ratios; the very largest are rounding in light touches.
    pressed = {pair: np.concatenate(r) for pair, r in ratios.items()}
    pressed = {pair: r[~np.isnan(r)] for pair, r in pressed.items()}
    friction = {pair: float(np.quantile(r, 0.999)) for pair, r in pressed.items() if r.size}
    return replace(plain, configurations=(frozenset(), *common), friction={**friction, **plain.friction})


def _ratios(episode: Episode) -> dict[tuple[str, str], np.ndarray]:
    """Tangential over normal force of every pair whose tangential force was recorded; NaN below one newton."""
    sums: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}
    for c in episode.contacts:
        if c.tangential is not None:
            normal, tangential = sums.get(_pair(c), (0.0, 0.0))
            sums[_pair(c)] = normal + c.normal, tangential + c.tangential
    return {pair: np.where(n >= 1, t / np.maximum(n, 1.0), np.nan) for pair, (n, t) in sums.items()}


def touches(episode: Episode, *, threshold: float, minimum_run: int) -> dict[tuple[str, str], np.ndarray]:
    """When each pair of bodies touches, the hand counted as one and lying on a support left out."""
    if not episode.contacts:
        where = episode.source or "this episode"
        raise ValueError(
            f"{where} has no contact forces; truth needs a log that recorded them. Use a ProxyLabeller instead."
        )
    found: dict[tuple[str, str], np.ndarray] = {}
    for contact in episode.contacts:
        if not _is_resting(contact):
            on = contact.peak > threshold
            found[_pair(contact)] = found.get(_pair(contact), np.zeros_like(on)) | on
    return {pair: without_short_runs(on, minimum_run) for pair, on in found.items()}


def _sets(touching: dict[tuple[str, str], np.ndarray], rows: int) -> list[Touching]:
    return [frozenset(pair for pair, on in touching.items() if on[t]) for t in range(rows)]


def configuration_name(configuration: Touching) -> str:
    """Such as `cube+peg, hand+peg`; `none` when nothing touches."""
    return ", ".join("+".join(pair) for pair in sorted(configuration)) or "none"


# --- sliding ----------------------------------------------------------------------------------------------------------


def sliding_speed(episode: Episode, first: str, second: str) -> np.ndarray | None:
    """How fast the second body moves against the first, if that were rigid and carried it; None if not recorded."""
    bodies = [_motion(episode, name) for name in (first, second)]
    if any(b is None for b in bodies):
        return None
    (place, velocity, spin), (other, other_velocity, _) = bodies  # pyright: ignore[reportGeneralTypeIssues]
    carried = velocity + np.cross(spin, other - place)
    return np.linalg.norm(other_velocity - carried, axis=1)


def _motion(episode: Episode, body: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Position, velocity and spin of a body, by differences over each step; None if its pose was not recorded."""
    name = _recorded_name(episode, body)
    where = {c.name: i for i, c in enumerate(episode.channels)}
    wanted = [f"{name}.{quantity}" for quantity in ("x", "y", "z", "qw", "qx", "qy", "qz")]
    pose = [where[n] for n in wanted if n in where]
    if len(pose) < len(wanted):
        return None
    place, quaternion = np.split(episode.observations[:, pose].astype(float), [3], axis=1)
    velocity = np.diff(place, axis=0, prepend=place[:1]) / episode.dt
    return place, velocity, _spin(quaternion, episode.dt)


def _recorded_name(episode: Episode, body: str) -> str | None:
    """The channels' name of a body: the hand is the tool centre point, `tool` may be `l_shape_tool`."""
    names = dict.fromkeys(c.name.rpartition(".")[0] for c in episode.channels)
    if body == "hand":
        return next((n for n in names if n in ("tcp", "eef", "hand")), None)
    if body in names:
        return body
    alike = [n for n in names if body in n.split("_")]
    if not alike and body in ("obj", "object"):
        alike = list(dict.fromkeys(c.name.rpartition(".")[0] for c in episode.channels if c.group == "object"))
    return alike[0] if len(alike) == 1 else None


def _spin(quaternion: np.ndarray, dt: float) -> np.ndarray:
    """Angular velocity in the world frame, from the rotation between each two rows."""
    before, after = quaternion[:-1], quaternion[1:]
    w = np.sum(before * after, axis=1)
    v = (
        before[:, :1] * after[:, 1:] - after[:, :1] * before[:, 1:] - np.cross(after[:, 1:], before[:, 1:])
    ) * np.where(w < 0, -1.0, 1.0)[:, None]
    norm = np.linalg.norm(v, axis=1)
    angle = 2 * np.arctan2(norm, np.abs(w))
    axis = v / np.where(norm > 0, norm, 1.0)[:, None]
    return np.concatenate([np.zeros((1, 3)), axis * angle[:, None] / dt])
