"""A running filter in a file: the same bits as the one it was exported from, and no file that is trusted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

import vhydro as vh
from vhydro.filter import FilterSettings, Stream, exported
from vhydro.filter.exported import read_stream
from vhydro.proposal import ConditionedProposal
from vhydro.storage import ModelFileError

SETTINGS = {
    "gaussian": FilterSettings(particles=16, engine="gaussian"),
    "mixture": FilterSettings(particles=16, pareto=True),
}


def rows(count: int, channels: int = 2, inputs: int = 1):
    rng = np.random.default_rng(3)
    values = np.where(rng.random((count, channels)) < 0.3, np.nan, rng.standard_normal((count, channels)))
    return values, rng.standard_normal((count, inputs))


def made(switching_model, name="gaussian", **options) -> Stream:
    model = switching_model(2, inputs=1, shift=[0.3, -0.2], scale=[2.0, 0.5], **options)
    return Stream(model, dt=0.1, key=jax.random.key(1), proposal=ConditionedProposal(), settings=SETTINGS[name])


def assert_same_bits(one, other, values, actions):
    for t, (value, action) in enumerate(zip(values, actions, strict=True)):
        left, right = (s.step(action, value) if t else s.start(value) for s in (one, other))
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"row {t}")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_thousand_steps_have_the_same_bits(switching_model, tmp_path, name):
    stream = made(switching_model, name)
    stream.export(tmp_path / "s")
    loaded = vh.load_stream(tmp_path / "s")
    assert (loaded.channels, loaded.dt) == (stream.program.channels, 0.1)
    assert_same_bits(stream, loaded, *rows(1001))
    assert_same_bits(loaded, stream, *rows(3))  # `start` forgets everything before it


def test_it_runs_where_the_library_has_no_model(switching_model, tmp_path):
    """In a new process that never imports the model's code beyond the loader's own."""
    stream = made(switching_model)
    stream.export(tmp_path / "s")
    values, actions = rows(20)
    told = [stream.start(values[0]), *(stream.step(a, y) for a, y in zip(actions[1:], values[1:], strict=True))]
    np.savez(tmp_path / "rows.npz", values=values, actions=actions)
    script = (
        "import sys, jax, numpy as np; jax.config.update('jax_enable_x64', True); import vhydro as vh\n"
        f"s = vh.load_stream({str(tmp_path / 's')!r}); r = np.load({str(tmp_path / 'rows.npz')!r})\n"
        "out = [s.start(r['values'][0])] + [s.step(a, y) for a, y in zip(r['actions'][1:], r['values'][1:])]\n"
        f"np.save({str(tmp_path / 'out.npy')!r}, np.stack([o.mode for o in out]))\n"
    )
    source = Path(vh.__file__).parents[1]
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(source)})
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.stack([t.mode for t in told]))


def test_rows_are_checked_as_before(switching_model, tmp_path):
    made(switching_model).export(tmp_path / "s")
    loaded = read_stream(tmp_path / "s")
    with pytest.raises(ValueError, match="has not started"):
        loaded.step([0.0], [0.0, 0.0])
    with pytest.raises(ValueError, match=r"expected \(2,\) for channels"):
        loaded.start([0.0])
    loaded.start([0.0, np.nan])
    with pytest.raises(ValueError, match="every entry must be finite"):
        loaded.step([np.nan], [0.0, 0.0])
    with pytest.raises(ValueError, match="the most that the model has numbers for"):
        loaded.step([0.0], [0.9 * float(np.finfo(np.float64).max), 0.0])


# --- files that are not to be trusted ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, switching_model) -> bytes:
    path = tmp_path_factory.mktemp("stream") / "s"
    made(switching_model).export(path)
    return path.read_bytes()


def changed(whole: bytes, path: Path, arrays=None, *, sealed=True, **document) -> Path:
    """The file with another document and other arrays, its checksum made anew."""
    size = int.from_bytes(whole[:8], "little")
    told = json.loads(json.loads(whole[8 : 8 + size])["__metadata__"]["vhydro_stream"]) | document
    held = safetensors.numpy.load(whole) | (arrays or {})
    held = {k: v for k, v in held.items() if v is not None}
    told |= {"digest": exported._digest(held)} if sealed else {}
    path.write_bytes(safetensors.numpy.save(held, {"vhydro_stream": json.dumps(told)}))
    return path


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"format": 2}, "found a stream of format 2; expected 1"),
        ({"platforms": ["cuda"]}, "found a program for cuda; expected one for cpu. Give `platforms`"),
        ({"channels": ["a"]}, "found no whole stream"),
        ({"channels": 3}, "found no whole stream"),
        ({"inputs": 10**9}, "found no whole stream"),
        ({"dtype": "object"}, "numbers of type object"),
        ({"states": 1}, "found a program of JAX"),
        ({"outputs": []}, "0 numbers are named"),
        (
            {"outputs": [{"part": "record", "name": "__class__", "shape": [1], "dtype": "int8"}]},
            "found no whole stream",
        ),
        ({"notes": None, "window": "x"}, "found no whole stream"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(whole, tmp_path, document, words):
    with pytest.raises(ModelFileError, match=words):
        read_stream(changed(whole, tmp_path / "s", **document))


def test_a_program_that_is_none_is_refused(whole, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    with pytest.raises(ModelFileError, match=r"cannot run .* expected one of the last six months"):
        read_stream(changed(whole, tmp_path / "s", {"advance": noise}))
    with pytest.raises(ModelFileError, match="found no whole stream"):
        read_stream(changed(whole, tmp_path / "s", {"advance": None}))


def test_damage_never_reaches_the_compiler(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(exported, "_compiled", None)
    path, rng = tmp_path / "s", np.random.default_rng(1)
    for place in rng.integers(0, len(whole), 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError):
            read_stream(path)
    for text in (b"", b"x", whole[:5], whole[: len(whole) // 2]):
        path.write_bytes(text)
        with pytest.raises(ModelFileError, match="that are no stream"):
            read_stream(path)
    with pytest.raises(ModelFileError, match="found no file there"):
        read_stream(tmp_path / "none")
