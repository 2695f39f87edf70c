"""`python -m cdfd`."""

from cdfd.cli import main

main()
