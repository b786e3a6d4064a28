"""Test groups of ranks whose communicators no payload names."""

import polars as pl

from nsys2prv.match.groups import CHAIN, COLLECTIVE, Division, _find_rest, _tell_apart

REDUCE, GATHER = 1, 4
COLUMNS = ("thread", "process", "operation", "members")


def test_communicators_in_step_are_told_apart() -> None:
    """Four ranks of two communicators each of two ranks: reductions of 2 and 3 end apart, those of 0 and 1,
    and all that gather, together with others. Reductions of all are on streams of their own.
    """
    groups = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
    met = {0: (0, 1, 2, 3), 1: (0, 1, 2, 3), 2: (0, 2), 3: (1, 3)}
    every = tuple(range(4))
    rows = [(10 + rank, rank, REDUCE, list(members)) for rank, members in met.items()]
    rows += [(10 + rank, rank, GATHER, list(every)) for rank in every]
    rows += [(20 + rank, rank, REDUCE, list(every)) for rank in every]
    rows += [(30 + rank, rank, REDUCE, list(groups[rank])) for rank in every]
    found = _tell_apart(pl.DataFrame(rows, COLUMNS, orient="row"))
    members = {
        (thread, operation): tuple(map(int, text.split(",")))
        for thread, _, operation, text in found.rows()
    }
    for rank in every:
        assert members[20 + rank, REDUCE] == every
        assert members[30 + rank, REDUCE] == groups[rank]
    assert members[12, GATHER] == groups[2]
    rows = [row for row in rows if row[0] < 20]
    found = _tell_apart(pl.DataFrame(rows, COLUMNS, orient="row"))
    assert {*found["members"].unique()} == {"00000000,00000002", "00000001,00000003"}


def test_the_rest_of_a_mesh_is_where_messages_go() -> None:
    every = range(16)
    tensor = Division(COLLECTIVE, tuple((rank, rank + 1) for rank in range(0, 16, 2)), (1,))
    data = Division(COLLECTIVE, tuple((r, r + 2) for r in every if not r & 2), (2,))
    world = Division(COLLECTIVE, (tuple(every),), (3,))
    found = [tensor, data, world]
    (rest,) = _find_rest(found, every, frozenset({(2, 6)}))
    assert (rest.by, rest.is_guessed, rest.groups[1]) == (CHAIN, True, (1, 5, 9, 13))
    # Partners that are known say otherwise, or nothing is left.
    assert not [*_find_rest(found, every, frozenset({(2, 7)}))]
    assert not [*_find_rest([world], every, frozenset())]
