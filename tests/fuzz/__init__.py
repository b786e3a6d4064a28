"""Try thousands of damaged and hostile inputs: mutations of small exports, and an oracle that knows
the permitted outcomes.

``python -m tests.fuzz --minutes N`` from the root of the checkout runs for a while. ``pytest -m
fuzz`` runs a fixed number, and damages pages of databases.
"""
