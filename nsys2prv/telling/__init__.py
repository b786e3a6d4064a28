"""What people are told of a conversion: the summary, the account of all rows, the file beside the trace, what Paraver will need."""
