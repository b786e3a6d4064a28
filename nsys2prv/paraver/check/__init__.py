"""Checking a Paraver trace, whoever wrote it: what would crash, hang or mislead Paraver. No Nsight."""

from nsys2prv.paraver.check.findings import RULES, Finding, Rule, Severity
from nsys2prv.paraver.check.result import Contents, Result, check

__all__ = ["RULES", "Contents", "Finding", "Result", "Rule", "Severity", "check"]
