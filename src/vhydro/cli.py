"""The command line: parses, then calls one library function per verb."""

import sys
from collections.abc import Sequence
from importlib import import_module

from vhydro.interrupts import interruptible, stop
from vhydro.printable import printable_lines
from vhydro.report.files import version

# Every verb: what it does, its module, its configuration and its function. A module is imported when its verb
# is used, so that help comes at once.
VERBS = {
    "demo": ("Fit, filter and show a puck that bounces in the dark.", "vhydro.demo", "DemoConfig", "run_demo"),
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
}
ABOUT = "Support-safe filtering of contact dynamics. `vhydro --version` prints the version."
GROUPS = {
    "audit": "Hold every claim against peers and the paper.",
    "data": "Read, inspect and convert logs.",
    "collect": "Record demonstrations in simulators.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb; a mistake of the user's ends it with one line and status 2, an interrupt with status 130."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        print(f"vhydro {version()}")
        return
    with interruptible(last=arguments is None) as interrupt:
        try:
            _run(given or ["--help"])
        except (ValueError, OSError, FloatingPointError) as error:  # the last: a fit that left the numbers
            if interrupt.came:
                stop()
            print(f"vhydro: {printable_lines(str(error))}", file=sys.stderr)
            sys.exit(2)
        except BaseException as error:
            # Whatever an interrupt turns into on its way, such as a failed import: it is still an interrupt.
            if interrupt.came or isinstance(error, KeyboardInterrupt):
                stop()
            raise
        if interrupt.came:
            stop()


def _run(given: list[str]) -> None:
    import tyro

    group = given[0] if given[0] in GROUPS else ""
    words = given[1:] or ["--help"] if group else given
    offered = {name.removeprefix(group).strip(): name for name in VERBS if name.partition(" ")[0] == group} or {
        name.partition(" ")[0]: name for name in VERBS
    }
    verb = offered.get(words[0])
    config = tyro.extras.subcommand_cli_from_dict(
        {word: _configuration(word, name, used=name == verb) for word, name in offered.items()},
        prog=f"vhydro {group}".strip(),
        description=GROUPS.get(group, ABOUT),
        args=words,
    )
    assert verb is not None  # otherwise parsing has ended in help or an error
    _, module, _, function = VERBS[verb]
    getattr(import_module(module), function)(config)


def _configuration(word: str, name: str, *, used: bool):
    """The configuration class of a verb; of one that is not used, only its description."""
    text, module, configuration, _ = VERBS[name]
    if used:
        return getattr(import_module(module), configuration)

    def unused() -> None: ...

    unused.__doc__ = GROUPS.get(word, text)
    return unused


if __name__ == "__main__":
    main()
