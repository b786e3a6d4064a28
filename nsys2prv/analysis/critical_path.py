"""For whom ranks wait: persistent stragglers, slow hosts and links, and single events.

A rank that is late makes the others wait, and those who wait for it may be late elsewhere because
of that. So what counts is not who is last at a collective but who waits least: per segment of the
job (from one collective of all ranks to the next, else an iteration) the exposed wait of each rank.
The culprits wait least, by a gap from all others. What would be gained without them is how much
longer the middle one of the others waits: who is next to wait least differs from segment to
segment, and what one of them loses in one segment is made up for in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import comb, erfc, log, log1p

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv._util.columns import ABSENT
from nsys2prv.analysis.result import Analysis, Context, Finding, Result
from nsys2prv.analysis.unit import Steady, Unit, label_values
from nsys2prv.relations.path_search import COMPUTATION, GRAPH, MEMORY, NCCL

#: A collective with this share of the ranks ends a segment; so many of them are needed, else
#: iterations are segments.
ALL_RANKS, LEAST_SEGMENTS = 0.9, 5
#: Segments of equal length where there are neither.
EQUAL_SEGMENTS = 40
#: A persistent culprit costs this share of the time, and of few ranks, which differ by more without
#: a cause, so much more divided by their number; is last so often that chance has less than this
#: probability, ...
LEAST_SHARE, LEAST_OF_FEW, CHANCE = 0.02, 0.12, 0.005
#: ... and is as far from the others as they are from each other, times this.
APART = 1.0
#: A single event costs this share of the time, and is so long that one of all segments has it by
#: chance with less than this probability. Noise is taken for exponential; half of all segments, and
#: this share of them, tell how great it is.
LEAST_EVENT, EVENT_CHANCE, OFTEN = 0.005, 0.003, 0.8
#: A part of the ranks that are late is what the others of them waited for, if for this share of the
#: time.
NARROWER = 0.5
#: So many single events are told apart; more of the same ranks are one finding.
MOST_EVENTS = 3


class Segments(Struct, frozen=True):
    """The exposed waits of each rank, segment by segment (see above)."""

    # the tasks, ascending
    tasks: np.ndarray
    # ns (segments, tasks)
    waits: np.ndarray
    # when the last rank had arrived, or the segment ended (ns, ascending)
    ends: np.ndarray
    # how often each task was last at a collective, and at how many it was (tasks)
    last: np.ndarray
    #: Number of collectives in each segment.
    collectives: np.ndarray


class Culprits(Struct, frozen=True):
    """Ranks for which the others wait."""

    # tasks, the worst first
    tasks: list[int]
    # ns gained at most without them
    cost: int
    # segments in which one of them was the last, and of how many
    last: int
    #: Number of segments.
    segments: int
    # the probability that it is chance
    chance: float
    # ns that the others wait longer than they do, in the median segment
    lateness: float


class Event(Struct):
    """Ranks that were held up now and then."""

    #: The ranks.
    tasks: list[int]
    # when (ns), and for how long (ns)
    times: list[int] = field(default_factory=list)
    #: How long each event took (ns).
    lengths: list[int] = field(default_factory=list)

    @property
    def cost(self) -> int:
        return sum(self.lengths)


def find_segments(
    records: pl.DataFrame, others: pl.DataFrame, steady: Steady | None, span: tuple[int, int]
) -> Segments:
    """Return the exposed waits of each rank, segment by segment. records, others: as device_time
    collects them; others as add_waits returns them.
    """
    tasks = np.unique(
        np.concatenate([frame["task"].to_numpy() for frame in (records, others) if frame.height])
    )
    ends = _choose_segment_ends(records, len(tasks), steady, span)
    waits = np.zeros((len(ends) + 1, len(tasks)))
    for frame, when in ((records, "ready"), (others, "when")):
        if frame.height:
            at = (
                np.searchsorted(ends, frame[when].to_numpy(), "left"),
                np.searchsorted(tasks, frame["task"].to_numpy()),
            )
            np.add.at(waits, at, frame["exposed_wait"].to_numpy())
    last, collectives = np.zeros(len(tasks), np.int64), np.zeros(len(tasks), np.int64)
    if records.height:
        latest = (pl.col("late") == pl.col("late").max().over("collective")) & (
            pl.col("late").max().over("collective") > 0
        )
        counted = (
            records.with_columns(latest=latest)
            .group_by("task")
            .agg(pl.col("latest").sum(), pl.len())
        )
        at = np.searchsorted(tasks, counted["task"].to_numpy())
        last[at], collectives[at] = counted["latest"].to_numpy(), counted["len"].to_numpy()
    # What is after the last end is no whole segment.
    return Segments(tasks, waits[:-1], ends, last, collectives)


def _choose_segment_ends(
    records: pl.DataFrame, count: int, steady: Steady | None, span: tuple[int, int]
) -> np.ndarray:
    if records.height:
        whole = records.group_by("collective").agg(
            ranks=pl.col("task").n_unique(), ready=pl.col("ready").max()
        )
        ends = np.unique(whole.filter(pl.col("ranks") >= ALL_RANKS * count)["ready"].to_numpy())
        if len(ends) >= LEAST_SEGMENTS:
            return ends
    if steady and steady.count >= LEAST_SEGMENTS:
        return np.append(np.array(steady.iteration_begins[1:], np.int64), steady.end)
    return np.linspace(*span, EQUAL_SEGMENTS + 1)[1:].astype(np.int64)


def find_culprits(segments: Segments, length: int) -> tuple[Culprits | None, list[Event]]:
    """Return the persistent culprits, None where there are none, and single events, the most costly
    first. length: of the time (ns).
    """
    waits = segments.waits
    if waits.shape[1] < 2 or not len(waits):
        return None, []
    gain, group = _find_largest_gaps(waits)
    rare = _mask_rare(gain, length)
    culprits = _find_persistent(segments, ~rare, length)
    usual = float(np.median(gain[~rare])) if (~rare).any() else 0.0
    events: dict[tuple[int, ...], Event] = {}
    for number in np.flatnonzero(rare)[np.argsort(-gain[rare], kind="stable")].tolist():
        late_ranks = _find_first_late(segments, number, float(gain[number]), group[number])
        tasks = segments.tasks[late_ranks].tolist()
        event = events.setdefault(tuple(tasks), Event(tasks))
        event.times.append(int(segments.ends[number] - gain[number]))
        event.lengths.append(int(gain[number] - usual))
    return culprits, sorted(events.values(), key=lambda event: -event.cost)[:MOST_EVENTS]


def _find_first_late(segments: Segments, number: int, gain: float, group: np.ndarray) -> np.ndarray:
    """Return those of a group of ranks (indices) for which the others of it waited before they all
    were late in a segment, by `gain` ns; the whole group where that cannot be told.
    """
    since = int(np.searchsorted(segments.ends, segments.ends[number] - gain, "right"))
    waits = segments.waits[since : number + 1].sum(axis=0)
    gaps, (first,) = _find_largest_gaps(waits[None, :])
    narrower = len(first) < len(group) and np.isin(first, group).all()
    return first if narrower and gaps[0] >= NARROWER * gain else group


def _find_largest_gaps(waits: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return per segment the largest gap between those that wait least, at most half of all, and
    the others (ns), and the indices of those.
    """
    order = np.argsort(waits, axis=1, kind="stable")
    ordered = np.take_along_axis(waits, order, axis=1)
    gaps = np.diff(ordered[:, : waits.shape[1] // 2 + 1], axis=1)
    place = np.argmax(gaps, axis=1)
    return gaps[np.arange(len(waits)), place], [
        order[number, : at + 1] for number, at in enumerate(place.tolist())
    ]


def _mask_rare(gain: np.ndarray, length: int) -> np.ndarray:
    """Return which segments are single events."""
    if len(gain) < LEAST_SEGMENTS:
        return np.zeros(len(gain), bool)
    # Where few segments have any wait, the usual ones among those.
    positive = gain[gain > 0] if (gain > 0).any() else np.zeros(1)
    noise = max(
        float(np.quantile(positive, share, method="lower")) / -log1p(-share)
        for share in (0.5, OFTEN)
    )
    return (gain >= LEAST_EVENT * length) & (gain >= noise * log(len(gain) / EVENT_CHANCE))


def _find_persistent(segments: Segments, usual: np.ndarray, length: int) -> Culprits | None:
    waits = segments.waits[usual]
    # Collectives that are hidden behind computation tell nothing of who is slow.
    waits = waits[np.ptp(waits, axis=1) > 0]
    count = waits.shape[1]
    if len(waits) < LEAST_SEGMENTS:
        return None
    total = waits.sum(axis=0)
    order = np.argsort(total, kind="stable")
    ordered = total[order]
    gaps = np.diff(ordered[: count // 2 + 1])
    size = int(np.argmax(gaps)) + 1
    latest, rest = order[:size], order[size:]
    # What is certain: how much longer even the first of the others waits.
    gap = waits[:, rest].min(axis=1) - waits[:, latest].min(axis=1)
    last = int(np.isin(np.argmin(waits, axis=1), latest).sum())
    # By how often they are the last, or by how much they wait less; each of the ranks could have
    # been the one.
    differences = waits[:, rest].mean(axis=1) - waits[:, latest].mean(axis=1)
    chance = min(
        1.0,
        count
        * min(
            compute_binomial_tail(last, len(waits), size / count), compute_mean_chance(differences)
        ),
    )
    # The ends of the others' range are ranks that are themselves odd, or wait for one of the
    # culprits only: its middle counts.
    spread = float(np.subtract(*np.quantile(ordered[size:], (0.9, 0.1)))) if len(rest) > 1 else 0.0
    if (
        np.clip(gap, 0, None).sum() < (LEAST_SHARE + LEAST_OF_FEW / count) * length
        or chance > CHANCE
        or gaps[size - 1] < APART * spread
    ):
        return None
    longer = np.median(waits[:, rest], axis=1) - waits[:, latest].min(axis=1)
    return Culprits(
        segments.tasks[latest].tolist(),
        int(np.clip(longer, 0, None).sum()),
        last,
        len(waits),
        chance,
        float(np.median(longer)),
    )


def compute_mean_chance(values: np.ndarray) -> float:
    """Return the probability that values of mean 0 have so great a mean: Student's t, in the normal
    approximation of its tail.
    """
    spread = float(values.std(ddof=1))
    if spread == 0:
        return 1.0
    freedom, t = len(values) - 1, float(values.mean()) / (spread / len(values) ** 0.5)
    return 1.0 if t <= 0 else 0.5 * erfc((freedom * log1p(t * t / freedom) / 2) ** 0.5)


def compute_binomial_tail(least: int, count: int, probability: float) -> float:
    """Return the probability of so many hits or more."""
    if probability >= 1 or least <= 0:
        return 1.0
    if count > 1000:
        # Far beyond what needs exact figures.
        mean, deviation = count * probability, (count * probability * (1 - probability)) ** 0.5
        return float(np.exp(-0.5 * max(0.0, (least - mean) / deviation) ** 2))
    return min(
        1.0,
        sum(
            comb(count, hits) * probability**hits * (1 - probability) ** (count - hits)
            for hits in range(least, count + 1)
        ),
    )


LAYOUT = "critical_path"
#: On these the path is on a device that works.
WORKING = (COMPUTATION, NCCL, MEMORY, GRAPH)
#: Columns of the table of ranks -> the causes that they add up.
PARTS = {
    "kernels_ns": (COMPUTATION, GRAPH),
    "nccl_ns": (NCCL,),
    "memory_ns": (MEMORY,),
}
#: What the tables show.
ABOUT = """The critical path: the one chain of work and waiting, from the begin of the job to its end over
all ranks, that explains how long it took. Its pieces add up to the duration. Only what is on it
makes the job shorter when it gets faster; what is beside it has slack. Where two chains take
equally long, one of them is it: among balanced ranks it says little which of them has more of it.
`steady_ns` and `steady_share` are of the steady state alone, where there is one: the finding is of
it, as all findings are.
"""
TITLES = {
    "causes": "The critical path by cause",
    "ranks": "The critical path by rank",
    "classes": "Kernels on the critical path by class",
    "by_kernel": "Kernels on the critical path",
}
#: So many ranks, classes and causes stand in the evidence.
MOST = 3


def collect(unit: Unit) -> Iterator[tuple[str, pl.DataFrame]]:
    pieces = unit.read_begins(LAYOUT, ("cause", "class"))
    work = unit.work.select(pl.col("thread").cast(pl.Int64), "end", pl.col("name").cast(pl.Int64))
    # An operation is on the path to its end; of a collective not from its begin on.
    pieces = pieces.join(
        work.unique(["thread", "end"], keep="first"),
        on=["thread", "end"],
        how="left",
        maintain_order="left",
    ).with_columns(
        unit.list_tasks(pieces),
        name=pl.when(pl.col("cause").is_in([COMPUTATION, NCCL])).then("name"),
    )
    begin, end = unit.options.get_steady_span(unit.duration)
    steady = (pl.col("end").clip(begin, end) - pl.col("begin").clip(begin, end)).sum()
    keys = ("task", "cause", "class", "name")
    sums = pieces.group_by(keys, maintain_order=True).agg(
        pieces=pl.len().cast(pl.Int64),
        time_ns=(pl.col("end") - pl.col("begin")).sum(),
        steady_ns=steady,
    )
    yield "pieces", sums


def conclude(unit_frames: Mapping[str, pl.DataFrame], context: Context, result: Result) -> None:
    pieces, steady = unit_frames["pieces"], context.options.steady is not None
    # Shares of the job's time, whatever part of it a rank, a class or a kernel has.
    whole = {name: max(int(pieces[name].sum()), 1) for name in ("time_ns", "steady_ns")}
    causes = _label_shares(pieces, whole, "cause", "critical_path")
    classes = _label_shares(
        pieces.filter(pl.col("class") != ABSENT), whole, "class", "kernel_class"
    )
    kernels = _sum_shares(pieces.filter(pl.col("name").is_not_null()), whole, "name")
    sets = [name for name in ("kernels", "nccl_kernels") if name in context.labels]
    by_kernel = context.label_names(kernels, "name", *sets).rename({"name": "kernel"})
    parts = pieces.group_by("task", maintain_order=True).agg(
        pl.col("time_ns").filter(pl.col("cause").is_in(list(columns))).sum().alias(name)
        for name, columns in PARTS.items()
    )
    by_rank = (
        _sum_shares(pieces, whole, "task")
        .drop("pieces")
        .join(parts, on="task", maintain_order="left")
    )
    by_rank = by_rank.with_columns(other_ns=pl.col("time_ns") - pl.sum_horizontal(*PARTS))
    by_rank = context.name_tasks(by_rank)
    frames = {"causes": causes, "ranks": by_rank, "classes": classes, "by_kernel": by_kernel}
    waiting = pieces.filter(~pl.col("cause").is_in(list(WORKING)))
    shares = {name: waiting[name].sum() / whole[name] for name in whole}
    if pieces.height:
        result.findings.append(_make_finding(shares, frames, steady))
    for name, frame in frames.items():
        if frame.height:
            shown = frame if steady else frame.drop("steady_ns", "steady_share")
            result.add(name, TITLES[name], shown, ABOUT if name == "causes" else "")


def _sum_shares(pieces: pl.DataFrame, whole: Mapping[str, int], key: str) -> pl.DataFrame:
    """Return pieces and their time by a column, and as a share of the whole path (ns); and of the
    path in the steady state.
    """
    return (
        pieces.group_by(key, maintain_order=True)
        .agg(pl.col("pieces", "time_ns", "steady_ns").sum())
        .sort("time_ns", key, descending=[True, False])
        .select(
            key,
            "pieces",
            "time_ns",
            (pl.col("time_ns") / whole["time_ns"]).alias("share"),
            "steady_ns",
            (pl.col("steady_ns") / whole["steady_ns"]).alias("steady_share"),
        )
    )


def _label_shares(
    pieces: pl.DataFrame, whole: Mapping[str, int], key: str, values: str
) -> pl.DataFrame:
    """Return what :func:`_sum_shares` does, with labels in the place of the values of a closed set."""
    return _sum_shares(pieces, whole, key).with_columns(label_values(key, values, "unknown"))


def _make_finding(
    waiting: Mapping[str, float], frames: Mapping[str, pl.DataFrame], steady: bool
) -> Finding:
    """Return the finding of the steady state, or of the job that has none. waiting: the share of
    the path on which no device works.
    """
    evidence = []
    for phrase, table, column in (
        ("most of the path", "causes", "cause"),
        ("it is on", "ranks", "rank"),
        ("kernels on it", "classes", "class"),
    ):
        most = frames[table].sort("steady_share", descending=True, maintain_order=True).head(MOST)
        shares = [
            f"{name} {share:.1%}" for name, share in most.select(column, "steady_share").rows()
        ]
        evidence += [f"{phrase}: {', '.join(shares)}"] if shares else []
    share = waiting["steady_ns"]
    if steady:
        evidence.append(f"in the whole job, with start-up and shutdown: {waiting['time_ns']:.1%}")
    return Finding(
        "critical_path",
        f"On the critical path {'of the steady state ' if steady else ''}no device works for {share:.1%} of the time.",
        share,
        (),
        (),
        tuple(evidence),
        "shorten what takes most of the path; what is not on it has slack",
        ("critical_path", "critical_path_time_2dh"),
    )


ANALYSIS = Analysis(
    "critical_path",
    "Critical path",
    (
        "the job's time along its critical path ([below](#the-critical-path)); only with `--only "
        "critical_path`"
    ),
    ((LAYOUT,),),
    collect,
    conclude,
)
