"""Test MPI communicators from rows of Nsight Systems 2023.4, which list no members: these follow
from the rows of all ranks together.
"""

from collections.abc import Sequence

from nsys2prv.export.communicators import NOT_REPORTED, Communicator, name_communicators

WORLD, ROW, FIRST, SECOND = 100, 200, 300, 400


def make_world(rank: int, size: int = 4) -> Communicator:
    return Communicator(rank, 10, WORLD + rank, local_rank=rank, size=size)


def make_split(
    rank: int, place: int, root: tuple[int, int], handle: int = ROW, parent: int = WORLD, size=2
) -> Communicator:
    return Communicator(rank, 20, handle + rank, parent + rank, place, size, root)


def make_duplicate(rank: int, time: int, handle: int, parent: int = WORLD) -> Communicator:
    return Communicator(rank, time, handle + rank, parent + rank)


def name_rows(*reports: Sequence[Communicator]) -> list[list[tuple[str, list[int] | None]]]:
    """Return name and members of every row."""
    found = name_communicators(reports)
    assert all((row.key != 0) == (row.name != "") for rows in found for row in rows)
    return [
        [(row.name, None if row.members is None else list(row.members)) for row in rows]
        for rows in found
    ]


def test_members_follow_from_the_rows_of_all_ranks() -> None:
    """World by its size, splits by root and place, duplicates by their parents' members."""
    roots = {0: (3, 0), 3: (3, 0), 1: (1, 4), 2: (1, 4)}
    places = {3: 0, 0: 1, 1: 0, 2: 1}
    named = name_rows(
        *(
            [
                make_world(rank),
                make_split(rank, places[rank], roots[rank]),
                make_duplicate(rank, 30, FIRST, ROW),
                make_duplicate(rank, 40, SECOND, FIRST),
            ]
            for rank in range(4)
        )
    )
    for rank, rows in enumerate(named):
        root = roots[rank]
        members = [3, 0] if rank in (0, 3) else [1, 2]
        text = "ranks 3,0" if rank in (0, 3) else "ranks 1-2"
        assert rows == [
            ("MPI_COMM_WORLD", [0, 1, 2, 3]),
            (f"{text} #{root[0]}.{root[1]}", members),
            (f"{text} #1 of #{root[0]}.{root[1]}", members),
            (f"{text} #1 of #1 of #{root[0]}.{root[1]}", members),
        ]


def test_a_root_numbers_its_communicators_whatever_their_parent() -> None:
    """Also communicators of one rank, which are not MPI_COMM_SELF: that has no parent."""
    alone = Communicator(1, 30, 7, WORLD + 1, 0, 1, (1, 3))
    own = Communicator(1, 11, 8, None, 0, 1)
    assert name_rows([make_world(1), own, alone]) == [
        [("MPI_COMM_WORLD", [0, 1, 2, 3]), ("MPI_COMM_SELF", [1]), ("ranks 1 #1.3", [1])]
    ]


def test_duplicates_are_told_apart_by_their_order_unless_ranks_have_seen_others() -> None:
    def make_rank(rank: int, *times: int) -> list[Communicator]:
        handles = (FIRST, SECOND) if rank else (SECOND, FIRST)
        return [
            make_world(rank, 2),
            *(make_duplicate(rank, *of) for of in zip(times, handles, strict=False)),
        ]

    first, second = ("ranks 0-1 #1 of MPI_COMM_WORLD", "ranks 0-1 #2 of MPI_COMM_WORLD")
    named = name_rows(make_rank(0, 20, 30), make_rank(1, 25, 35))
    assert [[name for name, _ in rows[1:]] for rows in named] == [[first, second]] * 2
    named = name_rows(make_rank(0, 20, 30), make_rank(1, 35))
    assert [rows[1:] for rows in named] == [[("", None)] * 2, [("", None)]]


def test_members_without_a_report_are_not_guessed() -> None:
    named = name_rows([make_world(2), make_split(2, 1, (0, 5), size=3)])
    assert named[0][1] == ("ranks 2 of 3 #0.5", [NOT_REPORTED, 2, NOT_REPORTED])


def test_rows_that_contradict_each_other_name_nothing() -> None:
    """Two ranks at one place, a place outside, and a parent that no row has."""
    same = [[make_world(rank), make_split(rank, 0, (0, 0))] for rank in (0, 1)]
    assert [rows[1] for rows in name_rows(*same)] == [("", None)] * 2
    assert name_rows([make_split(1, 2, (0, 0))]) == [[("", None)]]
    assert name_rows([make_duplicate(1, 30, FIRST, SECOND)]) == [[("", None)]]


def test_lists_of_members_hold_for_reports_without_them() -> None:
    listed = Communicator(0, 20, ROW, WORLD, 0, 2, (0, 1), members=(0, 2))
    bare = Communicator(2, 20, ROW, WORLD, 1, 2, (0, 1))
    named = name_communicators([[make_world(0), listed], [make_world(2), bare]])
    assert named[0][1].key == named[1][1].key
    assert named[1][1].members == (0, 2)


def test_with_teams_per_rank_lists_alone_name_communicators() -> None:
    """As with NSYS_MPI_STORE_TEAMS_PER_RANK: lists of members, but of the world, and no roots."""

    def make_rank(rank: int) -> list[Communicator]:
        members = (1, 0) if rank < 2 else (3, 2)
        pair = Communicator(rank, 20, ROW, WORLD + rank, members.index(rank), 2, members=members)
        return [make_world(rank), pair, Communicator(rank, 30, FIRST, ROW)]

    named = name_rows(*map(make_rank, range(4)))
    for rank, rows in enumerate(named):
        name = f"ranks {'1,0' if rank < 2 else '3,2'}"
        members = [1, 0] if rank < 2 else [3, 2]
        assert rows[1:] == [
            (f"{name} #1 of MPI_COMM_WORLD", members),
            (f"{name} #1 of {name} #1 of MPI_COMM_WORLD", members),
        ]
