"""Make the data that a page's script draws: lanes, shares of time over time and by iteration,
events, sampled metrics, and all tables, in one block.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from msgspec import to_builtins

from nsys2prv._util.columns import find_edges
from nsys2prv.figures.result import Result
from nsys2prv.figures.time_division import BINS, HOST_PARTS
from nsys2prv.show.finished_job import FinishedJob
from nsys2prv.show.page.events import CLASSES, COLUMNS, merge_windows
from nsys2prv.show.page.excerpts import Excerpts
from nsys2prv.show.text import format_heading

#: Rows of a table on a page; JSON has all.
MOST_ROWS = 1500
#: Characters of the longest name.
LONGEST = 400
#: The share of each part in a bin is a byte: this value for all of its time.
FULL = 250
#: Most numbers of a grid (lanes by iterations); in larger ones several iterations share a column.
MOST_CELLS = 60_000
#: Sampled metrics, and bytes of all.
MOST_METRICS, MOST_METRIC_BYTES = 48, 1_000_000
#: Metrics that are there at least.
FIRST_METRICS = r"^SMs? Active|^GR Active|^Device memory in use"
#: Prefix of metric rows, before the GPU.
GPU_METRICS = "Metrics "
#: Bytes of the longest number as a varint: 8 x 7 bits hold more than a year in ns.
MOST_BYTES = 8
#: Analyses with flame graphs.
FLAMES = ("stacks", "modules")
#: Greatest number of a grid: the greatest of its values.
GRID_TOP = 65535


class Pack:
    """A block of bytes to which data of a page are appended."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> int:
        """Append bytes and return their position in the block."""
        self._parts.append(data)
        self._size += len(data)
        return self._size - len(data)

    def add_columns(self, columns: Iterable[np.ndarray], edges: Sequence[int]) -> list[int]:
        """Append columns of numbers (negative numbers as 0), one group of rows after the other.
        Return the position of each group in the block. edges: indices of the first rows of groups,
        and the number of rows.
        """
        encoded = [encode_varints(column) for column in columns]
        return [
            self.add(b"".join(data[ends[first] : ends[last]] for data, ends in encoded))
            for first, last in pairwise(edges)
        ]

    def add_grid(self, values: np.ndarray) -> dict[str, object]:
        """Append an array of numbers (rows, columns), rounded to 1/65535 of the largest. Return its
        position (`at`), number of `columns`, and largest number (`top`).
        """
        top = float(values.max(initial=0)) or 1.0
        scaled = np.round(np.maximum(values, 0) / top * GRID_TOP).astype("<u2")
        return {"at": self.add(scaled.tobytes()), "columns": values.shape[1], "top": top}

    def finish(self, facts: Mapping[str, object]) -> str:
        """Return the block in base64, preceded by these facts."""
        text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        head = text.encode("utf-8", "replace")
        block = b"".join([len(head).to_bytes(4, "little"), head, *self._parts])
        return base64.b64encode(zlib.compress(block, 9)).decode()


