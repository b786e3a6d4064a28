"""``python -m nsys2prv`` is the command ``nsys2prv``."""

import sys

from nsys2prv.cli import main

if __name__ == "__main__":
    sys.exit(main())
