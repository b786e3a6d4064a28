"""Test sends and receives of NCCL on communicators created before the capture."""

import polars as pl

from nsys2prv.match.nccl_messages import guess_ranks

#: Tasks of a chain, with the greatest and the least of the ranks that each exchanges messages with.
CHAIN = {2: (1, 1), 5: (2, 0), 6: (3, 1), 9: (2, 2)}


def list_guesses(*rows: tuple[int, int, int, int, int]) -> dict[tuple[int, int], int]:
    """Return the rank that is taken for each task. rows: of all its members, by communicator."""
    columns = ("communicator", "task", "peer", "least", "rank")
    members = pl.DataFrame(list(rows), schema=columns, orient="row").with_columns(ranks=-1)
    return {(of, task): rank for of, task, rank in guess_ranks(members).rows()}


def test_ranks_follow_those_of_the_job_where_all_members_send_or_receive() -> None:
    chain = [(7, task, most, least, -1) for task, (most, least) in CHAIN.items()]
    lacking = [(8, *row[1:]) for row in chain[1:]]
    known = [(9, *row[1:4], row[1]) for row in chain]
    # Somebody would send to itself.
    turned = [(10, 2, 0, 0, -1), (10, 5, 1, 1, -1)]
    # Some reports have seen how it was made.
    begun = [(11, *row[1:4], number if number > 1 else -1) for number, row in enumerate(chain)]
    found = list_guesses(*chain, *lacking, *known, *turned, *begun)
    assert found == {(of, task): rank for of in (7, 11) for rank, task in enumerate(CHAIN)}
