"""The command line: parses, then calls one library function per verb."""

import sys
from collections.abc import Sequence
from importlib import import_module

import tyro

from vhydro.report.files import version

# Every verb: what it does, its module, its configuration and its function. A module is imported when its verb
# is used, so that help comes at once.
VERBS = {
    "demo": (
        "Fit, filter and show a puck that bounces in the dark.",
        "vhydro.demo",
        "DemoConfig",
        "run_demo",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb; a mistake of the user's ends it with one line and status 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        print(f"vhydro {version()}")
        return
    try:
        _run(given or ["--help"])
    except (ValueError, OSError) as error:
        print(f"vhydro: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vhydro: stopped; nothing was written.", file=sys.stderr)
        sys.exit(130)


def _run(given: list[str]) -> None:
    verb = given[0] if given[0] in VERBS else None
    config = tyro.extras.subcommand_cli_from_dict(
        {name: _configuration(name, used=name == verb) for name in VERBS},
        prog="vhydro",
        description="Support-safe filtering of contact dynamics. `vhydro --version` prints the version.",
        args=given,
    )
    assert verb is not None  # otherwise parsing has ended in help or an error
    _, module, _, function = VERBS[verb]
    getattr(import_module(module), function)(config)


def _configuration(name: str, *, used: bool):
    """The configuration class of a verb; of one that is not used, only its description."""
    text, module, configuration, _ = VERBS[name]
    if used:
        return getattr(import_module(module), configuration)

    def unused() -> None: ...

    unused.__doc__ = text
    return unused


if __name__ == "__main__":
    main()
