"""Provide values that do not belong where they are put."""

from random import Random

INTEGERS = (
    *(0, 7, 255, 65536, 0xFFFFFF, 10**18, 10**15, -(10**12), -(2**63)),
    *(
        sign * 2**power - low
        for power in (31, 32, 53, 56, 61, 62)
        for sign in (1, -1)
        for low in (0, 1)
    ),
)
OTHERS = (
    None,
    "",
    "text",
    "12",
    "-5",
    "1e3",
    "9" * 40,
    b"",
    b"\xff\x00\xfe",
    b"17",
    0.5,
    -1.5,
    1e300,
    float("inf"),
    float("-inf"),
    "NaN",
    "0x10",
)
TEXTS = (
    "",
    " ",
    "two\nlines",
    "\r\n",
    "tab\there",
    "[brackets]",
    "[]",
    "()",
    "End",
    "VALUES",
    "EVENT_TYPE\n0 9100 x\nVALUES\n1 y",
    "LEVEL THREAD SIZE 99",
    "LEVEL ",
    "#Paraver",
    "c:1:1:2",
    "\x1b[2J\x1b]0;owned\x07",
    "\x07\x08\x7f",
    "a\0b",
    "\u2028x\u2029",
    "\u202etxt",
    "\ufeff",
    "\ufffd",
    "é€😀",
    "e\u0301" * 50,
    "'; DROP TABLE StringIds; --",
    '" OR ""="',
    "1) OR (1=1",
    "%s%n%x",
    "{start}",
    "{0!r}",
    "{",
    "}",
    "$(id)",
    "`id`",
    "../../etc/passwd",
    "/dev/stdin",
    "nan",
    "None",
    "0",
    "-1",
    "x" * 999,
    "y" * 1001,
    "[" + "z" * 1200 + "]",
    "void f<T>(" + "<" * 300,
    "operator()<",
    "std::vector<" * 80,
    "_Z" + "N" * 400,
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(",
    "NCCL",
    "ncclAllReduce",
    "MPI_Send",
    "cudaLaunchKernel_v7000",
    "a,b;c|d",
    "\\",
    '"quoted"',
    "?",
    "*",
    "(no name)",
    "x #2",
    "x",
    b"\xff\xfe\xfd",
    b"ok\xc3",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"a\x00b\xff",
)


def draw_integer(random: Random) -> int:
    return random.choice(
        (random.choice(INTEGERS), random.randrange(-(2**63), 2**63), random.randrange(-1000, 1000))
    )


def draw_anything(random: Random) -> object:
    return random.choice((draw_integer(random), random.choice(OTHERS), random.choice(TEXTS)))


def draw_text(random: Random) -> str | bytes:
    """Return a text, mostly short; one in thousands is of a megabyte."""
    if random.random() < 0.002:
        return random.choice("aé[\n") * 1_000_000
    return random.choice(
        (
            random.choice(TEXTS),
            "".join(chr(random.randrange(1, 0x2FF)) for _ in range(random.randrange(40))),
        )
    )
