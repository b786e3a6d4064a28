"""What belongs to the command line alone; :mod:`nsys2prv.cli` is where it begins."""
