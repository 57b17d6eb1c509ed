"""Where friction shows itself: the force that is left without the law's friction, against velocity."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vhydro.report.charts import Key, Panel, figure, legend, straight
from vhydro.report.run_phase import DOUBTFUL, HEIGHT, WIDTH, clouds, mode_legend, with_unit
from vhydro.report.words import number

LAW = "#1d4ed8"


def friction_html(pictures: Sequence[Mapping[str, Any]], modes: Sequence[Mapping[str, Any]]) -> str:
    """The pictures of all positions as one figure; empty where there are none."""
    if not pictures:
        return ""
    panels = [friction_panel(one, modes) for one in pictures]
    every = [c for one in pictures for c in one["curves"]]
    doubtful = {_is_doubtful(c, modes) for c in every}
    keys = [Key("median", "var(--ink)", "ring")]
    keys += [Key("the law’s friction", LAW, dash="")] * (False in doubtful)
    keys += [Key("that of a law that is not identified", LAW, dash=DOUBTFUL)] * (True in doubtful)
    present = sorted({int(m) for one in pictures for m in one["mode"]})
    said = mode_legend(present, modes) + legend(keys)
    return said + figure(panels, "force against velocity", caption=_caption(pictures, modes))


def _is_doubtful(curve: Mapping[str, Any], modes: Sequence[Mapping[str, Any]]) -> bool:
    return modes[curve["mode"]]["status"] == "unidentified"


def friction_panel(one: Mapping[str, Any], modes: Sequence[Mapping[str, Any]]) -> Panel:
    """The force left over along one position, with the law's friction on top."""
    forces = [*one["f"], *(f for c in one["curves"] for f in c["f"])]
    across = straight([*one["v"], 0.0], with_unit(f"velocity of {one['name']}", one["rate"]))
    title = with_unit(f"force left over along {one['name']}", one["force"])
    panel = Panel(across, straight([*forces, 0.0], most=6), title, width=WIDTH, height=HEIGHT)
    panel.rule("y", 0.0)
    clouds(panel, one["v"], one["f"], one["mode"], "left", above=26)
    for curve in one["curves"]:
        dash = DOUBTFUL if _is_doubtful(curve, modes) else ""
        panel.line(curve["v"], curve["f"], LAW, name=f"friction {curve['mode']}", width=2.4, dash=dash)
    return panel.dots(one["medians"]["v"], one["medians"]["f"], "var(--ink)", name="median", symbol="ring", size=7.0)


def _caption(pictures: Sequence[Mapping[str, Any]], modes: Sequence[Mapping[str, Any]]) -> str:
    widths = sorted({number("{:.2g}", one["seconds"]) for one in pictures})
    laws = "; ".join(f"{escape(_formula(one, c, modes))}" for one in pictures for c in one["curves"])
    return (
        "What inputs do, less the motion and every other force of the law: what is left is friction, if the law is "
        f"right. Means over {' or '.join(widths)} s, within one mode and direction; a ring is the median of the "
        f"dots around it. The law: {laws}."
    )


def _formula(one: Mapping[str, Any], curve: Mapping[str, Any], modes: Sequence[Mapping[str, Any]]) -> str:
    """`friction along x = 0.1 v (N)`, v its velocity."""
    where = f" ({modes[curve['mode']]['name']})" if len(one["curves"]) > 1 else ""
    return f"friction along {one['name']}{where} = {with_unit(curve['words'], one['force'])}"
