"""Pickles read as data: an interpreter over `pickletools.genops` that imports nothing and calls nothing.

It builds lists, tuples, dictionaries, strings, numbers and numpy arrays of numbers. The handful of names that numpy's
own pickles use are recognised as words; any other name, and any other way of making an object, is refused.
"""

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Literal

import numpy as np

from vhydro.data.assembly import GIBIBYTE, translated
from vhydro.data.errors import DataError
from vhydro.data.memory import allowance

MOST_OBJECTS = 10_000_000
OBJECT = 64  # bytes that an object of a pickle takes in memory, about
LONGEST_TUPLE = 1_000_000
LONGEST_NAME = 100
MOST_AXES = 32
NUMERIC = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
NUMPY_NAMES = {
    f"numpy.{core}.{name}": name.rpartition(".")[2]
    for core in ("core", "_core")
    for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
} | {"numpy.ndarray": "ndarray", "numpy.dtype": "dtype", "_codecs.encode": "encode", "__builtin__.bytes": "bytes"}


@dataclass(eq=False)
class Array:
    """A numpy array of a pickle: its numbers, or its objects, or (for an image) neither."""

    shape: tuple[int, ...] = ()
    values: np.ndarray | None = None
    items: list | None = None


@dataclass(eq=False)
class Bytes:
    """A byte string that can be let go of although the pickle's memo still points at it."""

    content: bytes | None


@dataclass(eq=False)
class Code:
    """A numpy dtype by its code, such as `f8`."""

    code: str


@dataclass(frozen=True)
class Word:
    """One of the recognised names. It is never looked up."""

    name: str


class Refused(ValueError):
    """A pickle that asks for more than data."""


@dataclass
class Rest:
    """A file from here to its end: a length that is a lie gets what there is instead of an allocation."""

    file: BufferedIOBase
    left: int

    def read(self, count: int) -> bytes:
        data = self.file.read(max(0, min(count, self.left)))
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        data = self.file.readline(self.left)
        self.left -= len(data)
        return data


def unpickled_inertly(file: BufferedIOBase, path: Path):
    """What the pickle from here on describes, images left out; a `DataError` if it is more than plain data."""
    at = file.tell()
    rest = Rest(file, file.seek(0, 2) - at)
    file.seek(at)
    expected = "a pickle of lists, dictionaries, numbers and numpy arrays (nothing else is ever executed)"
    with translated(path, expected, key="pickle"):
        try:
            return Machine(allowance(at + rest.left)).run(rest)
        except Refused as error:
            raise DataError(path, key="pickle", found=str(error), expected=expected) from None


@dataclass
class Machine:
    """The stack and memo of a pickle."""

    limit: int  # bytes that it may take
    stack: list = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)
    objects: int = 0
    kept: int = 0

    def run(self, rest: Rest):
        """The object that is left when the pickle stops."""
        for opcode, argument, _ in pickletools.genops(rest):  # pyright: ignore[reportArgumentType]
            if opcode.name == "STOP":
                return self.pop()
            step = STEPS.get(opcode.name)
            if step is None:
                raise Refused(f"the operation {opcode.name}")
            step(self, argument)
        raise Refused("no end")

    def push(self, value) -> None:
        self.objects += 1
        if self.objects > MOST_OBJECTS:
            raise Refused(f"more than {MOST_OBJECTS} objects")
        self.keep(OBJECT)
        self.stack.append(value)

    def pop(self):
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Refused("a value taken from an empty stack")
        return self.stack.pop()

    def top(self, kind: type):
        value = self.pop()
        self.stack.append(value)
        if type(value) is not kind:
            raise Refused(f"a {type(value).__name__} where a {kind.__name__} belongs")
        return value

    def since_mark(self) -> list:
        if not self.marks:
            raise Refused("an end without a beginning")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def push_bytes(self, content: bytes) -> None:
        self.keep(len(content))
        self.push(Bytes(content))

    def keep(self, count: int) -> None:
        """Counts bytes before they are copied; the memo can give the same text again and again."""
        self.kept += count
        if self.kept > self.limit:
            raise Refused(f"more than {self.limit / GIBIBYTE:.3g} GiB of numbers in a file of this size")

    def push_tuple(self, values: list) -> None:
        if len(values) > LONGEST_TUPLE:
            raise Refused(f"a tuple of {len(values)} values")
        self.push(tuple(values))

    def push_global(self, module, name) -> None:
        if not all(type(word) is str and len(word) <= LONGEST_NAME for word in (module, name)):
            raise Refused("a name that is no short text")
        full = f"{module}.{name}"
        if full not in NUMPY_NAMES:
            raise Refused(f"the name {full}")
        self.push(Word(NUMPY_NAMES[full]))

    def extend(self, values: list) -> None:
        self.top(list).extend(values)

    def update(self, values: list) -> None:
        target = self.top(dict)
        if len(values) % 2:
            raise Refused("a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise Refused(f"a dictionary key of type {type(key).__name__}")
            target[key] = value

    def put(self, place: int) -> None:
        value = self.pop()
        self.stack.append(value)
        self.memo[place] = value

    def get(self, place: int) -> None:
        if place not in self.memo:
            raise Refused(f"memo {place}, which was never written")
        self.push(self.memo[place])

    def reduce(self) -> None:
        arguments, word = self.pop(), self.pop()
        if type(word) is not Word or type(arguments) is not tuple:
            raise Refused("a call of something that is no numpy name")
        made = MAKERS.get(word.name)
        if made is None:
            raise Refused(f"a call of {word.name}")
        self.push(made(self, *arguments))

    def build(self) -> None:
        state = self.pop()
        target = self.pop()
        self.stack.append(target)
        if type(target) is Code and type(state) is tuple and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            if any(part is not None for part in state[2:5]):
                raise Refused("a dtype with fields")
            target.code = state[1] + target.code.lstrip("<>|=")
        elif type(target) is Array and type(state) is tuple and len(state) == 5:
            _, shape, code, fortran, data = state
            self.fill(target, shape, code, "F" if fortran is True else "C", data)
        else:
            raise Refused(f"a state for a {type(target).__name__}")

    def fill(self, array: Array, shape, code, order: Literal["C", "F"], data) -> Array:
        """Gives an array its contents, if they are as many as its shape says."""
        if type(code) is not Code or not is_shape(shape):
            raise Refused("an array without a shape or a dtype")
        if array.values is not None or array.items is not None:
            raise Refused("an array that is filled twice")
        array.shape = shape
        if code.code.lstrip("|") == "O8":
            if type(data) is not list or len(data) != math.prod(shape):
                raise Refused(f"an array of objects of shape {shape[:5]} without its objects")
            array.items = data
            return array
        dtype = numeric(code)
        size = byte_count(data)
        if math.prod(shape) * dtype.itemsize != size:
            raise Refused(f"{size} bytes for an array of shape {shape[:5]} and type {dtype}")
        if dtype == np.uint8 and len(shape) > 1:
            self.release(data)  # an image
        else:
            array.values = np.frombuffer(self.raw(data), dtype).reshape(shape, order=order)
        return array

    def raw(self, data) -> bytes:
        """The bytes of an array; old pickles hold them as text."""
        if type(data) is str:
            self.keep(len(data))
            return data.encode("latin-1")
        return data.content

    def release(self, data) -> None:
        if type(data) is Bytes and data.content is not None:
            self.kept -= len(data.content)
            data.content = None


def numeric(code: Code) -> np.dtype:
    if not NUMERIC.fullmatch(code.code):
        raise Refused(f"the dtype {code.code[:20]}")
    return np.dtype(code.code)


def is_shape(shape) -> bool:
    """Whether it is a shape that numpy could have written."""
    return type(shape) is tuple and len(shape) <= MOST_AXES and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)


