"""Checking a Paraver trace, whoever wrote it: what would crash, hang or mislead Paraver. No Nsight."""