def encode_varints(numbers: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return numbers as LEB128: seven bits per byte, the lowest first; negative numbers as 0.
    Return also the begin of each number, and the end of the last one.
    """
    values = np.maximum(np.asarray(numbers, np.int64), 0) & (1 << 7 * MOST_BYTES) - 1
    size = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    groups = np.empty((len(values), size), np.uint8)
    kept = np.ones((len(values), size), bool)
    for place in range(size):
        groups[:, place] = values & 127
        values >>= 7
        goes_on = values > 0
        groups[:, place] |= goes_on.view(np.uint8) << 7
        kept[:, place + 1 :] = goes_on[:, None]
    return groups[kept].tobytes(), np.append(0, kept.sum(axis=1).cumsum())


def pack_data(job: FinishedJob, whole: bool = True) -> str:
    """Return the data block of a page in base64, which data.js reads. whole: include all tables,
    not only those that timelines need.
    """
    pack, lanes = Pack(), job.lanes
    facts: dict[str, Any] = {
        "duration": job.duration,
        "span": job.span,
        "iterations": job.iterations,
        "lanes": [
            {"who": who, "node": node, "device": bool(device), "label": device or node}
            for who, node, device in lanes.select("rank", "node", "device").rows()
        ]
        if lanes.height
        else [],
        "columns": {kind: ("begin", "end", *names) for kind, names in COLUMNS.items()},
        "classes": CLASSES,
        "tables": [*_list_tables(job.results)] if whole else [],
        "metrics": [*_pack_metrics(pack, job)] if whole else [],
        "bins": _pack_bins(pack, job),
        "grids": {},
        "group": 1,
        **_pack_events(pack, job.excerpts, lanes.height),
        "pairs": job.excerpts.events.pairs.to_dict(as_series=False)
        if whole and job.excerpts
        else {},
        "mapEdges": job.excerpts.events.edges.tolist() if whole and job.excerpts else [],
        "maps": [*_pack_kernels(pack, job.excerpts, lanes.height)]
        if whole and job.excerpts
        else [],
    }
    flames = {name: job.find_frame(name, "flame") for name in FLAMES if whole}
    facts["flames"] = {
        name: [
            (rank, frame.rows())
            for (rank,), frame in flame.partition_by(
                "rank", as_dict=True, maintain_order=True, include_key=False
            ).items()
        ]
        for name, flame in flames.items()
        if flame is not None
    }
    if job.iterations and (frame := job.find_frame("time", "by_iteration")) is not None:
        facts["group"], facts["grids"] = _pack_iterations(pack, frame, lanes.height)
    return pack.finish(facts)


def _pack_bins(pack: Pack, job: FinishedJob) -> dict[str, Any]:
    """Pack shares of time by lane and bin, one byte per part."""
    frame = job.find_frame("time", "over_time")
    if frame is None:
        return {"parts": [], "count": 1, "at": 0}
    parts = [name for name in BINS if f"{name}_share" in frame.columns]
    count = int(frame["bin"].max()) + 1
    shares = np.zeros((job.lanes.height, count, len(parts)))
    values = frame.select(f"{name}_share" for name in parts).to_numpy()
    shares[frame["lane"].to_numpy(), frame["bin"].to_numpy()] = values
    titles = [
        {"name": name, "title": title, "colour": colour, "ofHost": name in HOST_PARTS}
        for name, (title, colour) in BINS.items()
        if name in parts
    ]
    data = np.round(FULL * np.clip(shares, 0, 1)).astype(np.uint8)
    return {"parts": titles, "count": count, "at": pack.add(data.tobytes())}


def _pack_iterations(
    pack: Pack, frame: pl.DataFrame, lanes: int
) -> tuple[int, dict[str, dict[str, object]]]:
    """Return how many iterations are merged into one, and the location of each grid of numbers by
    lane and iteration (sums for merged iterations).
    """
    count = int(frame["iteration"].max())
    group = -(-count * lanes // MOST_CELLS)
    columns = -(-count // group)
    grids = {}
    row, column = frame["lane"].to_numpy(), (frame["iteration"].to_numpy() - 1) // group
    for name in frame.columns[3:]:
        values = np.zeros((lanes, columns))
        np.add.at(values, (row, column), frame[name].to_numpy())
        grids[name.removesuffix("_ns")] = pack.add_grid(values)
    return group, grids


def _pack_events(pack: Pack, excerpts: Excerpts | None, lanes: int) -> dict[str, Any]:
    """Pack the events of each lane and kind, their names, and the share of all events that the page
    contains.
    """
    if excerpts is None:
        return {}
    names = excerpts.names.with_row_index("number")
    tracks, has_streams = [], False
    for kind, frame in excerpts.events.tracks.items():
        numbered = frame.join(
            names, ["source", "name", "class"], "left", maintain_order="left"
        ).with_columns(name="number")
        edges = find_edges(numbered["lane"].to_numpy())
        columns = _to_differences(numbered, edges[:-1])
        columns += [numbered[name].to_numpy() for name in COLUMNS[kind]]
        places = pack.add_columns(columns, edges)
        lanes_of = numbered["lane"].to_numpy()[edges[:-1]]
        counted = zip(lanes_of.tolist(), np.diff(edges).tolist(), places, strict=True)
        tracks += [(lane, kind, count, place) for lane, count, place in counted]
        if "stream" in numbered.columns and numbered.height:
            stream = numbered["stream"].to_numpy()
            several = stream != np.repeat(stream[edges[:-1]], np.diff(edges))
            has_streams = has_streams or bool(several.any())
    messages = excerpts.events.messages
    ends = [messages[name].to_numpy() for name in COLUMNS["messages"]]
    return {
        "tracks": tracks,
        "cover": [
            np.stack([spans.begin, spans.end], 1).tolist()
            for spans in (merge_windows(excerpts.windows, lane) for lane in range(lanes))
        ],
        "names": [str(name)[:LONGEST] for name in names["label"]] if names.height else [],
        "nameClasses": names["class"].to_list() if names.height else [],
        "communicators": excerpts.events.communicators,
        "threads": excerpts.events.threads,
        "messages": {
            "count": messages.height,
            "at": pack.add_columns([*_to_differences(messages), *ends], (0, messages.height))[0],
        },
        "moments": to_builtins(excerpts.moments),
        "total": excerpts.total,
        "carried": excerpts.carried,
        "hasStreams": has_streams,
    }


def _pack_kernels(pack: Pack, excerpts: Excerpts, lanes: int) -> Iterator[dict[str, object]]:
    """Pack the kernel maps: by lane and bin, the mean duration of the kernels that begin there; 0
    without kernels.
    """
    for name, label in excerpts.kernels.items():
        own = excerpts.events.kernels.filter(name=name)
        means = np.zeros((lanes, len(excerpts.events.edges) - 1))
        means[own["lane"].to_numpy(), own["bin"].to_numpy()] = own["time"] / own["count"]
        yield {"name": label[:LONGEST], "time": int(own["time"].sum()), **pack.add_grid(means)}


def _to_differences(events: pl.DataFrame, first: np.ndarray | slice = slice(0)) -> list[np.ndarray]:
    """Return how long each event begins after the one before, and lasts. first: the first events of
    groups, for which the begin stays.
    """
    begin, end = events["begin"].to_numpy(), events["end"].to_numpy()
    after = np.diff(begin, prepend=0)
    after[first] = begin[first]
    return [after, end - begin]


def _pack_metrics(pack: Pack, job: FinishedJob) -> Iterator[dict[str, Any]]:
    """Pack sampled metrics over time, except those that are always 0.

    Each place and bin has one byte: 0 for unknown, 255 for the top of the scale, which is 100 for
    percentages. A place is a device with the lane below which it is shown: the first lane of its
    GPU, or of its host.
    """
    frame = job.find_frame("metrics", "map")
    if frame is None or not job.lanes.height:
        return
    lanes = job.lanes.with_row_index("lane").select("lane", "node", "device").rows()
    below = {name: lane for lane, *names in reversed(lanes) for name in names}
    columns = int(frame["bin"].max()) + 1
    greatest = frame.group_by("metric", maintain_order=True).agg(pl.col("mean").max())
    is_first = pl.col("metric").str.contains(FIRST_METRICS)
    ordered = greatest.filter(pl.col("mean") > 0).sort(~is_first, maintain_order=True)
    room = MOST_METRIC_BYTES // columns
    for metric, most in ordered.head(MOST_METRICS).rows():
        name, _, unit = metric.removesuffix("]").partition(" [")
        is_share = unit.endswith("%")
        top = 100.0 if is_share and most <= 100 else most
        places, own = [], frame.filter(metric=metric)
        for (node, device), part in own.partition_by("node", "device", as_dict=True).items():
            gpu = f"{node} {device.removeprefix(GPU_METRICS)}"
            lane = below.get(gpu, below.get(node))
            if lane is None or not room:
                continue
            room -= 1
            values = np.zeros(columns, np.uint8)
            values[part["bin"].to_numpy()] = 1 + np.round(254 * part["mean"] / top)
            label = "" if gpu in below else device
            places.append({"lane": lane, "label": label, "at": pack.add(values.tobytes())})
        scale = {"unit": "%" if is_share else unit, "top": top, "columns": columns}
        if places:
            yield {"name": f"{name} [{scale['unit']}]", "places": places, **scale}


def _list_tables(results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    """Yield all tables as columns. tables.js draws them when they are opened."""
    for name, result in results.items():
        tables = [
            {
                "name": f"{name}.{key}",
                "title": table.title,
                "about": table.about if key == next(iter(result.tables)) else "",
                "rows": table.frame.height,
                "columns": [*_list_columns(table.frame.head(MOST_ROWS))],
            }
            for key, table in result.tables.items()
            if key not in result.declared.drawn
        ]
        if tables or (not result.declared.special and (result.notes or result.missing)):
            texts = {"title": result.title, "notes": result.notes, "missing": result.missing}
            yield {"tables": tables, **texts}


def _list_columns(frame: pl.DataFrame) -> Iterator[tuple[str, str, Sequence[object], bool]]:
    """Yield the columns of a table for tables.js: name, heading, values, and whether these are
    texts.
    """
    for name, column in zip(frame.columns, frame.get_columns(), strict=True):
        is_text = not column.dtype.is_numeric()
        if column.dtype == pl.Boolean:
            values = [{True: "yes", False: "no"}.get(one) for one in column]
        elif is_text:
            values = [None if one is None else str(one)[:LONGEST] for one in column]
        elif column.dtype.is_float():
            values = column.fill_nan(None).round_sig_figs(6).to_list()
        else:
            values = column.to_list()
        yield name, format_heading(name), values, is_text
