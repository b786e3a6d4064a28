"""One timeline from the reports' own clocks: :mod:`~nsys2prv.clock.maps` converts,
:mod:`~nsys2prv.clock.maps` decides.

Pure functions on plain values; no Nsight and no Paraver in this room.
"""
