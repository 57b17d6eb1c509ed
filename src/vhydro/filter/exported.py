"""A running filter in one file: its step as StableHLO, the state it starts from, and what its rows are.

The file is safetensors with one JSON document in its metadata. Nothing in it is Python: what is run is the program that
XLA compiles from the StableHLO, and it takes and gives arrays only.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from vhydro.filter.frames import Moments, Record
from vhydro.filter.loop import Loop, Program, Step
from vhydro.outputs import write_whole
from vhydro.storage import ModelFileError

FORMAT = 1
PLATFORMS = ("cpu", "cuda")
LARGEST = 1 << 30  # bytes of a file
PARTS = {"record": Record, "moments": Moments}
REMEDY = "Export the stream again: `fitted.stream().export(path)`."


def write_stream(
    path: str | PathLike[str],
    program: Program,
    advance: Any,
    close: Any,
    *,
    platforms: Sequence[str] = PLATFORMS,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Writes the program of a stream, traced again for every platform; `notes` are kept with it."""
    leaves, structure = jax.tree.flatten(program.empty)
    row = jax.ShapeDtypeStruct((len(program.channels) + program.inputs,), program.dtype)
    time = jax.ShapeDtypeStruct((), jnp.int32)

    # Of arrays alone: a file need not know how a state is built.
    def flat_advance(state, time, row):
        after, time, packed = advance(jax.tree.unflatten(structure, state), time, row)
        return jax.tree.leaves(after), time, packed

    def flat_close(state, time):
        after, log_factor = close(jax.tree.unflatten(structure, state), time)
        return jax.tree.leaves(after), log_factor

    _refuse_without_flatbuffers()
    programs = {"advance": jax.export.export(jax.jit(flat_advance), platforms=list(platforms))(leaves, time, row)}
    if close is not None:
        programs["close"] = jax.export.export(jax.jit(flat_close), platforms=list(platforms))(leaves, time)
    arrays = {name: np.frombuffer(bytes(p.serialize()), np.uint8) for name, p in programs.items()}
    arrays |= {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays |= {"reach.channels": program.reach[0], "reach.inputs": program.reach[1]}
    document = {
        "format": FORMAT, "jax": jax.__version__, "platforms": list(platforms), "channels": list(program.channels),
        "inputs": program.inputs, "dtype": str(program.dtype), "dt": program.dt, "window": program.window,
        "outputs": _told_outputs(program), "states": len(leaves), "notes": dict(notes or {}),
        "digest": _digest(arrays),
    }  # fmt: skip
    write_whole(Path(path), safetensors.numpy.save(arrays, {"vhydro_stream": json.dumps(document)}))


def _refuse_without_flatbuffers() -> None:
    try:
        import_module("flatbuffers")
    except ImportError:
        raise ValueError(
            "flatbuffers is not installed, which an exported stream needs. Run: pip install 'vhydro[export]'"
        ) from None


def _told_outputs(program: Program) -> list[dict[str, Any]]:
    """What the step gives: of each array the part of a `Step`, its name, shape and type."""
    step: Step = jax.tree.unflatten(program.structure, list(range(len(program.outputs))))
    names = [(part, n, i) for part in PARTS for n, i in getattr(step, part)._asdict().items() if i is not None]
    told = [(part, name, program.outputs[i]) for part, name, i in sorted(names, key=lambda item: item[2])]
    return [{"part": p, "name": n, "shape": list(o.shape), "dtype": str(np.dtype(o.dtype))} for p, n, o in told]


class LoadedStream:
    """A running filter from a file. `start(observation)` once, then `step(action, observation)` for every sample.

    Observations and actions are vectors in the order of `channels` and of the inputs; NaN means hidden.
    """

    def __init__(self, program: Program, notes: Mapping[str, Any]):
        self._loop, self.program, self.notes = Loop(program), program, notes
        self.channels, self.dt = program.channels, program.dt

    def start(self, observation) -> Step:
        """The belief after the first observation; forgets everything before it."""
        return self._loop.start(observation)

    def step(self, action, observation) -> Step:
        """The belief after this action and the observation that followed it."""
        return self._loop.step(action, observation)


def read_stream(path: str | PathLike[str]) -> LoadedStream:
    """The stream in a file that `Stream.export` wrote, compiled for the device at hand."""
    try:
        document, arrays = _read(Path(path))
        _refuse_other_machine(document)
        _refuse_without_flatbuffers()
        return LoadedStream(_program(document, arrays), document["notes"])
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise ModelFileError(
            f"{path}: found no whole stream ({type(error).__name__}: {str(error)[:200]}); expected what "
            f"`Stream.export` writes. {REMEDY}"
        ) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not path.is_file():
        raise ModelFileError(f"found no file there; expected what `Stream.export` writes. {REMEDY}")
    if path.stat().st_size > LARGEST:
        raise ModelFileError(f"found {path.stat().st_size:,} bytes; expected at most {LARGEST:,}. {REMEDY}")
    data = path.read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        document = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["vhydro_stream"])
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {str(error)[:100]}"
        raise ModelFileError(
            f"found {len(data):,} bytes that are no stream ({what}); expected what `Stream.export` writes. {REMEDY}"
        ) from None
    if document.get("format") != FORMAT:
        raise ModelFileError(f"found a stream of format {document.get('format')}; expected {FORMAT}. {REMEDY}")
    # Before anything is handed to a compiler, which takes bytes on trust.
    if _digest(arrays) != document["digest"]:
        raise ModelFileError(f"found contents that do not match their checksum; the file is damaged. {REMEDY}")
    return document, arrays


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _refuse_other_machine(document: Mapping[str, Any]) -> None:
    """Raises where the program is of another kind of device or of numbers that this process does not have."""
    here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if here not in document["platforms"]:
        told = ", ".join(map(str, document["platforms"]))
        raise ModelFileError(f"found a program for {told}; expected one for {here}. Give `platforms` to `export`.")
    if document["dtype"] == "float64" and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ModelFileError(
            "found a program in double precision, which is off here. Run first: "
            'jax.config.update("jax_enable_x64", True)'
        )


