"""Models and training checkpoints, each in one safetensors file.

The tensors are plain safetensors; the metadata holds one JSON document under `vhydro`: the format version,
what is in the file, and a SHA-256 of all of it. Loading builds only the classes listed here and runs nothing.
"""

import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import AbstractArray

from vhydro import calibration, commanded, emission, flow, gap, lagrangian, library, model, network, proposal, sensors
from vhydro.outputs import unfinished

VERSION = 7  # of the format; raise it when a known class, its fields or the layout change
MODEL = model.HybridModel | model.ModeKernel | network.Network | gap.GapDrive | gap.Geometry | flow.Flow | flow.Reset
SENSORS = emission.LinearEmission | emission.NetworkEmission | sensors.StudentEmission | sensors.RangeBearingEmission
TERMS = library.Term | lagrangian.Lagrangian | lagrangian.LagrangeTerm | lagrangian.Shape | lagrangian.Surface
PARTS = (
    MODEL
    | SENSORS
    | calibration.Calibration
    | proposal.Proposal
    | TERMS
    | lagrangian.Touch
    | commanded.CommandedModel
    | commanded.ScaledNetwork
)
# A term or a sensor of one's own is code, which a model file never holds.
KEPT = [c for c in get_args(PARTS) if c is not library.Custom]
KNOWN: dict[str, Any] = {c.__name__: c for c in KEPT}
PLAIN = (str, int, float, bool, NoneType)
ENTRIES = {"version": int, "kind": str, "nodes": dict, "tensors": dict, "notes": dict, "sha256": str}
DTYPES = "bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
DAMAGED = "The file is damaged, edited or from another program: copy it again or use another."
UNWRITTEN = "Nothing was written."
FilePath = str | os.PathLike[str]
Named = dict[str, Any]


class ModelFileError(ValueError):
    """A file that cannot be loaded: which one, what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Saved:
    """What a model file holds."""

    parts: dict[str, eqx.Module]
    notes: Named
    version: int


def save(path: FilePath, /, *, notes: Named | None = None, **parts: eqx.Module) -> None:
    """Nothing; the file then holds the parts and the notes (JSON values), or on error what it held before."""
    with _naming(path, ValueError, UNWRITTEN):
        arrays: Named = {}
        nodes = {name: _node(part, name, arrays) for name, part in parts.items()}
        _parts(nodes, arrays)  # refuses here what loading would refuse
        _write(Path(path), "model", nodes, arrays, notes)


def load(path: FilePath) -> Saved:
    """The validated parts of a file written by `save`, and its notes as JSON gives them back."""
    with _naming(path, ModelFileError, DAMAGED):
        document, held = _read(Path(path), "model")
        past = {name for name, node in document["nodes"].items() if _is_past(node, document["version"])}
        arrays = {name: _on_device(name, a) for name, a in held.items() if name.split(".")[0] not in past}
        nodes = {n: _current(node, document["version"]) for n, node in document["nodes"].items() if n not in past}
        return Saved(_parts(nodes, arrays), document["notes"], document["version"])


def is_model_file(path: FilePath) -> bool:
    """Whether a file is one that this package wrote, by how it begins; it may be damaged or too new all the same."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return b'"__metadata__":{"vhydro":' in file.read(min(size, 1 << 24))
    except OSError:
        return False


def load_model(path: FilePath) -> tuple[model.HybridModel, Named]:
    """The hybrid model in a file, and the file's notes."""
    saved = load(path)
    found = next((p for p in saved.parts.values() if isinstance(p, model.HybridModel)), None)
    if found is None:
        raise ModelFileError(
            f"{path} holds {', '.join(saved.parts)}; expected a hybrid model. Save one with `save`, or make one of "
            "robot logs with `vhydro fit`."
        )
    return found, saved.notes


def save_tree(path: FilePath, tree: Any, notes: Named | None = None) -> None:
    """Nothing; the same for the arrays, random keys, numbers and strings among the leaves of any pytree."""
    with _naming(path, ValueError, UNWRITTEN):
        _write(Path(path), "tree", *_leaves(tree), notes)


