"""A run for Rerun's viewer, `RUN/run.rrd`: signals with their bands, modes, certificates, and bodies in space.

Every log has a branch of its own. Times are seconds from the log's first row.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vhydro.outputs import unfinished
from vhydro.report.run_files import Run, RunEpisode
from vhydro.report.traces import filled

APPLICATION = "vhydro"
AXES = ("x", "y", "z")
MOST_TABS = 30  # logs that have a tab of their own
COLOURS = (0x98A1ADFF, 0x0F9A9CFF, 0xE07A1FFF, 0x4F7FE0FF, 0xB455A4FF, 0x5F9A45FF, 0xD0473DFF, 0xA1834FFF)
BELIEVED, BAND, SEEN, HIDDEN = 0x1D4ED8FF, 0x1D4ED866, 0x5C6572FF, 0xB45309FF
SMALLEST = 0.004  # m: the least radius at which a body is drawn
TIMELINE = "time"


def imported_rerun() -> ModuleType:
    """The viewer's package; a ValueError says how to install it."""
    try:
        import rerun  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("Rerun is not installed, which view needs. Run: pip install 'vhydro[rerun]'") from error
    return rerun


def write_rrd(run: Run, path: Path) -> Path:
    """The file, which holds the whole run, or is as it was before."""
    rr = imported_rerun()
    with unfinished(path) as part:
        stream = rr.RecordingStream(APPLICATION, recording_id=run.name or "run")
        stream.save(part, default_blueprint=_blueprint(run))
        for episode in run.episodes:
            _log_episode(rr, stream, run, episode)
        stream.flush()
        stream.disconnect()
        part.replace(path)
    return path


def bodies(run: Run) -> dict[str, list[int]]:
    """The channels of every body that has a place: its x, y and z."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(run.channels):
        body, dot, axis = name.rpartition(".")
        if dot and axis in AXES:
            found.setdefault(body, []).append(i)
    return {b: places for b, places in found.items() if len(places) == len(AXES)}


def _log_episode(rr: ModuleType, stream: Any, run: Run, episode: RunEpisode) -> None:
    dt = run.dt or 1.0
    root = rr.new_entity_path([episode.name])
    for cut in episode.segments:
        words = run.modes[cut.mode] if cut.mode < len(run.modes) else f"mode {cut.mode}"
        sure = "" if cut.confidence is None else f" ({cut.confidence:.0%} sure)"
        stream.set_time(TIMELINE, duration=cut.start * dt)
        stream.log(f"{root}/segments", rr.TextLog(f"{cut.mode}: {words}{sure}"))
    stream.reset_time()
    if not episode.signals:
        return
    signals, times = filled(episode), np.arange(episode.rows) * dt

    def scalars(name: Sequence[str], values: np.ndarray, colour: int, words: str, *, dots: bool = False) -> None:
        place, known = f"{root}{rr.new_entity_path(list(name))}", np.isfinite(values)
        style = (
            rr.SeriesPoints(colors=colour, names=words, marker_sizes=2.0)
            if dots
            else rr.SeriesLines(colors=colour, names=words, widths=1.5)
        )
        stream.log(place, style, static=True)
        if known.any():
            when = rr.TimeColumn(TIMELINE, duration=times[known])
            stream.send_columns(place, [when], rr.Scalars.columns(scalars=values[known].astype(np.float64)))

    for i, name in enumerate(run.channels):
        scalars(("signals", name, "believed"), signals["mean"][:, i], BELIEVED, "believed")
        scalars(("signals", name, "low"), signals["low"][:, i], BAND, "low")
        scalars(("signals", name, "high"), signals["high"][:, i], BAND, "high")
        scalars(("signals", name, "seen"), signals["observations"][:, i], SEEN, "seen", dots=True)
        if np.isfinite(signals["hidden"][:, i]).any():
            scalars(("signals", name, "hidden"), signals["hidden"][:, i], HIDDEN, "hidden from the model", dots=True)
    for mode in range(signals["modes"].shape[1]):
        words = run.modes[mode] if mode < len(run.modes) else f"mode {mode}"
        scalars(("modes", str(mode)), signals["modes"][:, mode], COLOURS[mode % len(COLOURS)], f"{mode}: {words}")
    scalars(("trust", "certified"), signals["certified"].astype(np.float64), 0x166534FF, "certified")
    if "mixing" in signals:
        scalars(("trust", "spent"), signals["mixing"], BELIEVED, "λ spent")
    _log_bodies(rr, stream, run, signals, times, str(root))


def _log_bodies(rr: ModuleType, stream: Any, run: Run, signals: dict, times: np.ndarray, root: str) -> None:
    """Every body where it is believed to be, as large as its interval, with its path; the hand as a dot."""
    when = [rr.TimeColumn(TIMELINE, duration=times)]
    for n, (body, columns) in enumerate(bodies(run).items()):
        colour, place = COLOURS[(n + 1) % len(COLOURS)], f"{root}/world{rr.new_entity_path([body])}"
        centres = signals["mean"][:, columns]
        sizes = np.maximum(np.nan_to_num((signals["high"] - signals["low"])[:, columns] / 2, posinf=1.0), SMALLEST)
        stream.log(place, rr.Ellipsoids3D.from_fields(colors=[colour], labels=[body]), static=True)
        stream.send_columns(place, when, rr.Ellipsoids3D.columns(centers=centres, half_sizes=np.minimum(sizes, 1.0)))
        stream.log(f"{place}/path", rr.LineStrips3D([centres], colors=[colour], radii=[0.001]), static=True)
    if "hand" in signals:
        place = f"{root}/world/hand"
        stream.log(place, rr.Points3D.from_fields(colors=[SEEN], radii=[0.008], labels=["hand"]), static=True)
        stream.send_columns(place, when, rr.Points3D.columns(positions=signals["hand"]))


def _blueprint(run: Run) -> Any:
    """A tab for each log: bodies in space and segments beside modes and signals."""
    import rerun.blueprint as rrb  # pyright: ignore[reportMissingImports]

    rr = imported_rerun()
    bare = rrb.PlotLegend(visible=False)
    tabs = []
    for episode in run.episodes[:MOST_TABS]:
        root = rr.new_entity_path([episode.name])
        side = [rrb.TextLogView(origin=f"{root}/segments", name="segments")]
        if not episode.signals:
            tabs.append(rrb.Vertical(*side, name=episode.name))
            continue
        if bodies(run):
            side.insert(0, rrb.Spatial3DView(origin=f"{root}/world", name="bodies"))
        modes = rrb.TimeSeriesView(origin=f"{root}/modes", name="mode probabilities")
        trust = rrb.TimeSeriesView(origin=f"{root}/trust", name="certified and λ spent", plot_legend=bare)
        signals = [
            rrb.TimeSeriesView(origin=f"{root}/signals{rr.new_entity_path([c])}", name=c, plot_legend=bare)
            for c in run.channels
        ]
        charts = rrb.Vertical(rrb.Horizontal(modes, trust), rrb.Grid(*signals), row_shares=[1, 3])
        tabs.append(rrb.Horizontal(rrb.Vertical(*side), charts, column_shares=[2, 3], name=episode.name))
    return rrb.Blueprint(rrb.Tabs(*tabs), collapse_panels=True)
