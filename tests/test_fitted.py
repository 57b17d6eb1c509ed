"""The contract of fitted models: every verb through every view, the same before and after the file, and bad input."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest

import vhydro
from known_logs import ball_log, cloth_log, hand_log, spring_log, valve_log
from vhydro.certificate import Certificate, Gate
from vhydro.episodes import Channel, Episode
from vhydro.filter import FilterSettings
from vhydro.fitted import Fitted, load, load_stream
from vhydro.fitting import fit
from vhydro.laws.constants import table
from vhydro.laws.writing import text
from vhydro.learning import contact_modes
from vhydro.modes import path_of
from vhydro.proposal import amortized_proposal
from vhydro.storage import ModelFileError, save
from vhydro.views import BodyView, ContactView, MechanicsView, PlainView


class Kind(NamedTuple):
    """Small logs of a view, and how they are fitted."""

    make: Callable[[int], Episode]
    modes: int
    options: dict


KINDS = {
    "contact": Kind(hand_log, 2, {}),
    "mechanics": Kind(spring_log, 1, {"calibrate": False}),
    "body": Kind(ball_log, 3, {"calibrate": False, "refine": True}),
    "plain": Kind(valve_log, 2, {"calibrate": False}),
}


class Kept(NamedTuple):
    """A fitted model, the same from its file, and logs that it was not fitted to."""

    kind: str
    before: Fitted
    after: Fitted
    logs: list[Episode]


def made(kind: str, count: int = 4) -> list[Episode]:
    return [KINDS[kind].make(seed) for seed in range(count)]


@pytest.fixture(scope="module", params=KINDS)
def kept(request, tmp_path_factory) -> Kept:
    _, modes, options = KINDS[request.param]
    logs = made(request.param, 6)
    before = fit(logs[:3], modes=modes, validation=logs[3:4], **{"refine": False, **options})
    path = tmp_path_factory.mktemp("models") / "task.vhydro"
    before.save(path)
    return Kept(request.param, before, load(path), logs[4:])


@pytest.fixture(scope="module")
def plain() -> Fitted:
    logs = made("plain")
    return fit(logs[:3], modes=1, validation=logs[3:], refine=False, calibrate=False)


def assert_same_belief(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


# --- every verb -------------------------------------------------------------------------------------------------------


def test_a_file_holds_all_of_it(kept):
    one, two = kept.before, kept.after
    assert one.view.kind == kept.kind
    assert (one.view, one.names, one.dt, one.channels, one.inputs) == (
        two.view, two.names, two.dt, two.channels, two.inputs,
    )  # fmt: skip
    assert (one.settings, one.report, str(one)) == (two.settings, two.report, str(two))
    np.testing.assert_array_equal(one.couples, two.couples)
    assert jax.tree.structure(one.model) == jax.tree.structure(two.model)
    for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(two.model), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_filter_is_the_same_and_certified(kept):
    one, two = (f.filter(kept.logs[0], seed=3) for f in (kept.before, kept.after))
    assert_same_belief(one, two)
    rows = kept.before.see(kept.logs[0]).steps + 1
    assert one.mode.shape == (rows, len(kept.before.names))
    assert np.isfinite(one.mean).all()
    assert (np.asarray(one.record.certificate) != Certificate.NONE).all()
    assert np.mean(one.record.certified) > 0.8
    assert not np.any(one.record.refused)  # the usual action is no fault
    together = kept.after.filter_all(kept.logs[:3], seed=3)
    for log, belief in zip(kept.logs, together, strict=False):
        alone = one if log is kept.logs[0] else kept.before.filter(log, seed=3)
        np.testing.assert_allclose(belief.mean, alone.mean, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(belief.log_evidence, alone.log_evidence, rtol=1e-4, atol=1e-2)


def test_smooth_and_segments_are_the_same(kept):
    one, two = (f.smooth(kept.logs[0], seed=3) for f in (kept.before, kept.after))
    assert_same_belief(one, two)
    found = kept.before.segments(kept.logs, seed=3)
    assert found == kept.after.segments(kept.logs, seed=3)
    assert kept.after.segments(kept.logs[0], seed=3) == found[:1]
    np.testing.assert_array_equal(path_of(found[0], len(one.path)), one.path)
    assert {s.mode for log in found for s in log} <= set(range(len(kept.before.names)))
    assert all(0 < s.confidence <= 1 + 1e-6 for log in found for s in log)


def test_laws_are_the_same_or_one_sentence_says_why_not(kept):
    if kept.kind != "mechanics":
        for fitted in (kept.before, kept.after):
            with pytest.raises(ValueError, match=f"through the {kept.kind} view, which shows no forces.*Fit with"):
                fitted.laws(kept.logs)
        return
    assert kept.before.law is not None
    assert kept.after.law is not None
    assert text(kept.before.law) == text(kept.after.law)
    one, two = (f.laws(kept.logs, seed=3) for f in (kept.before, kept.after))
    assert text(one) + table(one) == text(two) + table(two)
    assert one.modes == kept.before.names  # the same numbers and names in every verb
    np.testing.assert_array_equal(jax.tree.leaves(one.as_model().flow)[0], jax.tree.leaves(two.as_model().flow)[0])


def test_score_intervals_and_readings_are_the_same(kept):
    log = kept.logs[0]
    assert kept.before.score(kept.logs, seed=3) == kept.after.score(kept.logs, seed=3)
    belief = kept.after.filter(log, seed=3)
    (low, high), again = (f.intervals(log, belief, 0.8) for f in (kept.before, kept.after))
    np.testing.assert_array_equal((low, high), again)
    seen = kept.before.see(log)
    inside = (low <= seen.observations) & (seen.observations <= high)
    assert inside.mean() > 0.6
    mean, deviation = kept.after.readings(belief)
    np.testing.assert_allclose(*(x[seen.observed] for x in (mean, seen.observations)), atol=float(6 * deviation.max()))
    assert (kept.before.model.calibration is not None) == (kept.kind == "contact")


def test_a_stream_has_the_numbers_of_the_filter(kept, tmp_path):
    fitted, log = kept.after, kept.logs[0]
    names, told = [c.name for c in log.channels], [c.name for c in log.inputs]
    rows = log.observations[:, [names.index(c.name) for c in fitted.channels]].copy()
    actions = log.actions[:, [told.index(c.name) for c in fitted.inputs]]
    movable = [i for i, c in enumerate(fitted.channels) if c.group not in ("end_effector", "gripper")]
    rows[8:12, movable] = np.nan
    values = log.observations.copy()
    values[:, [names.index(c.name) for c in fitted.channels]] = rows
    whole = fitted.filter(replace(log, observations=values), seed=2)
    stream = fitted.stream(dt=log.dt, seed=2)
    steps = [stream.start(rows[0])]
    for t, (action, row) in enumerate(zip(actions, rows[1:], strict=True)):
        if t == 5:  # by name, what is hidden left out
            row = {c.name: v for c, v in zip(fitted.channels, row, strict=True) if not np.isnan(v)}
            action = {c.name: v for c, v in zip(fitted.inputs, action, strict=True)}
        steps.append(stream.step(action, row))
    stream.export(tmp_path / "stream")  # and one from a file its bits
    loaded = load_stream(tmp_path / "stream")
    again = [loaded.start(rows[0]), *(loaded.step(a, y) for a, y in zip(actions, rows[1:], strict=True))]
    assert (loaded.names, loaded.channels, loaded.view) == (fitted.names, fitted.channels, fitted.view)
    for one, other in zip(jax.tree.leaves(steps), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    if kept.kind == "body":
        assert steps.pop(0) is None  # a step needs two rows
    np.testing.assert_allclose([s.mode for s in steps], whole.mode, atol=2e-4)
    np.testing.assert_allclose([s.mean for s in steps], whole.mean, rtol=2e-3, atol=2e-3)
    assert sum(float(s.record.log_normaliser) for s in steps) == pytest.approx(
        float(np.sum(whole.record.log_normaliser)), rel=1e-3
    )


def test_a_stream_follows_a_cloth_through_the_dark():
    """Where a cloth is touched is added up from row to row; a stream does so with the rows since it was last seen."""
    logs = [cloth_log(seed, steps=60) for seed in range(4)]
    fitted = fit(logs[:2], modes=2, validation=logs[2:3], refine=False, calibrate=False)
    values = logs[3].observations.copy()
    values[30:33, 3:] = np.nan
    values[40, 5] = np.nan
    whole = fitted.filter(replace(logs[3], observations=values))
    stream = fitted.stream()
    steps = [stream.start(values[0]), *(stream.step([], row) for row in values[1:])]
    np.testing.assert_allclose([s.mode for s in steps], whole.mode, atol=2e-4)
    np.testing.assert_allclose([s.mean for s in steps], whole.mean, rtol=2e-3, atol=2e-3)


def test_the_report_says_what_was_seen_and_chosen(kept):
    said = str(kept.before)
    for words in (f"{kept.kind} view: ", "4 logs", "1 held out", "held-out log evidence"):
        assert words in said
    for i, name in enumerate(kept.before.names):
        assert f"mode {i}: {name}" in said
    assert ("one mode" in said) == (len(kept.before.names) == 1)
    assert ("calibrated on 1 held-out log" in said) == (kept.kind == "contact")
    assert ("not refined: modes and noise are those" in said) == (kept.kind != "body")


@pytest.mark.parametrize(("most", "said"), [(2, True), (3, False)])
def test_a_fit_says_when_it_took_the_most_modes_it_tries(monkeypatch, most, said):
    monkeypatch.setattr(contact_modes, "MOST", most)
    found = fit(made("contact", 5), refine=False, calibrate=False)
    assert any(f"{most} modes are the most that are tried" in line for line in found.report) == said


def test_the_channels_and_the_units_of_the_model_do_not_matter_to_a_log(kept):
    """A log that declares mm, and has more channels, is the same log."""
    log = kept.logs[0]
    thousand = np.array([1e3 if c.unit == "m" else 1.0 for c in log.channels])
    channels = tuple(replace(c, unit="mm") if c.unit == "m" else c for c in log.channels)
    other = replace(
        log,
        observations=np.hstack([np.zeros((log.steps + 1, 1)), log.observations * thousand]),
        channels=(Channel("clock", "scene", "s"), *channels),
    )
    np.testing.assert_allclose(kept.after.filter(other).mean, kept.after.filter(log).mean, rtol=1e-4, atol=1e-4)


# --- settings and guides ----------------------------------------------------------------------------------------------


def test_a_guide_in_the_file_is_kept(plain, tmp_path):
    guide = amortized_proposal(plain.model, hidden=(4,), key=jax.random.key(0))
    settings = FilterSettings(particles=32, engine="mixture", gate=Gate(fixed=0.4))
    for number, one in enumerate((replace(plain, guide=guide, settings=settings), replace(plain, guide=None))):
        one.save(tmp_path / f"{number}.vhydro")
        again = load(tmp_path / f"{number}.vhydro")
        assert again.settings == one.settings
        assert jax.tree.structure(again.guide) == jax.tree.structure(one.guide)
        for a, b in zip(jax.tree.leaves(again.guide), jax.tree.leaves(one.guide), strict=True):
            np.testing.assert_array_equal(a, b)
    log = made("plain", 5)[4]
    guided = replace(plain, guide=guide, settings=settings)
    assert_same_belief(guided.filter(log), load(tmp_path / "0.vhydro").filter(log))
    ungated = replace(plain, settings=settings).filter(log)
    assert not np.array_equal(guided.filter(log).mean, ungated.mean)  # or it would have been ignored


def test_options_of_one_call_are_those_of_the_filter(plain):
    log = made("plain", 5)[4]
    few = plain.filter(log, particles=16, engine="mixture")
    assert few.final.z.shape[-1] == 16
    assert plain.settings.particles == 64
    with pytest.raises(ValueError, match="engine is 'sonar'; expected one of"):
        plain.filter(log, engine="sonar")


def test_the_library_exports_what_a_user_needs():
    assert vhydro.fit is fit
    assert vhydro.load is load
    assert set(vhydro.__all__) <= set(dir(vhydro))
    for name in vhydro.__all__:
        assert getattr(vhydro, name) is not None
    with pytest.raises(AttributeError, match="it has read, Episode"):
        vhydro.learn  # noqa: B018


# --- files ------------------------------------------------------------------------------------------------------------


def test_older_newer_and_broken_files_say_what_to_do(plain, tmp_path):
    plain.save(tmp_path / "good.vhydro")
    model = plain.model
    notes = {"contacts": ["nothing"], "dt": 0.1}
    save(tmp_path / "learned.safetensors", notes=notes, model=model)
    with pytest.raises(ModelFileError, match="`vhydro learn` of an older version.*Fit the logs again with `vhydro fit"):
        load(tmp_path / "learned.safetensors")
    save(tmp_path / "bare.safetensors", model=model)
    with pytest.raises(ModelFileError, match="without the view and names of a fitted model. Fit the logs again"):
        load(tmp_path / "bare.safetensors")
    save(tmp_path / "newer.vhydro", notes={"fitted": 99}, model=model)
    with pytest.raises(ModelFileError, match="is of format 99; expected 1. Use the version that wrote it"):
        load(tmp_path / "newer.vhydro")
    save(tmp_path / "part.vhydro", notes={"fitted": 1, "view": {"kind": "sonar"}}, model=model)
    with pytest.raises(ModelFileError, match="does not hold a whole fitted model.*Fit the logs again"):
        load(tmp_path / "part.vhydro")
    whole = (tmp_path / "good.vhydro").read_bytes()
    (tmp_path / "cut.vhydro").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError):
        load(tmp_path / "cut.vhydro")
    with pytest.raises(OSError, match="none"):
        load(tmp_path / "none.vhydro")


def test_nothing_half_written_is_left(plain, tmp_path, monkeypatch):
    path = tmp_path / "task.vhydro"
    plain.save(path)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        replace(plain, report=(object(),)).save(path)  # pyright: ignore[reportArgumentType]
    with pytest.raises((TypeError, ValueError)):
        replace(plain, dt=object()).save(path)  # pyright: ignore[reportArgumentType]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_model_is_not_used_on_the_logs_of_another_robot(kept):
    other = made("plain" if kept.kind != "plain" else "contact", 1)[0]
    for verb in (kept.after.filter, kept.after.smooth, kept.after.segments):
        with pytest.raises(ValueError, match=rf"which the {kept.kind} view reads; it has the channels .*Name what it"):
            verb(replace(other, dt=kept.after.dt))
    log = kept.logs[0]
    with pytest.raises(ValueError, match="expected .* s, as the logs that the model was fitted to.*Fit a model"):
        kept.after.filter(replace(log, dt=2 * log.dt))
    with pytest.raises(ValueError, match=r"dt is .* s; expected .* s, the time step of the logs"):
        kept.after.stream(dt=2 * log.dt)
    movable = [c.group not in ("end_effector", "gripper") for c in log.channels]
    dark = replace(log, observations=np.where(movable, np.nan, log.observations), source="log 5")
    with pytest.raises(ValueError, match="log 5 hides every reading that the model explains.*Leave it out"):
        kept.after.filter(dark)


def test_a_stream_says_what_it_needs(plain):
    stream = plain.stream()
    with pytest.raises(ValueError, match="has not started; call `start"):
        stream.step([0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match=r"shape \(3,\); expected \(2,\), a value each of pressure, flow"):
        stream.start([0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="has sonar; expected some of pressure, flow"):
        stream.start({"sonar": 1.0})
    stream.start({"pressure": 1.0})
    with pytest.raises(ValueError, match="lacks valve; expected every input"):
        stream.step({}, [0.0, 0.0])


def test_logs_that_are_not_of_one_task_are_refused():
    hand, valve = made("contact", 2), made("plain", 2)
    with pytest.raises(ValueError, match="expected logs of one task on one robot. Fit a model to each kind"):
        fit([*hand, replace(valve[0], source="log 9")])
    fewer = replace(hand[1].select([c.name for c in hand[1].channels if "plate" not in c.name]), source="log 9")
    with pytest.raises(
        ValueError, match=r"log 9 and the first log differ in the channels plate\.x, plate\.y, plate\.z"
    ):
        fit([hand[0], fewer])
    for logs, options in (
        ([valve[0], replace(valve[1], dt=0.2)], {}),
        ([valve[0]], {"validation": [replace(valve[1], dt=0.2)]}),
    ):
        with pytest.raises(ValueError, match=r"steps of 0\.2 s, the first log of 0\.1 s; expected one time step"):
            fit(logs, **options)
    with pytest.raises(ValueError, match="no logs given"):
        fit([])


def test_too_little_is_refused_and_one_log_is_divided():
    log = valve_log(0)

    def first(rows: int) -> Episode:
        return replace(log, observations=log.observations[:rows], actions=log.actions[: rows - 1], labels={})

    with pytest.raises(ValueError, match="the longest of 2 logs has 3 rows; expected at least 5"):
        fit([first(3), first(2)])
    with pytest.raises(ValueError, match="the only log has 12 rows; expected at least 25, to hold some out. Give more"):
        fit([first(12)])
    one = fit(log, modes=1, refine=False, calibrate=False)
    assert "one mode" in str(one)
    assert "1 held out" in str(one)
    assert one.filter(log).mean.shape == (61, 2)
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"validation is {wrong}; expected a share between 0 and 1"):
            fit([log, log], validation=wrong)
    with pytest.raises(ValueError, match="modes is 0; expected at least 1, or 'auto'"):
        fit([log, log], modes=0)


def still(log: Episode, names) -> Episode:
    return replace(log, observations=np.where([c.name in names for c in log.channels], 0.3, log.observations))


def hidden(log: Episode, names) -> Episode:
    return replace(log, observations=np.where([c.name in names for c in log.channels], np.nan, log.observations))


VIEWS = {
    "contact": ContactView(tuple(f"tcp.{a}" for a in "xyz"), {"cup": tuple(f"cup.{a}" for a in "xyz")}),
    "mechanics": MechanicsView(("cart.position",), ("cart.push",)),
    "body": BodyView(tuple(f"ball.{a}" for a in "xyz"), name="ball"),
    "plain": PlainView(("pressure", "flow"), ("valve",)),
}


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("spoil", [still, hidden])
def test_a_view_whose_channels_say_nothing_is_refused(kind, spoil):
    view = VIEWS[kind]
    things = view.bodies["cup"] if isinstance(view, ContactView) else view.channels
    logs = [spoil(log, things) for log in made(kind, 3)]
    with pytest.raises(ValueError, match="expected"):
        fit(logs, view=view, modes=1, refine=False, calibrate=False)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_whose_channels_are_missing_is_refused(kind):
    other = made("plain" if kind != "plain" else "contact", 2)
    with pytest.raises(ValueError, match=f"which the {kind} view reads; it has the channels .*Name what it has: "):
        fit(other, view=VIEWS[kind], modes=1)
    with pytest.raises(ValueError, match="view is 'sonar'; expected auto, contact"):
        fit(other, view="sonar")


def test_what_could_not_be_used_is_said():
    logs = [
        replace(
            log,
            observations=np.hstack([log.observations, np.ones((61, 1))]),
            channels=(*log.channels, Channel("room", "scene", "furlong")),
        )
        for log in made("plain", 3)
    ]
    said = str(fit(logs, modes=1, refine=False, calibrate=False))
    assert "not used: room" in said
    assert "units nobody knows, taken as they are: furlong" in said
    assert "not refined" in said
    assert "not calibrated" in said
