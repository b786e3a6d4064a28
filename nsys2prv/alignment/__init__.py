"""The stage that places a job on one timeline: what ranks did together given to :mod:`nsys2prv.clock`, and what it finds."""
