"""Writers of traces, one folder or module a format."""
