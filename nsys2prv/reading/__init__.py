"""From exports to sorted runs: reports looked at, read in parts by all kinds of events, and what follows from a report as a whole."""
