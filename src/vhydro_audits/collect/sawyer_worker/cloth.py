"""The cloth of the laundry family: how it is described, crumpled and measured."""

from xml.etree import ElementTree

import numpy as np

COUNT = 9  # vertices along each edge
EDGE = 0.2  # metres
SPACING = EDGE / (COUNT - 1)
THICKNESS = 0.005
MASS = 0.5
RASTER = 0.004  # metres between the points at which coverage is measured


def cloth_element(height: float) -> ElementTree.Element:
    """MuJoCo's description of a flat cloth just above the table."""
    return ElementTree.fromstring(f"""
        <flexcomp name="cloth" type="grid" dim="2" count="{COUNT} {COUNT} 1" spacing="{SPACING} {SPACING} {SPACING}"
                  mass="{MASS}" radius="{THICKNESS}" pos="0 0 {height + THICKNESS + 0.001}" rgba=".2 .4 .9 1">
          <edge equality="true" damping="0.1" solref="0.006 1"/>
          <contact condim="3" friction="0.6 0.005 0.0001" selfcollide="none" internal="false"
                   solref="0.004 1" solimp="0.97 0.995 0.002"/>
        </flexcomp>""")


def crumpled(rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Vertices (vertices, 3) of a cloth bunched in its middle, above the table's plane, and the angle it lies at.

    Two flat columns at each side are left to press on; between them every other column stands up.
    """
    shrink = rng.uniform(0.45, 0.6)
    shift = rng.uniform([-0.06, -0.06], [0.0, 0.06])
    angle = rng.uniform(-0.25, 0.25)
    strips = np.arange(COUNT - 1)
    lengths = np.where((strips < 2) | (strips >= COUNT - 3), 1.0, shrink)
    along = np.concatenate([[0.0], np.cumsum(lengths * SPACING)])
    along -= along.mean()
    up = _heights(SPACING * np.sqrt(1 - lengths**2))
    across = (np.arange(COUNT) - (COUNT - 1) / 2) * SPACING
    x, y = np.meshgrid(along, across, indexing="ij")
    z = up[:, None] + rng.uniform(0, 0.0005, x.shape)
    cos, sin = np.cos(angle), np.sin(angle)
    points = np.stack([cos * x - sin * y + shift[0], sin * x + cos * y + shift[1], z], axis=-1)
    return points.reshape(-1, 3), float(angle)


def _heights(rises: np.ndarray) -> np.ndarray:
    """How high each column stands: it rises over a short strip and comes down over the next."""
    heights = np.zeros(len(rises) + 1)
    for column, rise in enumerate(rises):
        heights[column + 1] = rise if heights[column] == 0 else 0.0
    return heights


def coverage(vertices: np.ndarray, triangles: np.ndarray) -> float:
    """The area of the table a cloth covers, as a share of its own area laid flat."""
    flat = vertices[:, :2]
    low = flat.min(0)
    covered = np.zeros(np.ceil((flat.max(0) - low) / RASTER).astype(int) + 1, bool)
    for corners in flat[triangles]:
        first = np.floor((corners.min(0) - low) / RASTER).astype(int)
        last = np.minimum(np.ceil((corners.max(0) - low) / RASTER).astype(int) + 1, covered.shape)
        window = tuple(slice(a, b) for a, b in zip(first, last, strict=True))
        points = np.stack(np.mgrid[window], axis=-1) * RASTER + low
        covered[window] |= _inside(points, corners)
    return float(covered.sum() * RASTER**2 / EDGE**2)


def _inside(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Which points lie in a triangle, its border included."""
    origin, edges = corners[0], (corners[1:] - corners[0]).T
    if abs(np.linalg.det(edges)) < 1e-9:
        return np.zeros(points.shape[:-1], bool)
    share = (points - origin) @ np.linalg.inv(edges).T
    slack = 0.02
    return (share >= -slack).all(-1) & (share.sum(-1) <= 1 + slack)
