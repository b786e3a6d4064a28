"""Paraver's formats: .prv, .pcf, .row, and in `cfg` its views. No word of Nsight in this room."""
