"""Models and training checkpoints, each in one safetensors file.

The tensors are plain safetensors; the metadata holds one JSON document under `vhydro`: the format version, what the
file is made of, and a SHA-256 of all of it. Loading builds only the classes listed here and runs nothing.
"""

import hashlib
import json
import math
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import AbstractArray

from vhydro.emission import LinearEmission, NetworkEmission
from vhydro.flow import LinearFlow, PortHamiltonianFlow, Reset
from vhydro.library import Cosine, Monomial, Penetration, Sine
from vhydro.model import HybridModel, ModeKernel
from vhydro.network import Network
from vhydro.proposal import AmortizedProposal, ConditionedProposal

VERSION = 1  # of the format; raise it when a known class, its fields or the layout change
MODULES = (
    HybridModel,
    ModeKernel,
    PortHamiltonianFlow,
    LinearFlow,
    Reset,
    LinearEmission,
    NetworkEmission,
    Network,
)
PROPOSALS = (ConditionedProposal, AmortizedProposal)
TERMS = (Monomial, Sine, Cosine, Penetration)
KNOWN: dict[str, Any] = {c.__name__: c for c in (*MODULES, *PROPOSALS, *TERMS)}
DTYPES = (
    "bool",
    "float16",
    "float32",
    "float64",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
)
DAMAGED = "The file is damaged, edited or from another program: copy it again or use another."
UNWRITTEN = "Nothing was written."

FilePath = str | os.PathLike[str]
Kind = Literal["model", "tree"]


class ModelFileError(ValueError):
    """A file that cannot be loaded: which one, what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Saved:
    """What a model file holds."""

    parts: dict[str, eqx.Module]
    notes: dict[str, Any]
    version: int


class _Contents(NamedTuple):
    """A file in memory: `nodes` is JSON that says what to make of the `arrays`."""

    nodes: dict[str, Any]
    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]
    version: int


def save(path: FilePath, /, *, notes: dict[str, Any] | None = None, **parts: eqx.Module) -> None:
    """Nothing; the parts and notes (JSON values; tuples come back as lists) are in the file, or it is untouched."""
    with _naming(path, ValueError, UNWRITTEN):
        arrays: dict[str, Any] = {}
        nodes = {name: _node(part, name, arrays) for name, part in parts.items()}
        _parts(nodes, arrays)  # refuses here what loading would refuse
        data = _packed("model", nodes, arrays, notes)
    _write(Path(path), data)


def load(path: FilePath) -> Saved:
    """The validated parts of a file written by `save`, and its notes."""
    data = _bytes(Path(path))
    with _naming(path, ModelFileError, DAMAGED):
        contents = _unpacked("model", data)
        arrays = {name: _on_device(name, array) for name, array in contents.arrays.items()}
        return Saved(_parts(contents.nodes, arrays), contents.notes, contents.version)


def save_tree(path: FilePath, tree: Any, notes: dict[str, Any] | None = None) -> None:
    """Nothing; the arrays, random keys, numbers and strings of any pytree are in the file, or it is untouched."""
    with _naming(path, ValueError, UNWRITTEN):
        data = _packed("tree", *_leaves(tree), notes)
    _write(Path(path), data)


def load_tree(path: FilePath, like: Any) -> tuple[Any, dict[str, Any]]:
    """`like` with the leaves that `save_tree` stored, and the notes; other leaves, such as functions, are `like`'s."""
    data = _bytes(Path(path))
    with _naming(path, ModelFileError, DAMAGED):
        contents = _unpacked("tree", data)
        found, expected = _outlines(contents.nodes, contents.arrays), _outlines(*_leaves(like))
        if difference := _difference(found, expected):
            raise ModelFileError(f"{difference} as in `like`. Build `like` the way the saved tree was built.")
        leaves, structure = jax.tree_util.tree_flatten_with_path(like)
        return structure.unflatten(
            [_restored(_place(p), leaf, contents) for p, leaf in leaves]
        ), contents.notes


# Modules to JSON and back.


