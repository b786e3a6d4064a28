"""From sorted runs to the lines of a trace: small runs joined, one time window after the other put together and formatted."""
