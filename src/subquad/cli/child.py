"""`python -m subquad.cli.child PARENT COMMAND ...` runs a command that ends when the process with the id PARENT ends."""

import sys

from subquad.cli import main
from subquad.measure.lifeline import end_with

if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
