"""The command line: parses, then calls one library function per verb."""

import errno
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import Any, NoReturn

from vhydro.interrupts import interruptible, stop
from vhydro.printable import printable_lines
from vhydro.progress import on_terminal, quiet, tell
from vhydro.report.files import plain, version
from vhydro.usage import UsageError, did_you_mean

FAILED, MISUSED, UNREAD = 1, 2, 141  # the last: as of a process that wrote where nobody reads
TRACEBACK = "VHYDRO_TRACEBACK"  # environment variable: a fault of the program is shown whole

# Every verb: what it does, its module, its configuration and its function. A module is imported when its verb
# is used, so that help comes at once.
VERBS = {
    "demo": (
        "A tour: robot logs to a page, a puck to its law.",
        "vhydro.demo",
        "DemoConfig",
        "run_demo",
    ),
    "fit": ("Fit a model to logs, without labels, and keep it.", "vhydro.commands.fit", "FitCommand", "run_fit"),
    "filter": (
        "Filter logs: intervals, mode probabilities, certificates.",
        "vhydro.commands.filter",
        "FilterCommand",
        "run_filter",
    ),
    "segment": (
        "Cut logs into segments of one mode each.",
        "vhydro.commands.segment",
        "SegmentCommand",
        "run_segment",
    ),
    "laws find": (
        "Find the law of every mode of logs of positions and forces, and print it.",
        "vhydro.commands.find",
        "FindCommand",
        "run_find",
    ),
    "laws": (
        "Print the law of every mode of logs.",
        "vhydro.commands.laws",
        "LawsCommand",
        "run_laws",
    ),
    "plan": (
        "Plan from where a log ends, and prove how likely it fails.",
        "vhydro.commands.plan",
        "PlanCommand",
        "run_plan",
    ),
    "report": (
        "Write the page of a run again from its files.",
        "vhydro.commands.report",
        "ReportCommand",
        "run_report",
    ),
    "view": (
        "Show a run in Rerun's viewer.",
        "vhydro.commands.view",
        "ViewCommand",
        "run_view",
    ),
    "audit laws": (
        "Recover the laws of four systems whose equations are known, beside ablations and peers.",
        "vhydro_audits.laws",
        "LawsAuditConfig",
        "run_laws_audit",
    ),
    "audit support": (
        "Filter robot logs in the dark: ESS, variance, calibration and lost branches, beside the paper's.",
        "vhydro_audits.support",
        "SupportAuditConfig",
        "run_support_audit",
    ),
    "audit modes": (
        "Find contact modes without labels and score them against a proxy and contact truth, beside peers.",
        "vhydro_audits.modes",
        "ModesAuditConfig",
        "run_modes_audit",
    ),
    "audit planning": (
        "Certify plans on recovered laws of known systems, and execute them in the true ones.",
        "vhydro_audits.planning",
        "PlanningAuditConfig",
        "run_planning_audit",
    ),
    "audit page": (
        "Write the page of an audit again from its result files.",
        "vhydro_audits.pages.command",
        "PageCommand",
        "run_page",
    ),
    "data inspect": (
        "Show what a log holds, and what every view would need of it.",
        "vhydro.commands.inspect",
        "InspectConfig",
        "run_inspect",
    ),
    "data convert": (
        "Write a log of any known format as npz or LeRobot.",
        "vhydro.commands.convert",
        "ConvertConfig",
        "run_convert",
    ),
    "collect maniskill": (
        "Record demonstrations in ManiSkill, with contact forces.",
        "vhydro_audits.collect.maniskill",
        "ManiSkillConfig",
        "collect_maniskill",
    ),
    "collect sawyer": (
        "Record demonstrations of the Sawyer and bridge families in MuJoCo, with contact forces.",
        "vhydro_audits.collect.sawyer",
        "SawyerConfig",
        "collect_sawyer",
    ),
    "completion": (
        "Print what completes `vhydro` in a shell.",
        "vhydro.completion",
        "CompletionCommand",
        "run_completion",
    ),
}
ABOUT = "Support-safe filtering of contact dynamics, contact segments and readable laws, from robot logs."
AFTER = """`vhydro VERB --help` shows the options of a verb, `vhydro --version` the version.

Exit status:
  0    it is done
  1    it failed: a file is missing or damaged, the logs do not allow it, the
       disk is full
  2    it was asked for wrongly: the command line cannot be meant, whatever
       the files hold
  130  it was stopped by Ctrl-C; nothing half-written is left

Results go to stdout (with --json as one JSON document), errors and progress
to stderr."""
GROUPS = {
    "audit": "Hold every claim against peers and the paper.",
    "data": "Read, inspect and convert logs.",
    "collect": "Record demonstrations in simulators.",
}
FORMER = {"learn": "fit"}  # verbs of older versions, and what they are now


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb and ends with its status: 1 where it failed, 2 where it was asked for wrongly, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with interruptible(last=arguments is None) as interrupt:
        try:
            _finished(given)
        except BaseException as error:
            # Whatever an interrupt turns into on its way, such as a failed import: it is still an interrupt.
            if interrupt.came or isinstance(error, KeyboardInterrupt):
                stop()
            if isinstance(error, SystemExit):
                raise
            _end(error)
        if interrupt.came:
            stop()


def _finished(given: Sequence[str]) -> None:
    """Runs a verb to its end, its output included: a full disk is told in words, and not when the interpreter goes."""
    try:
        with on_terminal():
            _run(given)
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _end(error: BaseException) -> NoReturn:
    """Ends the process with the error in a line or two, and its status."""
    if isinstance(error, BrokenPipeError) and not _is_read():
        sys.exit(UNREAD)
    told = printable_lines(_told(error))
    _drop_output()
    print(told if told.startswith(("vhydro ", "vhydro: ")) else f"vhydro: {told}", file=sys.stderr)
    sys.exit(MISUSED if isinstance(error, UsageError) else FAILED)