def _node(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """The JSON of a part; its arrays are put into `arrays` under their dotted names."""
    if KNOWN.get(type(value).__name__) is type(value):
        inner = {f.name: _node(getattr(value, f.name), f"{name}.{f.name}", arrays) for f in fields(value)}
        return {"class": type(value).__name__, "fields": inner}
    if type(value) is tuple:
        return {"tuple": [_node(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]}
    if isinstance(value, jax.Array):
        arrays[name] = value
        return {"tensor": name}
    if _is_plain(value):
        return value
    kinds = "a jax array, a tuple, a finite Python number, a string, None or one of"
    raise ValueError(f"{name} is {_brief(value)}; expected {kinds} {', '.join(KNOWN)}.")


def _parts(nodes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, eqx.Module]:
    """The modules that `nodes` describe; every array is used, once."""
    left = dict(arrays)
    parts = {name: _built(node, name, left, {}) for name, node in nodes.items()}
    if left:
        raise ValueError(f"tensor {min(left)} belongs to no part; expected every tensor to be used once.")
    if not parts:
        raise ValueError("there are no parts; expected at least one, such as model=….")
    for name, part in parts.items():
        if not (name.isidentifier() and isinstance(part, eqx.Module)):
            raise ValueError(
                f"part {name!r} is {_brief(part)}; expected a plain name and a module, such as model=…."
            )
    return parts


def _built(node: Any, name: str, left: dict[str, Any], axes: dict[str, int]) -> Any:
    """What `_node` described; `axes` are the sizes of the part's named axes seen so far."""
    match node:
        case {"class": str(kind), "fields": dict(inner), **more} if kind in KNOWN and not more:
            return _instance(KNOWN[kind], inner, name, left, axes)
        case {"tuple": list(items), **more} if not more:
            return tuple(_built(item, f"{name}.{i}", left, axes) for i, item in enumerate(items))
        case {"tensor": str(tensor), **more} if tensor == name and tensor in left and not more:
            return left.pop(tensor)
    if _is_plain(node):
        return node
    raise ValueError(
        f"{name} is described as {_brief(node)}; expected its tensor or one of {', '.join(KNOWN)}."
    )


def _instance(cls: Any, inner: dict[str, Any], name: str, left: dict[str, Any], axes: dict[str, int]) -> Any:
    hints = _hints(cls)
    if inner.keys() != hints.keys():
        raise ValueError(
            f"{name} has fields {_brief([*inner])}; expected those of {cls.__name__}: {[*hints]}."
        )
    values = {field: _built(node, f"{name}.{field}", left, axes) for field, node in inner.items()}
    for field, value in values.items():
        if not _fits(value, hints[field], axes):
            raise ValueError(f"{name}.{field} is {_brief(value)}; expected {hints[field]} with {axes}.")
    built = cls(**values)
    return built.validate() if isinstance(built, HybridModel) else built


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, hint: Any, axes: dict[str, int]) -> bool:
    """Whether a value has a field's annotated type; named axes must have one size throughout a part."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, arg, axes) for arg in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:  # tuple[X, ...]: each element, such as a layer, has sizes of its own
        return isinstance(value, tuple) and all(_fits(v, args[0], {}) for v in value)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        sizes = zip(hint.dim_str.split(), getattr(value, "shape", ()), strict=False)
        return isinstance(value, hint) and all(axes.setdefault(axis, size) == size for axis, size in sizes)
    return type(value) in ((int, float) if hint is float else (hint,))


# Leaves of a pytree to JSON and back.


def _place(path: Any) -> str:
    return "tree" + jax.tree_util.keystr(path)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _leaves(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers (and for random keys their kind), and the arrays of a pytree by their places."""
    nodes, arrays = {}, {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        place = _place(path)
        if place in nodes or place in arrays:
            raise ValueError(f"two leaves are both at {place}; expected one leaf in each place.")
        if _is_key(leaf):
            nodes[place], arrays[place] = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
        elif isinstance(leaf, jax.Array | np.ndarray | np.generic):
            arrays[place] = leaf
        elif isinstance(leaf, int | float | str):
            nodes[place] = leaf
    return nodes, arrays


def _outlines(nodes: dict[str, Any], arrays: dict[str, Any]) -> dict[str, str]:
    """What is in each place, in words that agree where one can be restored into the other."""
    kinds = {place: f" ({nodes[place]} key)" if place in nodes else "" for place in arrays}
    numbers = {place: type(node).__name__ for place, node in nodes.items()}
    return numbers | {place: _outline(array) + kinds[place] for place, array in arrays.items()}


def _restored(place: str, leaf: Any, contents: _Contents) -> Any:
    if place not in contents.arrays:
        return contents.nodes.get(place, leaf)
    array = contents.arrays[place]
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.array(array), impl=str(jax.random.key_impl(leaf)))
    if isinstance(leaf, jax.Array):
        return _on_device(place, array)
    return array.copy() if isinstance(leaf, np.ndarray) else array[()]


# Values, and words for them.


def _is_plain(value: Any) -> bool:
    return type(value) in (str, int, bool, NoneType) or (type(value) is float and math.isfinite(value))


def _json_value(value: Any, name: str) -> Any:
    """The value as JSON gives it back, or an error that names what JSON would change or lose."""
    if isinstance(value, dict) and all(type(k) is str for k in value):
        return {k: _json_value(v, f"{name}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(v, f"{name}.{i}") for i, v in enumerate(value)]
    if _is_plain(value):
        return value
    kinds = "finite Python numbers, strings, None, lists and dicts with string keys"
    raise ValueError(f"{name} is {_brief(value)}; expected only {kinds}.")


def _outline(array: Any) -> str:
    return f"{array.dtype}{[*array.shape]}"


def _brief(value: Any) -> str:
    text = _outline(value) if isinstance(value, jax.Array | np.ndarray | np.generic) else f"{value!r:.80}"
    return f"{type(value).__name__} {text}"


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first name under which two outlines disagree, in words; empty if they agree."""
    for name in sorted(found.keys() | expected.keys()):
        here, there = found.get(name, "missing"), expected.get(name, "nothing")
        if here != there:
            return f"{name} is {here!s:.80}; expected {there!s:.80}"
    return ""


def _on_host(name: str, array: Any) -> np.ndarray:
    """The array in plain memory, if it is of a type that can be stored and finite."""
    if str(array.dtype) not in DTYPES:
        raise ValueError(f"{name} is {_outline(array)}; expected one of {', '.join(DTYPES)}.")
    array = np.array(array, order="C")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} holds a non-finite value; expected finite numbers. Use the last good parameters."
        )
    return array


def _on_device(name: str, array: np.ndarray) -> jax.Array:
    moved = jnp.array(array)
    if moved.dtype != array.dtype:
        raise ModelFileError(
            f"{name} is {array.dtype}; expected at most 32 bits because jax_enable_x64 is off. "
            'Turn it on first: jax.config.update("jax_enable_x64", True).'
        )
    return moved


# One file.


def _packed(kind: Kind, nodes: dict[str, Any], arrays: dict[str, Any], notes: dict[str, Any] | None) -> bytes:
    """The bytes of a file, which have been read back once."""
    held = {name: _on_host(name, array) for name, array in arrays.items()}
    content = {
        "kind": kind,
        "nodes": _json_value(nodes, kind),
        "tensors": {name: _outline(array) for name, array in held.items()},
        "notes": _json_value(notes or {}, "notes"),
    }
    document = {"version": VERSION, "sha256": _digest(content, held), "content": content}
    data = safetensors.numpy.save(held, {"vhydro": json.dumps(document)})
    _unpacked(kind, data)
    return data


def _unpacked(kind: Kind, data: bytes) -> _Contents:
    """What is in the bytes of a file, with everything checked that does not depend on what is wanted."""
    document = _document(data)
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"the format version is {_brief(version)}; expected 1 to {VERSION}.")
    if version > VERSION:
        raise ModelFileError(
            f"written by a newer format {version}; this version reads up to {VERSION}; upgrade vhydro."
        )
    match document:
        case {
            "sha256": digest,
            "content": {
                "kind": "model" | "tree" as found,
                "nodes": dict(nodes),
                "tensors": dict(tensors),
                **rest,
            },
        } if rest.keys() == {"notes"} and isinstance(rest["notes"], dict):
            notes = rest["notes"]
        case _:
            raise ValueError(
                f"the description is {_brief(document)}; expected kind, nodes, tensors and notes."
            )
    if found != kind:
        reader = {"model": "load", "tree": "load_tree"}[found]
        raise ModelFileError(f"the file holds a {found}; expected a {kind}. Read it with `{reader}`.")
    arrays = _tensors(data, tensors)
    if digest != (expected := _digest(document["content"], arrays)):
        raise ValueError(f"the checksum is {_brief(digest)}; expected {expected}.")
    return _Contents(nodes, {name: _on_host(name, array) for name, array in arrays.items()}, notes, version)


def _tensors(data: bytes, outlines: dict[str, Any]) -> dict[str, np.ndarray]:
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"the tensors cannot be read ({error}); expected a safetensors file.") from None
    if difference := _difference({name: _outline(array) for name, array in arrays.items()}, outlines):
        raise ValueError(f"tensor {difference}.")
    return arrays


def _digest(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """The SHA-256 of the content and then of all tensors in its order; it does not see JSON's white space."""
    digest = hashlib.sha256(json.dumps(content, allow_nan=False).encode())
    for name in content["tensors"]:
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _document(data: bytes) -> dict[str, Any]:
    """The JSON document in the metadata of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size or not size:
        raise ValueError(
            f"the file has {len(data)} bytes; expected a safetensors header of {size} after the first 8."
        )
    match _json(data[8 : 8 + size]):
        case {"__metadata__": {"vhydro": str(text)}} if isinstance(document := _json(text.encode()), dict):
            return document
    raise ValueError(
        "the metadata has no description; expected one under 'vhydro', as vhydro.storage writes it."
    )


def _json(text: bytes) -> Any:
    def unique(pairs):
        if len(names := dict(pairs)) != len(pairs):
            raise ValueError("a name occurs twice")
        return names

    try:
        return json.loads(text.decode(), object_pairs_hook=unique)
    except ValueError as error:
        raise ValueError(f"the header is not JSON ({error}); expected a safetensors file.") from None


def _bytes(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise ModelFileError(
            f"{path}: this is a directory or a device; expected a model file. Give the file's path."
        )
    return path.read_bytes()


def _write(path: Path, data: bytes) -> None:
    """Nothing; the path holds either all of the data or what it held before."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {path.parent}; create it first. {UNWRITTEN}")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: this is a directory; expected the path of a file. {UNWRITTEN}")
    temporary = path.parent / f".vhydro-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _naming(path: FilePath, error_class: type[ValueError], remedy: str):
    """Errors inside name the file and say what to do; no library's own error gets out."""
    try:
        yield
    except RecursionError:
        raise error_class(
            f"{path}: the description is nested too deeply; expected a few levels. {remedy}"
        ) from None
    except ModelFileError as error:  # has its own remedy
        raise ModelFileError(f"{path}: {error}") from None
    except ValueError as error:
        raise error_class(f"{path}: {error} {remedy}") from None
