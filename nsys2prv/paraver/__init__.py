"""The formats of a Paraver trace alone: .prv, .pcf, .row. No word of Nsight in this room."""
