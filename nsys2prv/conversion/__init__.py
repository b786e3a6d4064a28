"""From reports to a trace: read, align, relate, cut, write, and tell what was done."""