def byte_count(data) -> int:
    """How many bytes an array's data are."""
    if type(data) is Bytes and data.content is not None:
        return len(data.content)
    if type(data) is str:
        return len(data)
    raise Refused("an array without bytes")


def reconstruct(_machine: Machine, kind, shape, _code) -> Array:
    if kind != Word("ndarray") or shape != (0,):
        raise Refused("an array of an unknown kind")
    return Array()


def scalar(machine: Machine, code, data):
    dtype = numeric(code) if type(code) is Code else None
    if dtype is None or byte_count(data) != dtype.itemsize:
        raise Refused("a number of the wrong size")
    return np.frombuffer(machine.raw(data), dtype)[0].item()


def frombuffer(machine: Machine, data, code, shape, order) -> Array:
    return machine.fill(Array(), shape, code, "F" if order == "F" else "C", data)


def dtype_of(_machine: Machine, code, *_flags) -> Code:
    if type(code) is not str or len(code) > LONGEST_NAME:
        raise Refused("a dtype without a code")
    return Code(code)


def encode(machine: Machine, content, encoding) -> Bytes:
    if type(content) is not str or encoding not in ("latin1", "latin-1"):
        raise Refused("an encoding of something that is no text")
    machine.keep(len(content))
    return Bytes(content.encode("latin-1"))


def no_bytes(_machine: Machine) -> Bytes:
    """Old pickles of an empty array call `bytes` without arguments."""
    return Bytes(b"")


MAKERS: dict[str, Callable] = {
    "bytes": no_bytes,
    "_reconstruct": reconstruct, "scalar": scalar, "_frombuffer": frombuffer, "dtype": dtype_of, "encode": encode,
}  # fmt: skip


def stack_global(machine: Machine, _argument) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push_global(module, name)


def put_dict(machine: Machine, _argument) -> None:
    values = machine.since_mark()
    machine.push({})
    machine.update(values)


def last(machine: Machine, count: int) -> list:
    return [machine.pop() for _ in range(count)][::-1]


ATOMS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
         "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")  # fmt: skip
STEPS: dict[str, Callable] = {
    **dict.fromkeys(ATOMS, lambda m, value: m.push(value)),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"), lambda m, b: m.push_bytes(bytes(b))),
    **dict.fromkeys(("PROTO", "FRAME"), lambda _machine, _argument: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda m, place: m.put(place)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, place: m.get(place)),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.since_mark(),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "LIST": lambda m, _: m.push(m.since_mark()),
    "TUPLE": lambda m, _: m.push_tuple(m.since_mark()),
    "TUPLE1": lambda m, _: m.push_tuple(last(m, 1)),
    "TUPLE2": lambda m, _: m.push_tuple(last(m, 2)),
    "TUPLE3": lambda m, _: m.push_tuple(last(m, 3)),
    "DICT": put_dict,
    "APPEND": lambda m, _: m.extend(last(m, 1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.update(last(m, 2)),
    "SETITEMS": lambda m, _: m.update(m.since_mark()),
    "GLOBAL": lambda m, name: m.push_global(*str(name).split(" ", 1)),
    "STACK_GLOBAL": stack_global,
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
}  # fmt: skip
