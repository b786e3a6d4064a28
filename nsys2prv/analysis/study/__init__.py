"""Studies of several runs of one program: what POP calls scalability and efficiencies."""
