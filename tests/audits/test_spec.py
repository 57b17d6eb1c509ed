"""What the specs say is what the runners run, and numbers are written and ranked as they should be."""

import pytest

from vhydro_audits import laws_truth, modes, modes_conditions, modes_paths, support_data, support_fits
from vhydro_audits.pages.modes import READINGS
from vhydro_audits.spec import LAWS, MODES, SPECS, SUPPORT, Metric, written


def test_the_specs_name_what_the_runners_run():
    assert LAWS.families["four"] == tuple(laws_truth.SYSTEMS)
    assert {m.key for m in MODES.methods} == {*modes_paths.OURS, *modes_paths.PEERS, modes.CEILING}
    assert {*MODES.known["condition"]} == {*modes_conditions.LEARNED, modes_conditions.HIDDEN, modes_conditions.POLICY}
    assert MODES.known["reading"] == (modes.FIXED, modes.CHOSEN)
    assert modes_paths.READINGS == READINGS
    assert SUPPORT.families == support_data.FAMILIES
    assert SUPPORT.paper_tasks == support_data.PUBLISHED_TASKS
    assert {m.key for m in SUPPORT.methods} == set(support_fits.METHODS)
    assert SUPPORT.levels["occlusion"] == support_fits.LEVELS
    assert set(SUPPORT.known["regime"]) == set(support_fits.REGIMES)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_name_is_there_once_and_one_method_is_ours(spec):
    keys = [m.key for m in spec.methods]
    assert len(set(keys)) == len(keys)
    assert len(set(spec.numbers)) == len(spec.numbers)
    assert [m.key for m in spec.methods if m.kind == "ours"] == [spec.ours]
    assert spec.ours not in spec.rivals
    assert all(spec.choices(name) for name in spec.place)
    assert all(m.ranked for m in spec.metrics)


def test_merit_and_digits():
    nll, cov90, ess = (SUPPORT.metric(key) for key in ("nll", "cov90", "ess"))
    assert ess.merit(0.4) > ess.merit(0.3)
    assert nll.merit(0.4) < nll.merit(0.3)
    assert cov90.merit(0.95) > cov90.merit(0.8)
    assert not Metric("modes", "modes", 0).ranked
    variance = SUPPORT.metric("empirical_relative_variance")
    assert [nll.text(-0.5), ess.text(None), variance.text(0.0040449)] == ["−0.50", "–", "0.00404"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.00021, "0.00021"),
        (3.94, "3.9"),
        (1234.5, "1234"),
        (6.3e-5, "6.3·10⁻⁵"),
        (2e7, "2.0·10⁷"),
    ],
)
def test_numbers_are_written_to_significant_digits(value, text):
    assert written(value, 2) == text
