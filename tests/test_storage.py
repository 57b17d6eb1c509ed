"""Model files: what is saved comes back bit for bit, and whatever is wrong with a file is one clear error."""

import contextlib
import copy
import json
import os
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from vhydro import storage
from vhydro.calibration import Calibration
from vhydro.commanded import CommandedModel, ScaledNetwork
from vhydro.flow import BouncingFlow, MechanicalFlow, Reset
from vhydro.gap import GapDrive, Geometry
from vhydro.lagrangian import Friction, Inertia, Lagrangian, Potential, Remainder, Shape, Surface, Touch
from vhydro.library import Cosine, Penetration, Sine, polynomial
from vhydro.model import (
    axis_emission,
    hybrid_model,
    linear_emission,
    linear_flow,
    mode_kernel,
    network_emission,
    port_hamiltonian,
)
from vhydro.network import network
from vhydro.proposal import amortized_proposal, conditioned_proposal, mode_proposal
from vhydro.sensors import range_bearing_emission, student_emission
from vhydro.storage import ModelFileError, load, load_tree, save, save_tree

TERMS = (Sine(0), Cosine(1), Penetration(0, 0.1), Penetration(1, -1.0, "below"), *polynomial(2, 2))


def linear_model(dtype=jnp.float32, **options):
    kernel = mode_kernel(2, feasible=[[True, False], [True, True]], dtype=dtype)
    flow = linear_flow([np.eye(2), 0.1 + np.eye(2)], dtype=dtype)
    emission = axis_emission(2, [1], noise=0.1, dtype=dtype)
    return hybrid_model(kernel, flow, emission, noise=0.2, channels=["force · N"], **options)


def calibrated_model():
    factors = jnp.cumsum(jnp.full((1, 2, 2, 19), 0.1, jnp.float32), -1)
    return replace(linear_model(), calibration=Calibration(factors, (0,), (0.5,), jnp.full((1, 2, 2), 9, jnp.int32)))


def contact_model(dtype=jnp.float32):
    keys = iter(jax.random.split(jax.random.key(0), 5))
    flow = port_hamiltonian(
        3,
        2,
        1,
        TERMS,
        coefficients=jax.random.normal(next(keys), (3, len(TERMS))),
        smooth=network(2, (4,), 3, key=next(keys), dtype=dtype),
        integrator="midpoint",
        substeps=2,
        dtype=dtype,
    )
    kernel = mode_kernel(3, drive=network(3, (), 3, key=next(keys), dtype=dtype), dtype=dtype)
    emission = network_emission(2, 4, noise=0.3, hidden=(5, 3), key=next(keys), dtype=dtype)
    reset = Reset(jax.random.normal(next(keys), (3, 3, 1), dtype), (1,))
    return hybrid_model(kernel, flow, emission, noise=0.1, reset=reset)


def mechanical_flow() -> MechanicalFlow:
    """Lagrange's equations of two positions, with a contact between them."""
    flat, angle = Shape((0, 0)), Shape((1, 0), "cos", (1, -1))
    equations = Lagrangian(
        2, 1, 0, (Inertia(0, 0, flat), Inertia(1, 1, flat), Inertia(0, 1, angle)), (Potential(Shape((2, 0))),),
        (Friction("viscous", 0), Friction("Coulomb", 0, 1)), (Touch(1, Surface(0, "above", 1)),),
        (1.0, None, None), (None, None), ((1.0,), (0.0,)), (0.01, 0.02), remainder=(Remainder(0, flat),),
    )  # fmt: skip
    count = len(equations.entries)
    arrays = jnp.arange(1.0, count + 1), jnp.array([[0.0], [1.0]]), jnp.ones(2), jnp.ones((2, 4, 1))
    return MechanicalFlow(*arrays, equations=equations, substeps=2)


