"""For whom ranks wait: persistent stragglers, slow hosts and links, and hiccups, and the
findings that name them; waits that are nobody's fault.

A rank that is late makes the others wait, and those who wait for it may be late elsewhere because
of that. So what counts is not who is last at a collective but who waits least: per segment of the
job (from one collective of all ranks to the next, else an iteration) the exposed wait of each rank.
The culprits wait least, by a gap from all others. What would be gained without them is how much
longer the middle one of the others waits: who is next to wait least differs from segment to
segment, and what one of them loses in one segment is made up for in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb, erfc, log, log1p

import numpy as np
import polars as pl
from msgspec import Struct, field

from nsys2prv.analysis.collectives import SlowLink
from nsys2prv.analysis.result import Finding, JobRanks
from nsys2prv.analysis.text import format_nanoseconds
from nsys2prv.analysis.unit import STATES, Steady

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
#: A hiccup costs this share of the time, and is so long that one of all segments has it by
#: chance with less than this probability. Noise is taken for exponential; half of all segments, and
#: this share of them, tell how great it is.
LEAST_HICCUP, HICCUP_CHANCE, OFTEN = 0.005, 0.003, 0.8
#: A part of the ranks that are late is what the others of them waited for, if for this share of the
#: time.
NARROWER = 0.5
#: Of a rank without a GPU further parts of time are told that have this share of the greatest difference.
RELEVANT = 0.2
#: So many hiccups are told apart; more of the same ranks are one finding.
MOST_HICCUPS = 3
#: Waits that are nobody's fault cost this share of the time at least.
LEAST_IMBALANCE = 0.03
VIEWS = ("nccl_late_by_task_2dh", "nccl_wait", "nccl_wait_by_task_2dh")
MPI_VIEWS = ("host_outside_mpi_2dh", "mpi_messages", "mpi_time_2dh")
#: Parts of a device's time that may make its rank late -> what is said of a rank that has more of
#: it.
LATE_BECAUSE = {
    "compute": "its GPU computes longer",
    "transfer": "it moves data longer",
    "memory": "it copies memory longer",
    "idle_unknown": "its GPU is idle while its host computes",
    "idle_launch": "its GPU is idle while its host is in CUDA calls",
    "idle_synchronisation": "its GPU is idle while its host waits in a synchronising call",
    "idle_io": "its GPU is idle while its host is in I/O",
    "idle_mpi": "its GPU is idle while its host is in MPI",
    "idle_nccl": "its GPU is idle while its host is in NCCL calls",
    "host_compute": "it computes longer outside MPI",
    "host_unknown": "it is longer outside MPI, in no recorded call",
    "host_io": "it is longer in file or network I/O",
    "host_os": "it is longer in other calls of the operating system",
    "host_off": "it is longer off the CPU, outside MPI",
}
#: States of hosts, for people.
IN_STATE = {
    "mpi": "in MPI",
    "nccl": "in NCCL calls",
    "io": "in I/O",
    "synchronisation": "waiting for the GPU",
    "launch": "in CUDA calls",
}
ADVICE = {
    "compute": "compare clocks, temperature and power of this GPU with the others', and the amount of work it is given",
    "transfer": "check the links of these ranks (NVLink, PCIe, network), and the NCCL transport that they use",
    "memory": "compare what is copied, from where, and whether that memory is pinned",
    "idle_unknown": "profile this host's CPU: other processes, affinity, clocks, data loading",
    "idle_launch": "look at its CUDA calls: allocation, module loading, many small launches",
    "idle_synchronisation": "find the call that synchronises, and wait later or not at all",
    "idle_io": "look at its file system and network, and load data ahead",
    "idle_mpi": "find which rank it waits for in MPI",
    "idle_nccl": "find out why its NCCL calls take long",
    "host_compute": "compare the work that it is given, and its CPU's clock and memory, with the others'",
    "host_unknown": "record thread states and samples (nsys --cpuctxsw=process-tree --sample=process-tree)",
    "host_io": "look at its file system and network, and read ahead",
    "host_os": "look at which calls these are: locks, sleeping, allocation",
    "host_off": "give it a core of its own, and look for other processes there",
}
#: Share of the intervals between collectives from which on a rank is named though it is not always
#: the last one.
MOSTLY_LAST = 1 / 3


class Segments(Struct, frozen=True):
    """The exposed waits of each rank, segment by segment (see above)."""

    #: The tasks, ascending.
    tasks: np.ndarray
    #: (segments, tasks), ns.
    waits: np.ndarray
    #: When the last rank had arrived, or the segment ended (ns, ascending).
    ends: np.ndarray
    #: How often each task was last at a collective (tasks).
    last: np.ndarray
    #: At how many collectives each task was (tasks).
    collectives: np.ndarray
    #: What is at their ends.
    between: str = "collectives"


class Culprits(Struct, frozen=True):
    """Ranks for which the others wait."""

    #: Tasks, the worst first.
    tasks: list[int]
    #: What is gained at most without them (ns).
    cost: int
    #: Segments in which one of them was the last.
    last: int
    #: Number of segments.
    segments: int
    #: The probability that it is chance.
    chance: float
    #: How much longer the others wait than they do, in the median segment (ns).
    lateness: float


class Hiccup(Struct):
    """Ranks that were held up now and then."""

    #: The tasks.
    tasks: list[int]
    #: When each hiccup began (ns), the longest first.
    times: list[int] = field(default_factory=list)
    #: How much longer than usual the others waited each time (ns).
    lengths: list[int] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """Return the most that is gained without it (ns)."""
        return sum(self.lengths)


def find_segments(
    records: pl.DataFrame, others: pl.DataFrame, steady: Steady | None, span: tuple[int, int]
) -> Segments:
    """Return the exposed waits of each rank, segment by segment. records: as findings
    collects them. others: as add_waits returns them.
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
    last = collectives = np.zeros(len(tasks), np.int64)
    if records.height:
        latest = pl.col("late").max().over("collective")
        is_last = records.select((pl.col("late") == latest) & (latest > 0)).to_series().to_numpy()
        at = np.searchsorted(tasks, records["task"].to_numpy())
        last, collectives = (np.bincount(rows, minlength=len(tasks)) for rows in (at[is_last], at))
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


