"""States of the trace's rows, derived from the events on them: which of the open ranges tells, and since when."""