def load_tree(path: FilePath, like: Any) -> tuple[Any, Named]:
    """`like` with the leaves that `save_tree` stored (others, such as functions, stay), and the notes."""
    with _naming(path, ModelFileError, DAMAGED):
        document, arrays = _read(Path(path), "tree")
        found, expected = _outlines(nodes := document["nodes"], arrays), _outlines(*_leaves(like))
        if difference := _difference(found, expected):
            raise ModelFileError(f"{difference} as in `like`. Build `like` the way the saved tree was built.")
        leaves, structure = jax.tree_util.tree_flatten_with_path(like)
        return structure.unflatten(_restored(p, leaf, nodes, arrays) for p, leaf in leaves), document["notes"]


def load_notes(path: FilePath) -> Named:
    """The notes that `save_tree` stored, whatever the tree."""
    with _naming(path, ModelFileError, DAMAGED):
        return _read(Path(path), "tree")[0]["notes"]


def _node(value: Any, name: str, arrays: Named) -> Any:
    """The JSON of a part; its arrays are put into `arrays` under their dotted names."""
    if KNOWN.get(type(value).__name__) is type(value):
        inner = {f.name: _node(getattr(value, f.name), f"{name}.{f.name}", arrays) for f in fields(value)}
        return {"class": type(value).__name__, "fields": inner}
    if type(value) is tuple:
        return {"tuple": [_node(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, jax.Array):
        arrays[name] = value
        return {"tensor": name}
    if type(value) in PLAIN:
        return value
    if isinstance(value, emission.Emission):
        ours = ", ".join(c.__name__ for c in get_args(SENSORS))
        raise ValueError(
            f"{name} is a {type(value).__name__}, a sensor of one's own; expected {ours}, for a model file holds "
            "numbers and no code. Keep the numbers with `save_tree` and build the model around them again."
        )
    raise ValueError(f"{name} is a {type(value).__name__}; expected a jax array, plain value or {[*KNOWN]}.")


# Fields that a class has had since a version; in older files they are None, or empty.
SINCE = {
    3: {"HybridModel": ("calibration",)},
    4: {"HybridModel": ("noise_lower", "outliers"), "LinearEmission": ("noise_lower",), "Calibration": ("episodes",)},
    5: {"HybridModel": ("roughness",)},
    6: {"Friction": ("speed",), "Lagrangian": ("remainder",)},
    7: {"BouncingFlow": ("others",)},
}
EMPTY = {"remainder": {"tuple": []}, "others": {"tuple": []}}
# Of another form since a version: older files are read without it, and it is to be learned anew.
ANEW = {"CommandedModel": 6}


def _is_past(node: Any, version: int) -> bool:
    """Whether a part is of a form that this version has no more."""
    match node:
        case {"class": str(kind)}:
            return version < ANEW.get(kind, 0)
    return False


def _current(node: Any, version: int) -> Any:
    """The JSON of a part as this version writes it."""
    match node:
        case {"class": str(kind), "fields": dict(inner)}:
            added = (name for since, classes in SINCE.items() if version < since for name in classes.get(kind, ()))
            known = {name: _current(value, version) for name, value in inner.items()}
            return {**node, "fields": {name: EMPTY.get(name) for name in added} | known}
        case {"tuple": list(items)}:
            return {"tuple": [_current(item, version) for item in items]}
    return node


def _parts(nodes: Named, arrays: Named) -> dict[str, eqx.Module]:
    """The modules that `nodes` describe; every array is used, once."""
    left = dict(arrays)
    parts = {name: _built(node, name, left, {}) for name, node in nodes.items()}
    if left:
        raise ValueError(f"tensors {_brief([*left])} are in no part; expected each in one.")
    if not parts or not all(n.isidentifier() and isinstance(p, eqx.Module) for n, p in parts.items()):
        raise ValueError(f"the parts are {_brief(parts)}; expected modules by name, such as model=….")
    return parts


def _built(node: Any, name: str, left: Named, axes: dict[str, int]) -> Any:
    """What `_node` described; `axes` are the sizes of the part's named axes seen so far."""
    match node:
        case {"class": str(kind), "fields": dict(inner), **more} if kind in KNOWN and not more:
            return _instance(KNOWN[kind], inner, name, left, axes)
        case {"tuple": list(items), **more} if not more:
            return tuple(_built(item, f"{name}.{i}", left, axes) for i, item in enumerate(items))
        case {"tensor": str(tensor), **more} if tensor == name and tensor in left and not more:
            return left.pop(tensor)
    if type(node) in PLAIN:
        return node
    raise ValueError(f"{name} is described as {_brief(node)}; expected its tensor or {', '.join(KNOWN)}.")


def _instance(cls: Any, inner: Named, name: str, left: Named, axes: dict[str, int]) -> Any:
    types = get_type_hints(cls)
    hints = {f.name: types[f.name] for f in fields(cls)}
    if inner.keys() != hints.keys():
        raise ValueError(f"{name} differs in {sorted(inner.keys() ^ hints.keys())}; expected {cls.__name__} fields.")
    values = {field: _built(node, f"{name}.{field}", left, axes) for field, node in inner.items()}
    for field, value in values.items():
        if not _fits(value, hints[field], axes):
            raise ValueError(f"{name}.{field} is {_brief(value)}; expected {hints[field]} with {axes}.")
    built = cls(**{field: _as_floats(v, hints[field]) for field, v in values.items()})
    return built.validate() if isinstance(built, model.HybridModel) else built


def _as_floats(value: Any, hint: Any) -> Any:
    """The value; whole numbers in JSON become floats where the field holds floats."""
    if hint is float:
        return float(value)
    return tuple(float(v) for v in value) if hint == tuple[float, ...] else value


def _fits(value: Any, hint: Any, axes: dict[str, int]) -> bool:
    """Whether a value has a field's annotated type; a named axis must have one size throughout a part."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, arg, axes) for arg in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:  # tuple[X, ...]: each element, such as a layer, has sizes of its own
        return isinstance(value, tuple) and all(_fits(v, args[0], {}) for v in value)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        sizes = zip(hint.dim_str.split(), getattr(value, "shape", ()), strict=False)
        return isinstance(value, hint) and all(a[0] == "_" or axes.setdefault(a, n) == n for a, n in sizes)
    if hint is emission.Emission:
        return isinstance(value, hint)
    return type(value) is hint or (hint is float and type(value) is int and abs(value) < 2**53)


def _leaves(tree: Any) -> tuple[Named, Named]:
    """The numbers (for random keys their algorithm), and the arrays of a pytree by their places."""
    nodes, arrays = {}, {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        place = "tree" + jax.tree_util.keystr(path)
        if place in nodes or place in arrays:
            raise ValueError(f"two leaves are both at {place}; expected one leaf in each place.")
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            nodes[place], arrays[place] = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
        elif isinstance(leaf, jax.Array | np.ndarray | np.generic):
            arrays[place] = leaf
        elif type(leaf) in (bool, int, float, str):
            nodes[place] = leaf
    return nodes, arrays


def _outlines(nodes: Named, arrays: Named) -> dict[str, str]:
    """What is in each place, in words that agree where one can be restored into the other."""
    numbers = {place: type(node).__name__ for place, node in nodes.items()}
    return numbers | {p: _brief(a) + (f" {nodes[p]} key" if p in nodes else "") for p, a in arrays.items()}


def _restored(path: Any, leaf: Any, nodes: Named, arrays: dict[str, np.ndarray]) -> Any:
    place = "tree" + jax.tree_util.keystr(path)
    if place not in arrays:
        return nodes.get(place, leaf)
    if place in nodes:
        return jax.random.wrap_key_data(jnp.array(arrays[place]), impl=nodes[place])
    if isinstance(leaf, jax.Array):
        return _on_device(place, arrays[place])
    return arrays[place] if isinstance(leaf, np.ndarray) else arrays[place][()]


def _brief(value: Any) -> str:
    """A few words for an error: an array's type and shape, the beginning of anything else."""
    return f"{value.dtype}{[*value.shape]}" if hasattr(value, "shape") else f"{value!r:.80}"


def _difference(found: Named, expected: Named) -> str:
    """The first name under which two outlines disagree, in words; empty if they agree."""
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or found[name] != expected.get(name):
            here, there = found.get(name, "missing"), expected.get(name, "nothing")
            return f"{name} is {here}; expected {there!s:.80}"
    return ""


def _on_host(kind: str, name: str, array: Any) -> np.ndarray:
    """The array in plain memory of its own, if it is of a type that can be stored and, in a model, finite."""
    if str(array.dtype) not in DTYPES.split():
        raise ValueError(f"{name} is {_brief(array)}; expected one of {DTYPES}.")
    array = np.array(array, order="C")
    if kind == "model" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds a non-finite value; expected finite numbers only.")
    return array


def _on_device(name: str, array: np.ndarray) -> jax.Array:
    moved = jnp.array(array)
    if moved.dtype != array.dtype:
        raise ModelFileError(f"{name} is {array.dtype}; expected 32 bits. Enable jax_enable_x64 to read it.")
    return moved


def _write(path: Path, kind: str, nodes: Named, arrays: Named, notes: Named | None) -> None:
    """Nothing; the new file has been read back before it takes the place of an old one."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {path.parent}; create it first. {UNWRITTEN}")
    held = {name: _on_host(kind, name, array) for name, array in arrays.items()}
    document = {"version": VERSION, "kind": kind, "nodes": nodes, "notes": notes or {}}
    document["tensors"] = _outlines({}, held)
    document["sha256"] = _digest(document, held)
    with unfinished(path) as part:
        with open(part, "xb") as file:
            file.write(safetensors.numpy.save(held, {"vhydro": json.dumps(document)}))
            file.flush()
            os.fsync(file.fileno())
        _read(part, kind)
        os.replace(part, path)


def _read(path: Path, kind: str) -> tuple[Named, dict[str, np.ndarray]]:
    """The document and the arrays of a file, after every check that does not need the classes."""
    if path.exists() and not path.is_file():
        raise ModelFileError("this is a directory or a device; expected a file. Give the path of a file.")
    data = path.read_bytes()
    try:
        document, arrays = _document(data), safetensors.numpy.load(data)
    except (safetensors.SafetensorError, json.JSONDecodeError, UnicodeError, KeyError) as error:
        raise ValueError(f"its {len(data)} bytes are no safetensors file ({error}); expected one.") from None
    if (found := document["kind"]) != kind:
        raise ModelFileError(f"holds a {found:.9}; expected a {kind}. Use load for models, else load_tree.")
    if difference := _difference(_outlines({}, arrays), document["tensors"]):
        raise ValueError(f"tensor {difference}.")
    if document["sha256"] != (digest := _digest(document, arrays)):
        raise ValueError(f"the checksum is {digest}; expected {document['sha256']:.80}.")
    return document, {name: _on_host(kind, name, array) for name, array in arrays.items()}


def _document(data: bytes) -> Named:
    """The JSON document in the metadata of a safetensors file, if its version can be read."""
    document = None
    match _json(data[8 : 8 + int.from_bytes(data[:8], "little")].decode()):
        case {"__metadata__": {"vhydro": str(text)}}:
            document = _json(text)
    reads = f"this version reads up to {VERSION}; upgrade vhydro"
    match document:
        case {"version": int(newer)} if newer > VERSION:
            raise ModelFileError(f"written by a newer format {newer}; {reads}.")
        case {"version": int(known)} if known >= 1 and {n: type(v) for n, v in document.items()} == ENTRIES:
            return document
    raise ValueError(f"the description in the metadata is {_brief(document)}; expected {[*ENTRIES]}.")


def _json(text: str) -> Any:
    def unique(pairs):
        if len(names := dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice in one JSON object; expected it once.")
        return names

    return json.loads(text, object_pairs_hook=unique)


def _digest(document: Named, arrays: dict[str, np.ndarray]) -> str:
    """The SHA-256 of all of the document but itself, then of the tensors in its order."""
    try:
        digest = hashlib.sha256(json.dumps({**document, "sha256": ""}, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}; expected JSON values and finite numbers in notes and leaves.") from None
    for name in document["tensors"]:
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


@contextmanager
def _naming(path: FilePath, error_class: type[ValueError], remedy: str):
    """Errors inside name the file and say what to do; no library's own error gets out."""
    try:
        yield
    except RecursionError:
        raise error_class(f"{path}: is nested too deeply; expected a few levels. {remedy}") from None
    except ModelFileError as error:  # has its own remedy
        raise ModelFileError(f"{path}: {error}") from None
    except ValueError as error:
        raise error_class(f"{path}: {error} {remedy}") from None
