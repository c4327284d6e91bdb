"""`python -m bidplane`: the same as the command `bidplane`."""

from bidplane.cli import main

main()
