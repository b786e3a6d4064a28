"""The command line: :func:`nsys2prv.cli.main.main` reads arguments and runs a command."""
