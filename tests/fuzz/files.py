"""Mutate the bytes of a file."""

from collections.abc import Callable
from random import Random


def flip_bits(random: Random, data: bytearray) -> None:
    for _ in range(random.choice((1, 1, 4, 40))):
        data[random.randrange(len(data))] = random.randrange(256)


def add_noise(random: Random, data: bytearray) -> None:
    first = random.randrange(len(data))
    last = min(first + 1000, len(data))
    data[first:last] = random.choice((bytes, random.randbytes))(last - first)


def truncate(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data)) :]


def lengthen(random: Random, data: bytearray) -> None:
    data += random.randbytes(random.choice((1, 100, 5000)))


MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (
    flip_bits,
    flip_bits,
    add_noise,
    truncate,
    lengthen,
)
