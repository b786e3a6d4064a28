"""The command ``nsys2prv``; ``python -m nsys2prv`` is the same."""

import os
import sys
import warnings

from nsys2prv._util import errors


def main() -> int:
    """Run the command; return the exit status."""
    errors.end_on_signal()
    # Python's warnings are useless to users, including those of workers.
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    from nsys2prv import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
