"""Add the report to a Perfetto trace as its first process, with a track for the parts of the job,
one for its iterations, and one for each finding.

Input: a finished job. Output: packets that are appended to the trace. Perfetto sorts them by time.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from nsys2prv.figures.result import Finding
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.writers.perfetto import Event, Track, describe_track
from nsys2prv.writers.perfetto.messages import ON_SEQUENCE, Field, Packet, encode_packet

#: Id of the report's track, and of the first track within it, after the ids of all rows and
#: layouts; its number as a process, after all others.
TRACK, PROCESS = 1 << 60, 1_000_000_000
#: Begin, end (ns) and name of a slice, and its arguments.
Slice = tuple[int, int, str, dict[str, str]]


def append_report(trace: Path, job: FinishedJob) -> None:
    """Append the findings of a report to the Perfetto trace of the same job, as tracks."""
    packets = b"".join(_make_packets(job))
    with trace.open("ab") as file:
        file.write(gzip.compress(packets) if trace.suffix == ".gz" else packets)


def _make_packets(job: FinishedJob) -> Iterator[bytes]:
    process = (
        (Track.PID, PROCESS),
        (Track.PROCESS_NAME, "Report of nsys2prv"),
        (Track.SORT_INDEX, 0),
    )
    order = (Track.ORDER, 0), (Track.CHILD_ORDERING, Track.BY_ORDER)
    yield describe_track(TRACK, (Track.PROCESS, process), *order)
    tracks = [("Parts of the job", _list_phases(job)), ("Iterations", _list_iterations(job))]
    for number, finding in enumerate(job.findings, 1):
        name = " ".join(filter(None, (f"{number}.", _format_share(finding), finding.title)))
        tracks.append((name, _list_moments(finding, job)))
    for order_number, (name, slices) in enumerate(tracks, 1):
        if slices:
            track = TRACK + order_number
            placed = (Track.NAME, name), (Track.PARENT, TRACK), (Track.ORDER, order_number)
            yield describe_track(track, *placed)
            for begin, end, title, arguments in slices:
                yield from _write_slice(track, begin, end, title, arguments)


def _list_phases(job: FinishedJob) -> list[Slice]:
    phases = job.find_frame("findings", "phases")
    if phases is None:
        return []
    return [
        (row["begin_ns"], row["begin_ns"] + row["time_ns"], row["phase"], {})
        for row in phases.rows(named=True)
    ]


def _list_iterations(job: FinishedJob) -> list[Slice]:
    pairs = enumerate(pairwise(job.iterations), 1)
    return [(begin, end, f"iteration {number}", {}) for number, (begin, end) in pairs]


def _list_moments(finding: Finding, job: FinishedJob) -> list[Slice]:
    """Return the moments of a finding that do not overlap an earlier one. Without moments, return
    the whole time to which its share refers.
    """
    evidence = {f"measured {number}": line for number, line in enumerate(finding.evidence, 1)}
    texts = {
        "finding": finding.title,
        "share": _format_share(finding),
        **evidence,
        "where": finding.where,
        "do": finding.advice,
        "what if": finding.what_if,
    }
    arguments = {name: text for name, text in texts.items() if text}
    moments = sorted((begin, end) for begin, end, _ in finding.moments)
    if not moments:
        moments = [(0, job.duration) if finding.happens_once else job.span]
        arguments["moment"] = "no single moment: the whole time that the share relates to"
    kept: list[tuple[int, int]] = []
    for begin, end in moments:
        if not kept or begin >= kept[-1][1]:
            kept.append((begin, max(end, begin + 1)))
    return [(begin, end, finding.title, arguments) for begin, end in kept]


def _format_share(finding: Finding) -> str:
    at_most = "at most " if finding.is_limit else ""
    return f"{at_most}{100 * finding.share:.1f} %" if finding.share else ""


def _write_slice(
    track: int, begin: int, end: int, name: str, arguments: dict[str, str]
) -> Iterator[bytes]:
    texts: Sequence[Field] = [
        (Event.ARGUMENT, ((Event.ARGUMENT_NAME_TEXT, key), (Event.ARGUMENT_OWN_TEXT, text)))
        for key, text in arguments.items()
    ]
    begun = (Event.TYPE, Event.SLICE_BEGIN), (Event.NAME_TEXT, name), *texts
    for time, event in ((begin, begun), (end, ((Event.TYPE, Event.SLICE_END),))):
        placed = (Event.TRACK, track), *event
        yield encode_packet((Packet.TIMESTAMP, time), *ON_SEQUENCE, (Packet.TRACK_EVENT, placed))