def _program(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Program:
    channels, inputs, dtype = tuple(map(str, document["channels"])), int(document["inputs"]), str(document["dtype"])
    if dtype not in ("float32", "float64"):
        raise ValueError(f"numbers of type {dtype}")
    empty = [jnp.asarray(arrays[f"state.{i}"]) for i in range(int(document["states"]))]
    row = jax.ShapeDtypeStruct((len(channels) + inputs,), np.dtype(dtype))
    time = jax.ShapeDtypeStruct((), jnp.int32)
    outputs = tuple(jax.ShapeDtypeStruct(tuple(o["shape"]), np.dtype(o["dtype"])) for o in document["outputs"])
    reach = arrays["reach.channels"], arrays["reach.inputs"]
    if reach[0].shape != (len(channels),) or reach[1].shape != (inputs,):
        raise ValueError(f"limits of the shapes {reach[0].shape} and {reach[1].shape}")
    advance = _compiled(document, arrays["advance"], empty, time, row)
    size = sum(o.size for o in outputs)
    if advance.out_info[2].shape != (size,):
        raise ValueError(f"a program that gives {advance.out_info[2].shape}, of which {size} numbers are named")
    close = _compiled(document, arrays["close"], empty, time) if "close" in arrays else None
    return Program(
        advance, close, int(document["window"]), empty, outputs, _structure(document["outputs"]), channels, inputs,
        np.dtype(dtype), float(document["dt"]), reach,
    )  # fmt: skip


def _compiled(document: Mapping[str, Any], program: np.ndarray, *arguments: Any) -> Any:
    try:
        return jax.jit(jax.export.deserialize(bytearray(program.tobytes())).call).lower(*arguments).compile()
    except Exception as error:  # a compiler of another version raises anything
        raise ModelFileError(
            f"found a program of JAX {document['jax']} that JAX {jax.__version__} cannot run "
            f"({type(error).__name__}: {str(error)[:200]}); expected one of the last six months. {REMEDY}"
        ) from None


def _structure(outputs: Sequence[Mapping[str, Any]]) -> Any:
    """The structure of a `Step` whose arrays come in this order."""
    fields: dict[str, dict[str, Any]] = {part: dict.fromkeys(kind._fields) for part, kind in PARTS.items()}
    for i, told in enumerate(outputs):
        if told["name"] not in fields[told["part"]]:
            raise ValueError(f"a {told['part']} with {told['name']}")
        fields[told["part"]][told["name"]] = i
    leaves, structure = jax.tree.flatten(Step(Record(**fields["record"]), Moments(**fields["moments"])))
    if leaves != list(range(len(outputs))):
        raise ValueError("outputs in another order")
    return structure
