"""Checking a Paraver trace, whoever wrote it: what would crash, hang or mislead Paraver. No Nsight."""

from nsys2prv.check.findings import Finding
from nsys2prv.check.result import Contents, Result, check
from nsys2prv.check.rules import RULES, Rule, Severity

__all__ = ["RULES", "Contents", "Finding", "Result", "Rule", "Severity", "check"]