def find_culprits(segments: Segments, length: int) -> tuple[Culprits | None, list[Hiccup]]:
    """Return the persistent culprits, None where there are none, and hiccups, the most costly
    first. length: of the time (ns).
    """
    waits = segments.waits
    if waits.shape[1] < 2 or not len(waits):
        return None, []
    gain, group = _find_largest_gaps(waits)
    rare = _mask_rare(gain, length)
    culprits = _find_persistent(segments, ~rare, length)
    usual = float(np.median(gain[~rare])) if (~rare).any() else 0.0
    hiccups: dict[tuple[int, ...], Hiccup] = {}
    for number in np.flatnonzero(rare)[np.argsort(-gain[rare], kind="stable")].tolist():
        late_ranks = _find_first_late(segments, number, float(gain[number]), group[number])
        tasks = segments.tasks[late_ranks].tolist()
        hiccup = hiccups.setdefault(tuple(tasks), Hiccup(tasks))
        hiccup.times.append(int(segments.ends[number] - gain[number]))
        hiccup.lengths.append(int(gain[number] - usual))
    return culprits, sorted(hiccups.values(), key=lambda hiccup: -hiccup.cost)[:MOST_HICCUPS]


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
    """Return which segments are hiccups."""
    if len(gain) < LEAST_SEGMENTS:
        return np.zeros(len(gain), bool)
    # Where few segments have any wait, the usual ones among those.
    positive = gain[gain > 0] if (gain > 0).any() else np.zeros(1)
    noise = max(
        float(np.quantile(positive, share, method="lower")) / -log1p(-share)
        for share in (0.5, OFTEN)
    )
    return (gain >= LEAST_HICCUP * length) & (gain >= noise * log(len(gain) / HICCUP_CHANCE))


