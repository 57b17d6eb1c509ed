"""`vhydro completion SHELL`: what makes a shell complete verbs, flags and their choices."""

import contextlib
import io
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, arg, subcommand

from vhydro.cli import GROUPS, VERBS

Shell = Literal["bash", "zsh", "fish"]
# tyro completes flags and their choices. Where there is nothing but flags to offer, logs and models are wanted: files.
ASKED = "    # Output one completion per line.\n"
FILES = """    typed = "".join(words[current_index : current_index + 1])
    if not typed.startswith("-") and all(line.startswith("-") for line in completions):
        completions = ["__TYRO_COMPLETE_FILES__"]
"""
MENDED = (
    (ASKED, ASKED + FILES),
    ('compgen -f -- "$cur"', 'compgen -f -- "${COMP_WORDS[COMP_CWORD]}"'),
    ("complete -F ", "complete -o filenames -F "),
)
# Where a shell finds it.
PLACES = {
    "bash": "~/.local/share/bash-completion/completions/vhydro",
    "zsh": "a folder of $fpath, as _vhydro",
    "fish": "~/.config/fish/completions/vhydro.fish",
}


@dataclass(frozen=True)
class CompletionCommand:
    """Print the completion of `vhydro` for a shell; of the one you use, write it where the shell looks for it:

    vhydro completion bash > ~/.local/share/bash-completion/completions/vhydro
    """

    shell: Annotated[Positional[Shell], arg(metavar="SHELL")]
    """bash, zsh or fish."""


def run_completion(command: CompletionCommand) -> None:
    """Prints the script, and on a terminal where to put it."""
    print(completion_script(command.shell))
    if sys.stdout.isatty():
        print(f"Write this to {PLACES[command.shell]}, and open a new shell.", file=sys.stderr)


def completion_script(shell: Shell) -> str:
    """A script for this shell; every verb is imported for it, once, and none when it runs."""
    tree = {name: _configuration(name) for name in VERBS if " " not in name}
    tree |= {
        group: _one_of({n.split()[1]: _configuration(n) for n in VERBS if n.split()[0] == group}) for group in GROUPS
    }
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(_one_of(tree), prog="vhydro", args=["--tyro-print-completion", shell])  # pyright: ignore
    script = out.getvalue()
    for theirs, ours in MENDED:
        script = script.replace(theirs, ours)
    return script


def _configuration(name: str) -> Any:
    _, module, configuration, _ = VERBS[name]
    return getattr(import_module(module), configuration)


def _one_of(choices: dict[str, Any]) -> Any:
    """The type of one of these, each under its word."""
    return Union[tuple(Annotated[kind, subcommand(name=word)] for word, kind in choices.items())]  # noqa: UP007
