"""What is stored of the normal form, against the same rows one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nsys2prv._util.columns import ABSENT, OPEN
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kind import Account, CommunicationLines, Reason, Rows
from nsys2prv.nsight.source import NULL, TIME_LIMIT
from nsys2prv.store.runs import BEGIN, BLOCK_RECORDS, END, LINE, SpillReader, SpillWriter, pair_runs
from nsys2prv.store.spilling import spill_rows

#: Layout -> whether its ranges may be open.
LAYOUTS = {"cuda_kernel": False, "cuda_api": False, "nvtx_pushpop": True, "memory_operation": False}


def _make_rows(random: np.random.Generator, name: str, count: int, damaged: bool) -> Rows:
    layout = load_catalogue().layouts[name]
    begin = random.integers(0, max(count, 1) * random.choice([1, 10]), count)
    begin = np.sort(begin) if random.random() < 0.5 else begin
    end = begin + random.integers(1, 50, count)
    columns = {}
    for field in layout.fields:
        columns[field.name] = random.integers(1, 1 << (40 if random.random() < 0.2 else 20), count)
        columns[field.name][random.random(count) < random.choice([0, 0, 0.5, 1])] = (
            ABSENT if field.optional else 0
        )
        if damaged:
            columns[field.name][random.random(count) < 0.05] = -7
    if damaged:
        for column in (begin, end):
            for value in (NULL, OPEN, TIME_LIMIT, -TIME_LIMIT, -5):
                column[random.random(count) < 0.02] = value
    objects = random.integers(0, random.choice([1, 4]), count)
    lines = (
        CommunicationLines(
            "launch", begin - 3, objects, begin, objects, end, random.integers(0, 9, count)
        )
        if name == "cuda_kernel"
        else None
    )
    return Rows(
        name,
        begin,
        end,
        objects,
        columns,
        domain=random.integers(0, 3, count) if layout.has_domain else None,
        lines=lines,
    )


def _is_usable(time: int) -> bool:
    return -TIME_LIMIT < time < TIME_LIMIT


def _compute_expected(rows: Rows, wanted: list[int]) -> tuple[list[dict[str, int]], Counter[str]]:
    """Return the begin records, and the counts."""
    layout, records, counted = load_catalogue().layouts[rows.layout], [], Counter()
    for row in wanted:
        begin, end = int(rows.begin[row]), int(rows.end[row])
        if not _is_usable(begin) or not (_is_usable(end) or LAYOUTS[rows.layout]):
            counted[Reason.NO_TIME] += 1
            continue
        if not _is_usable(end):
            counted[Reason.NO_END] += 1
        elif end < begin:
            counted[Reason.END_BEFORE_BEGIN] += 1
        record = {
            "time": begin,
            "end": max(end, begin + 1) if _is_usable(end) else OPEN,
            "object": int(rows.object[row]),
        }
        if rows.domain is not None:
            record["domain"] = int(rows.domain[row])
        for place, field in enumerate(layout.fields):
            value = int(rows.columns[field.name][row])
            is_present = (
                value != ABSENT
                if field.optional
                else value > 0 or layout.nests or not place or field.values is not None
            )
            if is_present:
                record[field.name] = max(value, 0)
        records.append(record)
    return records, counted


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", range(24))
def test_rows_are_stored_as_they_are(tmp_path: Path, name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = (0, 1, 60, BLOCK_RECORDS + 900)[seed % 4]
    rows = _make_rows(random, name, count, damaged=seed % 8 > 3)
    chosen = random.random(count) < (0.6 if seed % 3 == 1 else 1)
    writer, account = SpillWriter(tmp_path / "runs.bin", 0, 0), Account()
    runs = list(spill_rows(rows.where(chosen), LAYOUTS[name], writer, account))
    writer.close()

    expected, counted = _compute_expected(rows, np.flatnonzero(chosen).tolist())
    assert account.dropped + account.repaired == counted
    reader, result, ends = SpillReader(), [], []
    for run in runs:
        records = reader.read_every(run, 1)
        assert (records["time"][1:] >= records["time"][:-1]).all()
        assert (run.rows, run.first_time, run.last_time) == (
            len(records),
            records["time"][0],
            records["time"][-1],
        )
        if run.shape.stream == BEGIN:
            assert (np.lexsort((-records["end"], records["time"])) == np.arange(len(records))).all()
            assert run.object == (
                records["object"][0] if len(set(records["object"].tolist())) == 1 else -1
            )
            assert run.greatest_time == max(
                time for time in (*records["end"].tolist(), run.last_time + 1) if time != OPEN
            )
            for place, field in enumerate(load_catalogue().layouts[name].fields):
                if field.name in records.dtype.names:
                    assert (run.shape.wide >> place & 1) == (records[field.name].max() > 0xFFFFFFFF)
            result += [
                dict(zip(records.dtype.names, record, strict=True)) for record in records.tolist()
            ]
        elif run.shape.stream == END:
            ends += records.tolist()
    for begins, closing in pair_runs(runs):
        if closing is not None:
            assert (
                sorted(reader.read_every(begins, 1)["end"].tolist())
                == reader.read_every(closing, 1)["time"].tolist()
            )
    assert Counter(tuple(sorted(record.items())) for record in result) == Counter(
        tuple(sorted(record.items())) for record in expected
    )
    assert Counter(ends) == Counter(
        (record["end"], *(record[key] for key in ("object", "domain") if key in record))
        for record in expected
    )

    if rows.lines is not None:
        columns = zip(
            *(
                column.tolist()
                for column in (
                    rows.lines.send,
                    rows.lines.sender,
                    rows.lines.receive,
                    rows.lines.receiver,
                    rows.lines.until,
                    rows.lines.size,
                )
            ),
            strict=True,
        )
        lines = Counter(
            (send, sender, receive, receiver, max(until, receive + 1), size)
            for send, sender, receive, receiver, until, size in columns
            if all(map(_is_usable, (send, receive, until)))
        )
        assert lines == Counter(
            record
            for run in runs
            if run.shape.stream == LINE
            for record in reader.read_every(run, 1).tolist()
        )
