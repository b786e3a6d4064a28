"""Run the command ``nsys2prv``, also as ``python -m nsys2prv``."""

import os
import sys
import warnings

from nsys2prv._util import errors


def main() -> int:
    """Run the command line and return its exit status."""
    errors.end_on_signal()
    # Python's warnings are useless to users, including those of workers.
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    from nsys2prv import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
