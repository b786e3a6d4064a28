"""Mutations of a file's bytes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def flip_bits(random: Random, data: bytearray) -> None:
    for _ in range(random.choice((1, 1, 4, 40))):
        data[random.randrange(len(data))] = random.randrange(256)


def damage_head(random: Random, data: bytearray) -> None:
    """Damage the first bytes, where a database says what it is."""
    place = random.randrange(min(len(data), 110))
    data[place] = random.choice((0, 1, 2, 3, 255, random.randrange(256)))


def _find_page(random: Random, data: bytearray) -> tuple[int, int]:
    size = random.choice((512, 1024, 4096))
    first = random.randrange(max(1, len(data) // size)) * size
    return first, min(first + size, len(data))


def zero_page(random: Random, data: bytearray) -> None:
    first, last = _find_page(random, data)
    data[first:last] = bytes(last - first)


def add_noise(random: Random, data: bytearray) -> None:
    first, last = _find_page(random, data)
    data[first:last] = random.randbytes(last - first)


def move_page(random: Random, data: bytearray) -> None:
    """Put a page in the place of another."""
    first, last = _find_page(random, data)
    other = random.randrange(max(1, len(data) - (last - first)))
    data[first:last] = data[other : other + last - first]


def damage_page_head(random: Random, data: bytearray) -> None:
    """Damage counts and places of the cells of a page."""
    first, last = _find_page(random, data)
    for _ in range(3):
        data[min(first + random.randrange(40), last - 1)] = random.randrange(256)


def truncate(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data)) :]


def lengthen(random: Random, data: bytearray) -> None:
    data += random.randbytes(random.choice((1, 100, 5000)))


MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (
    flip_bits,
    flip_bits,
    damage_head,
    zero_page,
    add_noise,
    move_page,
    damage_page_head,
    truncate,
    lengthen,
)
