"""The command line as a test calls it."""

from vhydro.cli import main


def outcome(arguments, capsys) -> tuple[int, str, str]:
    """Exit status, output and errors of one call."""
    try:
        main(arguments)
        status = 0
    except SystemExit as ending:
        status = int(ending.code or 0)
    shown = capsys.readouterr()
    return status, shown.out, shown.err
