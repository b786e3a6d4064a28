"""The command ``nsys2prv``; ``python -m nsys2prv`` is the same."""

import sys

from nsys2prv._util import errors


def main() -> int:
    """Run the command; returns the exit status."""
    errors.end_on_signal()
    from nsys2prv import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
