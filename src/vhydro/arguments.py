"""The arguments of one verb: parsed by tyro, and what is wrong with them said in a line or two."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, Positional
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vhydro.usage import UsageError, did_you_mean

# Flags of older versions, and what they are now.
FORMER = {
    "--fresh": "--overwrite", "--log": "--episode", "--systems": "--tasks", "--path": "the logs without a flag",
}  # fmt: skip


def parsed(configuration: type, verb: str, words: Sequence[str]) -> Any:
    """The configuration of a verb as its arguments have it; a `UsageError` says what is wrong with them."""
    called = f"vhydro {verb}"

    def refuse(event: Any) -> NoReturn:
        raise UsageError(_explained(event, configuration, called, words))

    with _refusing(refuse):
        return tyro.cli(
            configuration, prog=called, args=list(words), config=(FlagCreatePairsOff,), registry=_shown_plainly()
        )


def _shown_plainly() -> ConstructorRegistry:
    """Rules that show a value that may be left out, or given several times, as a reader of help expects it."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> Any:
        kinds = [k for k in get_args(info.type) if k is not type(None)]
        if info.type_origin not in (Union, UnionType) or len(kinds) != 1 or type(None) not in get_args(info.type):
            return None
        own = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
        if not isinstance(own, PrimitiveConstructorSpec):
            return None
        return replace(
            own,
            is_instance=lambda x: x is None or own.is_instance(x),
            str_from_instance=lambda x: ["none"] if x is None else own.str_from_instance(x),
        )

    @registry.primitive_rule
    def several(info: PrimitiveTypeInfo) -> Any:
        if info.type_origin is not tuple or get_args(info.type)[1:] != (...,):
            return None
        one = get_args(info.type)[0]
        own = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(one, info.markers))
        if not isinstance(own, PrimitiveConstructorSpec) or own.nargs != 1:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar=f"{own.metavar} ...",
            instance_from_str=lambda words: tuple(own.instance_from_str([w]) for w in words),
            is_instance=lambda x: isinstance(x, tuple) and all(own.is_instance(v) for v in x),
            str_from_instance=lambda x: [text for v in x for text in own.str_from_instance(v)] or ["none"],
            choices=own.choices,
        )

    return registry


def _refusing(refuse: Callable[[Any], NoReturn]) -> AbstractContextManager:
    """Hands what tyro would print of a mistake to `refuse`; a version of it without that hook prints it itself."""
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return nullcontext()
    return on_parse_error(refuse)


def flags(configuration: type) -> list[str]:
    """Every flag of a configuration, as a user types it."""
    named = [field for field, kind in _leaves(configuration) if not _is_positional(kind)]
    return [f"--{'no-' if field.default is True else ''}{field.name.replace('_', '-')}" for field in named]


def positionals(configuration: type) -> list[str]:
    """The names of what goes without a flag, in order."""
    return [_metavar(kind) or field.name.upper() for field, kind in _leaves(configuration) if _is_positional(kind)]


def _leaves(configuration: type) -> Iterator[tuple[Any, Any]]:
    """Every field that is an argument, with its annotated type; those of records inside among the others."""
    hints = get_type_hints(configuration, include_extras=True)
    for field in fields(configuration):
        kind = hints[field.name]
        inner = getattr(kind, "__origin__", kind)
        if is_dataclass(inner) and isinstance(inner, type):
            yield from _leaves(inner)
        else:
            yield field, kind


def _marks(kind: Any) -> tuple:
    return getattr(kind, "__metadata__", ())


def _is_positional(kind: Any) -> bool:
    return any(mark is Positional for mark in _marks(kind))


def _metavar(kind: Any) -> str:
    return next((m.metavar for m in _marks(kind) if getattr(m, "metavar", None)), "")


# --- what is wrong, in words ------------------------------------------------------------------------------------------


def _explained(event: Any, configuration: type, called: str, words: Sequence[str]) -> str:
    """What tyro found wrong with the words, what was expected and what to do, by the kind of its event."""
    more = f"`{called} --help` lists the options."
    usage = " ".join([called, *positionals(configuration)])
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unrecognised(event.tokens, configuration, called, usage)
        case "MissingArgs":
            unknown = [t for t in event.unrecognized_tokens if t.startswith("-")]
            if unknown:
                return _unrecognised(unknown, configuration, called, usage)
            missing = ", ".join(_shown(a.arg) for a in event.missing_arguments)
            hint = " What has no flag goes first: some flags take all the names that follow." if words else ""
            return f"{called}: {missing} is missing; expected `{usage}`.{hint} {more}"
        case "InvalidChoice":
            hint = did_you_mean(event.value, event.choices)
            one = f"expected one of {', '.join(event.choices)}"
            return f"{called}: {_shown(event.argument)} {event.value}; {one}. {hint}"
        case "BadValue":
            return f"{called}: {_shown(event.argument)} lacks its value; expected {_wanted(event.argument)}. {more}"
        case "InstantiationFailure" if event.argument is None:
            return f"{called}: {event.message}"
        case "InstantiationFailure":
            found = " ".join(_values(event.argument, words))
            return f"{called}: {_shown(event.argument)} {found}; expected {_wanted(event.argument)}. {more}"
    return f"{called}: the arguments do not go together ({type(event).__name__}). {more}"


def _unrecognised(tokens: Sequence[str], configuration: type, called: str, usage: str) -> str:
    flag = next((t.partition("=")[0] for t in tokens if t.startswith("-")), None)
    if flag is None:
        many = " Several logs are a folder, or a pattern in quotes such as 'logs/*.h5'." if "LOGS" in usage else ""
        return f"{called}: {tokens[0]!r} is one word too many; expected `{usage}` and options.{many}"
    plain = flag.replace("_", "-")
    if plain in FORMER:
        return f"{called}: there is no {flag} any more. Use {FORMER[plain]}."
    hint = did_you_mean(plain, flags(configuration))
    return f"{called}: there is no {flag}. {hint} `{called} --help` lists the options."


def _shown(argument: Any) -> str:
    """An argument as a user knows it: its flag or, where it has none, its name."""
    if argument.is_positional():
        name = str(argument.lowered.metavar)
        return argument.field.intern_name.upper() if name.startswith(("{", "[")) else name
    return argument.lowered.name_or_flags[0]


def _wanted(argument: Any) -> str:
    """What values an argument takes, in words."""
    metavar = re.sub(r"[\[\]{}]", "", str(argument.lowered.metavar)).replace("None|", "")
    words = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a name"}
    return " or ".join(words.get(part, part) for part in metavar.split("|"))


def _values(argument: Any, words: Sequence[str]) -> list[str]:
    """What was given for a flag."""
    names = {n.replace("_", "-") for n in (*argument.lowered.name_or_flags,)}
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in names:
            after = list(words[place + 1 :])
            taken = next((i for i, w in enumerate(after) if w.startswith("--")), len(after))
            return [value] if equals else after[: max(taken, 1)][:4]
    return []