def _find_persistent(segments: Segments, usual: np.ndarray, length: int) -> Culprits | None:
    waits = segments.waits[usual]
    # Collectives that are hidden behind computation tell nothing of who is slow.
    waits = waits[np.ptp(waits, axis=1) > 0]
    count = waits.shape[1]
    if len(waits) < LEAST_SEGMENTS:
        return None
    total = waits.sum(axis=0)
    (total_gap,), (latest,) = _find_largest_gaps(total[None, :])
    rest = np.argsort(total, kind="stable")[len(latest) :]
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
            compute_binomial_tail(last, len(waits), len(latest) / count),
            compute_mean_chance(differences),
        ),
    )
    # The ends of the others' range are ranks that are themselves odd, or wait for one of the
    # culprits only: its middle counts.
    spread = float(np.subtract(*np.quantile(total[rest], (0.9, 0.1)))) if len(rest) > 1 else 0.0
    if (
        np.clip(gap, 0, None).sum() < (LEAST_SHARE + LEAST_OF_FEW / count) * length
        or chance > CHANCE
        or total_gap < APART * spread
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


def make_culprit_finding(job: JobRanks, segments: Segments, culprits: Culprits) -> Finding:
    """Return the finding of who is persistently the last, and why."""
    tasks, alone = culprits.tasks, len(culprits.tasks) == 1
    who, host = job.describe_ranks(tasks), "" if alone else job.find_host(tasks)
    longer_parts = job.find_longer_parts(tasks, filter(job.devices.columns.count, LATE_BECAUSE))
    if not job.has_gpus:
        # Who computes longer is off the CPU longer too, where there are more threads than cores.
        longer_parts = [
            one
            for one in longer_parts
            if one[1] - one[2] >= RELEVANT * (longer_parts[0][1] - longer_parts[0][2])
        ]
        longer_parts.sort(key=lambda one: one[0] == "host_off")
    part = (
        longer_parts[0][0] if longer_parts else "idle_unknown" if job.has_gpus else "host_unknown"
    )
    kind = "slow_link" if part == "transfer" and not alone else "slow_host" if host else "straggler"
    at = segments.tasks.tolist().index(tasks[0])
    chance = f"{culprits.chance:.0e}" if culprits.chance >= 1e-9 else "less than 1e-9"
    evidence = [
        f"{'last to come' if alone else 'one of them comes last'} in {culprits.last:,} of {culprits.segments:,} intervals "
        f"between {segments.between} (probability by chance: {chance}); the others wait {format_nanoseconds(culprits.lateness)} longer in the median one"
    ]
    if alone and segments.collectives[at]:
        evidence.append(
            f"last at {segments.last[at]:,} of its {segments.collectives[at]:,} collectives"
        )
    evidence += [
        f"{LATE_BECAUSE[name]}: {format_nanoseconds(own_time)}; median of the others: {format_nanoseconds(usual)}"
        for name, own_time, usual in (longer_parts[:1] if job.has_gpus else longer_parts)
    ]
    if host:
        title = f"All ranks of host {host} are late: {who}; the others wait for them"
    else:
        title = f"{who[:1].upper()}{who[1:]} {'is' if alone else 'are'} usually last at collectives; the others wait"
    if longer_parts:
        title += (
            f", because {LATE_BECAUSE[part]}"
            if alone
            else f"; {LATE_BECAUSE[part]}".replace("its ", "their ").replace("it ", "they ")
        )
    return Finding(
        kind,
        f"{title}.",
        culprits.cost / job.length,
        job.list_ranks(tasks),
        job.list_devices(tasks),
        tuple(evidence),
        ADVICE[part],
        VIEWS if job.has_gpus else MPI_VIEWS,
    )


def make_link_finding(job: JobRanks, link: SlowLink) -> Finding:
    """Return a communicator that is slower than its peers."""
    evidence = (
        f"{link.what}: median transfer {format_nanoseconds(link.transfer)}, "
        f"{format_nanoseconds(link.usual)} in the same communicators of other ranks ({link.transfer / link.usual:.1f} x)",
    )
    host = job.find_host(link.tasks)
    where = f"within host {host}" if host else "across hosts"
    return Finding(
        "slow_link",
        f"Communication among {job.describe_ranks(link.tasks)}, {where}, is {link.transfer / link.usual:.1f} x slower than among "
        "its peers.",
        link.cost / job.length,
        job.list_ranks(link.tasks),
        job.list_devices(link.tasks),
        evidence,
        ADVICE["transfer"],
        ("nccl_bw_mbs",),
    )


def make_hiccup_finding(job: JobRanks, hiccup: Hiccup) -> Finding:
    """Return ranks that were held up now and then."""
    times = [
        f"at {format_nanoseconds(time)} for {format_nanoseconds(length)}"
        for time, length in zip(hiccup.times[:3], hiccup.lengths[:3], strict=True)
    ]
    count = len(hiccup.times)
    often = "once" if count == 1 else "twice" if count == 2 else f"{count} times"
    who, alone = job.describe_ranks(hiccup.tasks), len(hiccup.tasks) == 1
    # Of a single one the title has the time.
    when = (
        ""
        if count == 1
        else f"{', '.join(times)}{f' and {count - 3} times more' if count > 3 else ''}; "
    )
    doing = "".join(f"; {text}" for text in _describe_meanwhile(job, hiccup))
    evidence = (
        f"{when}the others waited in {'communication' if job.has_gpus else 'MPI'} meanwhile{doing}",
    )
    places = ("host", "GPU") if job.has_gpus else ("host",)
    where = " and ".join(f"its {place}" if alone else f"their {place}s" for place in places)
    return Finding(
        "hiccup",
        f"{who[:1].upper()}{who[1:]} {'was' if alone else 'were'} held up {often}, {times[0]}.",
        hiccup.cost / job.length,
        job.list_ranks(hiccup.tasks),
        job.list_devices(hiccup.tasks),
        evidence,
        f"look at what {where} did then: garbage collection, checkpoints, page faults, other processes",
        VIEWS if job.has_gpus else MPI_VIEWS,
    )


def _describe_meanwhile(job: JobRanks, hiccup: Hiccup) -> Iterator[str]:
    """Describe what the device and the host of the first rank did during the longest hiccup."""
    if not job.records.height:
        return
    begin, length = hiccup.times[0], hiccup.lengths[0]
    near = job.records.filter(
        (pl.col("task") == hiccup.tasks[0])
        & (pl.col("begin") >= begin)
        & (pl.col("begin") <= begin + 2 * length)
        & (pl.col("late") > 0)
    ).sort("late", descending=True)
    if near.height:
        row = near.row(0, named=True)
        doing = {
            "computing": row["computing"],
            "communicating otherwise": row["other_nccl"],
            "copying memory": row["memory"],
            "idle": row["late"] - row["busy"],
        }
        most = max(doing, key=doing.__getitem__)
        activity = "in no call that was recorded"
        if sum(row[name] for name in STATES) > row["late"] / 2:
            activity = IN_STATE[max(STATES, key=row.__getitem__)]
        many = len(hiccup.tasks) > 1
        whose = f"the GPU of {job.name_task(hiccup.tasks[0])}" if many else "its GPU"
        yield (
            f"{whose} was {most} for {format_nanoseconds(doing[most])} of {format_nanoseconds(row['late'])}, "
            f"its host mostly {activity}"
        )


def make_imbalance_findings(job: JobRanks, segments: Segments, reported: int) -> list[Finding]:
    """Return waits that no other finding reports. reported: ns."""
    rest = float(segments.waits.sum(axis=0).mean()) - reported if len(segments.tasks) else 0.0
    share = rest / job.length
    if share < LEAST_IMBALANCE:
        return []
    waits = segments.waits.sum(axis=0)
    evidence = [
        f"a rank waits {format_nanoseconds(float(waits.mean()))} on average, between {format_nanoseconds(float(waits.min()))} and "
        f"{format_nanoseconds(float(waits.max()))}"
        + "".join(f"; {text}" for text in _name_least_waiting(job, segments))
    ]
    if reported:
        evidence.append(f"{format_nanoseconds(reported)} of this are counted in other findings")
    return [
        Finding(
            "imbalance",
            "Ranks wait for each other at collectives, and not always for the same one.",
            share,
            evidence=tuple(evidence),
            advice="even out what ranks do between collectives: sizes of batches, data loading, operating-system noise",
            views=VIEWS if job.has_gpus else MPI_VIEWS,
        )
    ]


def _name_least_waiting(job: JobRanks, segments: Segments) -> Iterator[str]:
    """Name the rank that the others wait for most often, if that is far more often than by chance."""
    of_each = np.bincount(segments.waits.argmin(axis=1), minlength=len(segments.tasks))
    often, intervals = int(of_each.max()), len(segments.waits)
    if len(segments.tasks) > 2 and often >= max(3, MOSTLY_LAST * intervals):
        who = job.describe_ranks([int(segments.tasks[of_each.argmax()])])
        yield f"the others wait most often for {who}: in {often} of {intervals} intervals between {segments.between}"