def _is_read() -> bool:
    """Whether anybody still reads the output; if nobody does, it goes nowhere from now on."""
    try:
        sys.stdout.flush()
        waiting = select.poll()
        waiting.register(sys.stdout.fileno(), 0)
        if not waiting.poll(0):
            return True
    except (OSError, ValueError, AttributeError):  # closed, or no file, or a system without polls
        pass
    _drop_output()
    return False


def _drop_output() -> None:
    """What could not be written is not tried again when the interpreter goes."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What to do about what the system says of a file.
REMEDIES = {
    errno.ENOSPC: "Free some space on that disk, or write elsewhere with --out.",
    errno.EDQUOT: "Free some of your quota, or write elsewhere with --out.",
    errno.EFBIG: "Write where larger files are allowed, with --out.",
    errno.EROFS: "Write elsewhere, with --out.",
    errno.EACCES: "Change its permissions, or give a place of your own.",
    errno.EPERM: "Change its permissions, or give a place of your own.",
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path: a part of it is a file.",
    errno.EISDIR: "Give a file.",
    errno.EMFILE: "Allow more open files with `ulimit -n`, or give fewer logs at a time.",
    errno.ENAMETOOLONG: "Give a shorter name.",
}


def _told(error: BaseException) -> str:
    """What a user is told of an error; what this program raises on purpose says it all itself."""
    if isinstance(error, OSError) and error.errno is not None:
        where = error.filename if isinstance(error.filename, str | bytes) else "a file or the output"
        remedy = REMEDIES.get(error.errno, "Check the path and the disk.")
        return f"{os.fsdecode(where)}: {error.strerror or os.strerror(error.errno)}. {remedy}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):  # the second: of an accelerator
        return (
            "memory is full. Give fewer or shorter logs at a time (--episodes 0:20), or --to parquet with --workers 1."
        )
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != "vhydro":
        return f"the package {error.name} is missing; install it: pip install {error.name.partition('.')[0]}."
    if isinstance(error, ValueError | OSError | FloatingPointError) or type(error).__module__.startswith("vhydro"):
        return str(error)
    if "Unable to initialize backend" in str(error):
        return f"{str(error).splitlines()[0]:.300}. Check JAX_PLATFORMS, and that jax is installed for this machine."
    if os.environ.get(TRACEBACK):
        raise error
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"this should not have happened ({words:.300}). Please report it, with what {TRACEBACK}=1 shows of it."


def _run(given: Sequence[str]) -> Any:
    """What the function of a verb returns, after its arguments were parsed."""
    words = list(given) or ["--help"]
    if words in (["--version"], ["-V"]):
        print(f"vhydro {version()}")
        return None
    if words[0] == "help":
        words = [*words[1:], "--help"]
    group = words[0] if words[0] in GROUPS or (len(words) > 1 and " ".join(words[:2]) in VERBS) else ""
    rest = (words[1:] or ["--help"]) if group else words
    if rest[0] in ("-h", "--help"):
        return _help(group)
    verb = f"{group} {rest[0]}".strip()
    if verb not in VERBS:
        raise UsageError(_no_verb(group, rest[0]))
    from vhydro.arguments import parsed

    _, module, configuration, function = VERBS[verb]
    home = import_module(module)
    config = parsed(getattr(home, configuration), verb, rest[1:])
    tell(f"vhydro {verb}")
    work = getattr(home, function)
    return _answered(verb, work, config) if getattr(config, "json", False) else work(config)


def _answered(verb: str, work: Callable[[Any], Any], config: Any) -> Any:
    """What the work returns, after its document was printed on stdout and everything else on stderr."""
    from vhydro.commands import documents

    end = None
    with redirect_stdout(sys.stderr):
        try:
            result = work(config)
        except SystemExit as error:  # it is told what was left out, and the rest is there
            result, end = getattr(error, "result", None), error
    document = getattr(documents, f"{verb.split()[-1]}_document")(config, result)
    quiet()
    print(json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False))
    if end is not None:
        raise end
    return result


def offered(group: str = "") -> dict[str, str]:
    """The words that may follow `vhydro`, or one of its groups, and what each is about."""
    if group:
        return {name.split()[1]: text for name, (text, *_) in VERBS.items() if name.startswith(f"{group} ")}
    return {name.split()[0]: GROUPS.get(name.split()[0], text) for name, (text, *_) in VERBS.items()}


def _no_verb(group: str, word: str) -> str:
    called = f"vhydro {group}".strip()
    if word.startswith("-"):
        return f"{called}: there is no option {word} here; options follow a verb, such as `vhydro fit LOGS --modes 3`."
    if not group and word in FORMER:
        return f"vhydro: there is no verb {word!r} any more. Use `vhydro {FORMER[word]}`."
    elsewhere = [name for name in VERBS if name.split()[-1] == word]
    hint = f"Did you mean `vhydro {elsewhere[0]}`?" if elsewhere else did_you_mean(word, offered(group))
    return f"{called}: there is no verb {word!r}. {hint} `{called} --help` lists them."


def _help(group: str) -> None:
    """Prints what a group, or the whole program, offers."""
    import tyro

    def stub(text: str):
        def unused() -> None: ...

        unused.__doc__ = text
        return unused

    try:
        tyro.extras.subcommand_cli_from_dict(
            {word: stub(text) for word, text in offered(group).items()},
            prog=f"vhydro {group}".strip(),
            description=GROUPS.get(group, ABOUT),
            args=["--help"],
        )
    finally:
        print(AFTER if not group else f"`vhydro {group} VERB --help` shows the options of a verb.")


if __name__ == "__main__":
    main()
