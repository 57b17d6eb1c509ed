"""`python -m vhydro`: the command line."""

from vhydro.cli import main

if __name__ == "__main__":
    main()