def bouncing_flow() -> BouncingFlow:
    flight = mechanical_flow()
    modes, latent, _ = flight.port.shape
    numbers = [jnp.full(modes, x, jnp.float32) for x in (0.0, 0.8, 1e-3)]
    axes = (-1, *([0] * (modes - 1)))
    return BouncingFlow(flight, *numbers, jnp.ones(latent // 2, jnp.float32), axes, (-1.0,) * modes)


def reach() -> GapDrive:
    """A kernel's drive that reads the gap between a hand and two bodies."""
    places = jnp.arange(36.0).reshape(2, 3, 6)
    return GapDrive(Geometry(places, places + 1, jnp.ones((2, 3)), jnp.eye(6)[:1], jnp.array(0.01)), jnp.ones((3, 5)))


def commanded_model(key) -> CommandedModel:
    """A hand that commands drive, and one body."""

    def scaled(inputs: int, outputs: int) -> ScaledNetwork:
        net = network(inputs, (4,), outputs, key=key, dtype=jnp.float32)
        return ScaledNetwork(net, jnp.ones((2, inputs)), jnp.ones((2, outputs)))

    return CommandedModel(
        hand=scaled(19, 3), fingers=scaled(8, 1), servo_noise=jnp.ones(4), kernels=(scaled(19, 3),),
        flows=(scaled(19, 3),), noise=jnp.ones((1, 3, 3)), reach=jnp.ones(1), bodies=("cube",),
        moves=("tcp.dx", "tcp.dy", "tcp.dz"), grip="gripper.command",
    )  # fmt: skip


@pytest.fixture(scope="module")
def modules():
    """Modules of every known class and of every shape they come in."""
    linear, contact = linear_model(), contact_model()
    key = jax.random.key(1)
    return {
        "linear": linear,
        "contact": contact,
        "kernel": linear.kernel,
        "linear_flow": linear.flow,
        "flow": contact.flow,
        "reset": contact.reset,
        "axes": linear.emission,
        "dense": linear_emission(np.ones((3, 2)), noise=0.1),
        "half": linear_emission(np.ones((3, 2)), noise=0.1, dtype=jnp.float16),
        "encoder": contact.emission,
        "student": student_emission(np.ones((3, 2)), noise=0.1),
        "beacons": range_bearing_emission(2, beacons=np.eye(2), range_noise=0.1, bearing_noise=0.2),
        "network": contact.kernel.drive,
        "reach": reach(),
        "geometry": reach().geometry,
        "calibrated": calibrated_model(),
        "mechanical": mechanical_flow(),
        "bouncing": bouncing_flow(),
        "exact": conditioned_proposal(linear),
        "residual": conditioned_proposal(contact, residual=(4,), key=key),
        "amortized": amortized_proposal(contact, hidden=(4, 3), key=key),
        "modal": mode_proposal(contact, hidden=(4, 3), key=key),
        "commanded": commanded_model(key),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def whole(folder, modules):
    """The bytes of one good file."""
    path = folder / "whole.safetensors"
    save(path, model=modules["contact"], proposal=modules["residual"], notes={"loss": [1.5, None]})
    return path.read_bytes()


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        if isinstance(b, jax.Array) and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.shape(a) == np.shape(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def document_of(data):
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["vhydro"])


def signed(document, arrays):
    """A file whose checksum is right wherever it has one, so that only the checks behind it can refuse it."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        document = {**document, "sha256": storage._digest(document, arrays)}
    return safetensors.numpy.save(arrays, {"vhydro": json.dumps(document)})


def refusal(folder, data, reader=load):
    """The message with which these bytes are refused."""
    path = folder / "refused.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.__suppress_context__
    return str(caught.value)


def outcome(path, data, reader=load):
    """What these bytes give, or the error that refuses them; any other error is a defect."""
    path.write_bytes(data)
    try:
        return reader(path)
    except ModelFileError as error:
        return error


# What is saved comes back.


def test_every_known_class_is_tried(modules):
    parts = (*modules.values(), *TERMS, modules["calibrated"].calibration)
    equations = modules["mechanical"].equations
    kept = (equations, *equations.inertia, *equations.potential, *equations.friction, *equations.remainder)
    kept += equations.blocks
    kept += (equations.inertia[0].shape, equations.blocks[0].guard, modules["commanded"].hand)
    tried = {type(m).__name__ for m in (*parts, *kept)}
    assert tried == set(storage.KNOWN)


def test_round_trip_is_bit_identical(tmp_path, modules):
    notes = {
        "seed": 3,
        "loss": [0.1, -0.0, 1e-300, 2**70],
        "name": "Stoß \ud800",
        "nested": {"none": None, "yes": True},
    }
    save(tmp_path / "all.safetensors", notes=notes, **modules)
    saved = load(tmp_path / "all.safetensors")
    assert_same(saved.parts, modules)
    assert (saved.notes, saved.version) == (notes, storage.VERSION)
    assert os.listdir(tmp_path) == ["all.safetensors"]


def test_same_model_gives_same_bytes(tmp_path, whole, modules):
    save(tmp_path / "m", model=modules["contact"], proposal=modules["residual"], notes={"loss": [1.5, None]})
    assert (tmp_path / "m").read_bytes() == whole


def test_other_programs_can_read_the_tensors(folder, whole, modules):
    arrays = safetensors.numpy.load(whole)
    np.testing.assert_array_equal(arrays["model.flow.port"], modules["contact"].flow.port)
    assert arrays["model.kernel.feasible"].dtype == bool


def test_float64_survives_and_is_never_rounded(tmp_path):
    with jax.enable_x64(True):
        models = {"linear": linear_model(jnp.float64), "contact": contact_model(jnp.float64)}
        tree = {"a": jnp.arange(3.0)}
    with jax.enable_x64(False):  # the arrays are still float64, whatever the switch says now
        save(tmp_path / "models", **models)
        save_tree(tmp_path / "tree", tree)
        with pytest.raises(ModelFileError, match=r"float64.*jax_enable_x64"):
            load(tmp_path / "models")
        with pytest.raises(ModelFileError, match=r"float64.*jax_enable_x64"):
            load_tree(tmp_path / "tree", tree)
    with jax.enable_x64(True):
        assert_same(load(tmp_path / "models").parts, models)
        assert_same(load_tree(tmp_path / "tree", tree)[0], tree)


# Damage.


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_truncation_is_refused(folder, whole, data):
    refusal(folder, whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), mask=st.integers(1, 255))
def test_any_flip_is_refused_or_changes_nothing(folder, whole, modules, data, mask):
    header = 8 + int.from_bytes(whole[:8], "little")
    spot = data.draw(st.integers(0, header - 1) | st.integers(header, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[spot] ^= mask
    found = outcome(folder / "flipped", damaged)
    if not isinstance(found, ModelFileError):  # white space of the header, or another spelling of the same JSON
        assert spot < header
        assert_same(found.parts, {"model": modules["contact"], "proposal": modules["residual"]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*storage.KNOWN]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["class", "fields", "tuple", "tensor", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def containers(value):
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), value=JSON)
def test_any_signed_edit_is_refused_or_loads(folder, whole, data, value):
    arrays, document = safetensors.numpy.load(whole), document_of(whole)
    place = data.draw(st.sampled_from([c for c in containers(document) if c]))
    spot = data.draw(st.sampled_from([*place] if isinstance(place, dict) else range(len(place))))
    place[spot] = value
    found = outcome(folder / "edited", signed(document, arrays))
    assert isinstance(found, ModelFileError) or found.parts.keys() == {"model", "proposal"}


def feasible_nowhere(document, arrays):
    arrays["model.kernel.feasible"] = np.zeros_like(arrays["model.kernel.feasible"])


def not_a_number(document, arrays):
    arrays["model.log_noise"] = np.full_like(arrays["model.log_noise"], np.nan)


def other_modes(document, arrays):
    arrays["model.start_mean"] = np.zeros((4, 2), np.float32)
    document["tensors"]["model.start_mean"] = "float32[4, 2]"


def other_type(document, arrays):
    arrays["model.start_mean"] = np.zeros((3, 2), np.int32)
    document["tensors"]["model.start_mean"] = "int32[3, 2]"


def infinite(document, arrays):
    document["notes"] = {"x": float("inf")}


def stray(document, arrays):
    arrays["stray"] = np.zeros(2, np.float32)
    document["tensors"]["stray"] = "float32[2]"


def field(name, value):
    def edit(document, arrays):
        document["nodes"]["model"]["fields"][name] = value

    return edit


def entry(name, value):
    def edit(document, arrays):
        document[name] = value

    return edit


def tensor(name, value):
    def edit(document, arrays):
        arrays[name] = value

    return edit


def removed(document, arrays):
    del arrays["model.log_noise"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (entry("version", 8), "written by a newer format 8; this version reads up to 7; upgrade vhydro"),
        (entry("version", 0), "'version': 0"),
        (entry("version", True), "'version': True"),
        (entry("version", "1"), "'version': '1'"),
        (entry("kind", "tree"), "holds a tree; expected a model"),
        (entry("nodes", {}), "are in no part"),
        (entry("nodes", []), "expected"),
        (entry("tensors", {}), "expected nothing"),
        (entry("extra", 1), "expected"),
        (field("flow", {"class": "os.system", "fields": {"command": "true"}}), "os.system"),
        (field("flow", {"class": "Sine", "fields": {"axis": 1}}), "model.flow is Sine"),
        (field("flow", {"tensor": "model.log_noise"}), "model.flow is described as"),
        (field("reset", 3), "model.reset is 3"),
        (field("reset", {"tensor": "model.reset"}), "model.reset is described as"),
        (field("noise_floor", "1e-4"), "model.noise_floor is '1e-4'"),
        (field("noise_floor", True), "model.noise_floor is True"),
        (field("channels", {"tuple": ["a", 2]}), "model.channels is"),
        (field("surprise", 1), "surprise"),
        (removed, "model.log_noise is missing; expected float32[3, 2]"),
        (tensor("added", np.zeros(2)), "added is float64[2]; expected nothing"),
        (tensor("model.log_noise", np.zeros((2, 3), np.float32)), "is float32[2, 3]; expected float32[3, 2]"),
        (tensor("model.log_noise", np.zeros((3, 2), np.float16)), "is float16[3, 2]; expected float32[3, 2]"),
        (not_a_number, "model.log_noise holds a non-finite value"),
        (other_modes, "model.start_mean is float32[4, 2]"),
        (other_type, "model.start_mean is int32[3, 2]"),
        (stray, "'stray'"),
        (feasible_nowhere, "mode 0 has no feasible next mode"),
        (infinite, "finite"),
    ],
)
def test_a_signed_edit_is_named(folder, whole, edit, words):
    arrays, document = safetensors.numpy.load(whole), document_of(whole)
    edit(document, arrays)
    assert words in refusal(folder, signed(document, arrays))


def test_a_whole_number_is_a_float_where_one_is_expected(folder, whole):
    arrays, document = safetensors.numpy.load(whole), document_of(whole)
    field("noise_floor", 0)(document, arrays)
    found = outcome(folder / "whole number", signed(document, arrays))
    assert repr(found.parts["model"].noise_floor) == "0.0"
    field("noise_floor", 10**400)(document, arrays)
    assert "model.noise_floor" in refusal(folder, signed(document, arrays))


# Calibrations, and files from before models had one.


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_from_before_calibration_loads_without_one(folder, whole, modules, version):
    arrays, document = safetensors.numpy.load(whole), document_of(whole)
    del document["nodes"]["model"]["fields"]["calibration"]
    found = outcome(folder / "older", signed({**document, "version": version}, arrays))
    assert_same(found.parts, {"model": modules["contact"], "proposal": modules["residual"]})
    assert found.version == version
    assert "differs in ['calibration']" in refusal(folder, signed(document, arrays))


def test_a_calibration_from_before_episodes_were_counted_promises_nothing(folder, modules):
    model = modules["calibrated"]
    save(folder / "counted", model=model, calibration=model.calibration)
    data = (folder / "counted").read_bytes()
    arrays, document = safetensors.numpy.load(data), document_of(data)
    nodes = document["nodes"]
    held = {"model.calibration": nodes["model"]["fields"]["calibration"], "calibration": nodes["calibration"]}
    for name, node in held.items():
        del node["fields"]["episodes"], arrays[f"{name}.episodes"], document["tensors"][f"{name}.episodes"]
    found = outcome(folder / "uncounted", signed({**document, "version": 3}, arrays)).parts
    expected = replace(model.calibration, episodes=None)
    assert_same(found, {"model": replace(model, calibration=expected), "calibration": expected})
    np.testing.assert_array_equal(found["calibration"].ranked_up_to(), 0)
    assert "differs in ['episodes']" in refusal(folder, signed(document, arrays))


def test_equations_from_before_stribeck_friction_have_none(folder, modules):
    """Fields of terms within terms are filled in too."""
    flow = modules["mechanical"]
    plain = replace(flow, equations=replace(flow.equations, remainder=()))
    save(folder / "now", flow=plain)
    data = (folder / "now").read_bytes()
    arrays, document = safetensors.numpy.load(data), document_of(data)
    fields = document["nodes"]["flow"]["fields"]["equations"]["fields"]
    del fields["remainder"]
    for node in fields["friction"]["tuple"]:
        del node["fields"]["speed"]
    found = outcome(folder / "older", signed({**document, "version": 5}, arrays)).parts
    assert_same(found, {"flow": plain})
    assert "differs in" in refusal(folder, signed(document, arrays))


def test_a_bouncing_flow_from_before_bodies_met_has_walls_alone(folder, modules):
    flow = modules["bouncing"]
    save(folder / "now", flow=flow)
    data = (folder / "now").read_bytes()
    arrays, document = safetensors.numpy.load(data), document_of(data)
    del document["nodes"]["flow"]["fields"]["others"]
    found = outcome(folder / "older", signed({**document, "version": 6}, arrays)).parts
    assert_same(found, {"flow": flow})
    assert "differs in" in refusal(folder, signed(document, arrays))


def test_what_older_files_say_of_commands_is_left_behind_and_the_rest_is_read(folder, modules):
    save(folder / "now", model=modules["calibrated"], commanded=modules["commanded"])
    data = (folder / "now").read_bytes()
    arrays, document = safetensors.numpy.load(data), document_of(data)
    document["nodes"]["commanded"]["fields"]["servo"] = document["nodes"]["commanded"]["fields"].pop("hand")
    found = outcome(folder / "older", signed({**document, "version": 5}, arrays))
    assert_same(found.parts, {"model": modules["calibrated"]})
    assert "differs in" in refusal(folder, signed(document, arrays))


def older_without(name):
    def edit(document, arrays):
        document["version"] = 2
        del document["nodes"]["model"]["fields"][name]

    return edit


def calibration(name, value):
    def edit(document, arrays):
        document["nodes"]["model"]["fields"]["calibration"]["fields"][name] = value

    return edit


def negative_episodes(document, arrays):
    arrays["model.calibration.episodes"] -= 10


def falling(document, arrays):
    arrays["model.calibration.factors"] = arrays["model.calibration.factors"][..., ::-1].copy()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (older_without("reset"), "differs in ['reset']"),
        (calibration("groups", {"tuple": [2]}), "groups (2,)"),
        (calibration("groups", {"tuple": [0.0]}), "model.calibration.groups is (0.0,)"),
        (calibration("edges", {"tuple": [0.2, 0.5]}), "2 bands and 19 levels; expected 3 bands"),
        (calibration("edges", {"tuple": [1.5]}), "edges are (1.5,)"),
        (falling, "factors fall"),
        (negative_episodes, "fewer than 0 episodes"),
        (field("calibration", 3), "model.calibration is 3"),
    ],
)
def test_a_signed_edit_of_a_calibration_is_named(folder, modules, edit, words):
    path = folder / "calibrated"
    save(path, model=modules["calibrated"])
    arrays, document = safetensors.numpy.load(path.read_bytes()), document_of(path.read_bytes())
    edit(document, arrays)
    assert words in refusal(folder, signed(document, arrays))


def test_whole_numbers_are_floats_among_edges(folder, modules):
    path = folder / "edges"
    save(path, model=modules["calibrated"])
    arrays, document = safetensors.numpy.load(path.read_bytes()), document_of(path.read_bytes())
    calibration("edges", {"tuple": [1]})(document, arrays)
    found = outcome(path, signed(document, arrays))
    assert repr(found.parts["model"].calibration.edges) == "(1.0,)"


def with_description(text):
    return safetensors.numpy.save({"a": np.zeros(2, np.float32)}, {"vhydro": text})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"\x89PNG\r\n\x1a\n" * 40, "320 bytes"),
        (b"\xff" * 100, "100 bytes"),
        ((16).to_bytes(8, "little") + b"\xff" * 16, "no safetensors file"),
        ((10**6).to_bytes(8, "little") + b"[" * 10**6, "nested too deeply"),
        (safetensors.numpy.save({"a": np.zeros(2)}), "metadata is None"),
        (safetensors.numpy.save({"a": np.zeros(2)}, {"format": "pt"}), "metadata is None"),
        (with_description(""), "no safetensors file"),
        (with_description("[" * 100_000), "nested too deeply"),
        (with_description('{"version": ' * 100_000), "nested too deeply"),
        (with_description('{"version": 1, "version": 1}'), "twice"),
        (with_description("[1, 2]"), "metadata is [1, 2]"),
        (with_description('{"version": ' + "9" * 5000 + "}"), "digits"),
    ],
)
def test_what_is_no_model_file_is_named(folder, data, words):
    assert words in refusal(folder, data)
    assert words in refusal(folder, data, lambda path: load_tree(path, {}))


def test_deep_nodes_are_refused(folder, whole):
    arrays, document = safetensors.numpy.load(whole), document_of(whole)
    for _ in range(400):
        document["nodes"]["model"] = {"tuple": [document["nodes"]["model"]]}
    refusal(folder, signed(document, arrays))


def test_a_flip_of_tensor_data_fails_the_checksum(folder, whole):
    assert "checksum" in refusal(folder, whole[:-1] + bytes([whole[-1] ^ 1]))


def test_a_directory_and_a_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="directory"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        load(tmp_path / "absent")


# A save that fails.


class Stranger(eqx.Module):
    weight: jax.Array


def spoiled(module, **values):
    """A copy with other fields, which no constructor has checked."""
    module = copy.copy(module)
    for name, value in values.items():
        object.__setattr__(module, name, value)
    return module


def broken(modules):
    contact, linear = modules["contact"], modules["linear"]
    nan = jnp.full_like(contact.flow.port, jnp.nan)
    stranger = Stranger(jnp.ones(2))
    return {
        "flow.port holds a non-finite": {"model": spoiled(contact, flow=spoiled(contact.flow, port=nan))},
        "part.port holds a non-finite": {"part": spoiled(contact.flow, port=nan)},
        "model is a Stranger": {"model": stranger},
        "residual is a Stranger": {"proposal": spoiled(modules["exact"], residual=stranger)},
        "log_noise is a ndarray": {"model": spoiled(linear, log_noise=np.asarray(linear.log_noise))},
        "log_noise is None": {"model": spoiled(linear, log_noise=None)},
        "start_mean is float32[3, 2]": {"model": spoiled(linear, start_mean=jnp.zeros((3, 2), jnp.float32))},
        "is bfloat16[2, 2]": {"emission": linear_emission(np.eye(2), noise=0.1, dtype=jnp.bfloat16)},
        "network.biases is": {"network": spoiled(modules["network"], biases=(jax.random.key(0),))},
        "channels is a list": {"model": spoiled(linear, channels=["a"])},
        "noise_floor is a float64": {"model": spoiled(linear, noise_floor=np.float64(1e-4))},
        "expected JSON values and finite": {"model": spoiled(linear, noise_floor=float("inf"))},
        "no feasible": {"model": spoiled(linear, kernel=spoiled(linear.kernel, feasible=jnp.zeros((2, 2), bool)))},
        "the parts are {}": {},
        "the parts are {'a b'": {"a b": linear},
        "float32 is not JSON": {"model": linear, "notes": {"loss": np.float32(1)}},
        "finite numbers": {"model": linear, "notes": {"loss": float("nan")}},
        "twice": {"model": linear, "notes": {"epochs": {1: 2, "1": 3}}},
        "too deeply": {"model": linear, "notes": deep()},
    }


def deep():
    notes = {}
    for _ in range(100_000):
        notes = {"deeper": notes}
    return notes


def test_what_cannot_be_loaded_is_not_saved(tmp_path, modules, whole):
    path = tmp_path / "kept"
    path.write_bytes(whole)
    for words, parts in broken(modules).items():
        with pytest.raises(ValueError) as caught:
            save(path, **parts)
        assert words in str(caught.value)
        assert str(caught.value).startswith(f"{path}: ")
        assert path.read_bytes() == whole
        assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch, modules, whole, name, error):
    def fail(*_):
        raise error

    path = tmp_path / "kept"
    path.write_bytes(whole)
    monkeypatch.setattr(storage.os, name, fail)
    for write in (lambda: save(path, model=modules["linear"]), lambda: save_tree(path, {"a": jnp.ones(2)})):
        with pytest.raises(type(error)):
            write()
        assert path.read_bytes() == whole
        assert os.listdir(tmp_path) == ["kept"]


def test_a_save_needs_a_directory_and_a_file_path(tmp_path, modules):
    with pytest.raises(FileNotFoundError, match="create it first"):
        save(tmp_path / "absent" / "m", model=modules["linear"])
    with pytest.raises(IsADirectoryError):
        save(tmp_path, model=modules["linear"])
    assert not os.listdir(tmp_path)


# Trees.


def training_state(seed=0, dtype=jnp.float32):
    parameters = eqx.filter(linear_model(dtype), eqx.is_inexact_array)
    return {
        "parameters": parameters,
        "optimiser": optax.adam(1e-3).init(parameters),
        "key": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), 3),
        "step": seed + 1,
        "rate": 0.5 * seed,
        "done": bool(seed),
        "name": f"run {seed}",
        "history": np.arange(4, dtype=np.float64) + seed,
        "best": np.float64(seed),
        "activation": jnp.tanh,
        "nothing": None,
    }


def test_tree_round_trip_is_bit_identical(tmp_path):
    state = training_state(5)
    state["optimiser"] = jax.tree.map(lambda x: x + 1, state["optimiser"])
    save_tree(tmp_path / "t", state, {"config": {"lr": 1e-3}})
    found, notes = load_tree(tmp_path / "t", training_state())
    assert notes == {"config": {"lr": 1e-3}}
    assert found.pop("activation") is state.pop("activation")
    assert_same(found, state)
    found["history"][0] = 7  # the arrays are the caller's own
    np.testing.assert_array_equal(jax.random.normal(found["key"]), jax.random.normal(state["key"]))


def test_a_single_array_is_a_tree(tmp_path):
    save_tree(tmp_path / "t", jnp.float32(2.5))
    assert_same(load_tree(tmp_path / "t", jnp.float32(0))[0], jnp.float32(2.5))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"n": None}, "tree['n'] is int; expected nothing"),
        ({"x": 1.0}, "tree['x'] is missing; expected float"),
        ({"a": jnp.zeros(4, jnp.float32)}, "tree['a'] is float32[3]; expected float32[4]"),
        ({"a": jnp.zeros(3, jnp.int32)}, "tree['a'] is float32[3]; expected int32[3]"),
        ({"k": jax.random.key(0, impl="rbg")}, "uint32[2] threefry2x32 key; expected uint32[4] rbg key"),
        ({"k": jnp.zeros(2, jnp.uint32)}, "threefry2x32 key; expected uint32[2]"),
        ({"n": True}, "tree['n'] is int; expected bool"),
        ({"n": jnp.int32(0)}, "tree['n'] is int; expected int32[]"),
    ],
)
def test_a_tree_of_another_shape_is_refused(folder, other, words):
    path, tree = folder / "tree", {"a": jnp.ones(3, jnp.float32), "k": jax.random.key(1), "n": 4}
    save_tree(path, tree)
    message = refusal(folder, path.read_bytes(), lambda p: load_tree(p, {**tree, **other}))
    assert words in message
    assert "Build `like`" in message


@settings(max_examples=30, deadline=None)
@given(data=st.data(), mask=st.integers(1, 255))
def test_a_damaged_tree_is_refused_or_unchanged(folder, data, mask):
    tree = {"a": jnp.arange(3.0), "k": jax.random.key(1), "n": 4}
    path = folder / "damaged tree"
    save_tree(path, tree)
    damaged = bytearray(path.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= mask
    found = outcome(path, damaged, lambda p: load_tree(p, {**tree, "n": 0})[0])
    if not isinstance(found, ModelFileError):
        assert_same(found, tree)


def test_a_tree_may_hold_what_is_not_finite_in_arrays_alone(tmp_path):
    """A training state starts with a best score of −∞; a model never holds one."""
    tree = {"best": jnp.array([-jnp.inf, 1.0]), "curve": np.array([np.nan])}
    save_tree(tmp_path / "t", tree)
    assert_same(load_tree(tmp_path / "t", tree)[0], tree)
    with pytest.raises(ValueError, match="finite"):
        save_tree(tmp_path / "u", {"bad": float("inf")})
    assert os.listdir(tmp_path) == ["t"]


def test_models_and_trees_are_told_apart(tmp_path, modules):
    save(tmp_path / "m", model=modules["linear"])
    with pytest.raises(ModelFileError, match="holds a model; expected a tree"):
        load_tree(tmp_path / "m", modules["linear"])
