"""`python -m gavel`, the same as the `gavel` command."""

from gavel.cli import main

main()
