"""Make a trace fit a size: estimate the bytes of its lines from samples, and choose what to leave
out, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct, field

from nsys2prv._util.errors import Nsys2prvError
from nsys2prv._util.text import format_duration, format_size
from nsys2prv.conversion.job import Job, make_global_ids
from nsys2prv.conversion.options import (
    NAMED_RANGES,
    CutSpec,
    find_layouts,
    find_sampled_layouts,
    leave_out_attributes,
    leave_out_lines,
)
from nsys2prv.events.catalogue import DomainCode, assign_counter_codes, load_catalogue
from nsys2prv.store.runs import BEGIN, COUNTER, LINE, RecordFormat, Run, SpillReader
from nsys2prv.store.windows import WindowRecords

#: Records in the sample of a run; runs of fewer are looked at as a whole.
SAMPLE_SIZE = 4096
#: Streams that make lines of their own; those of ends count with their begins.
WEIGHED = (BEGIN, LINE, COUNTER)
SECOND = 1_000_000_000
#: Bytes of the header's comments and the like, and what estimates may be wrong by.
BESIDE, MARGIN = 2_000, 1.01
NUMBERS = "sampled numbers"
_POWERS = 10 ** np.arange(1, 19)


class Weight(Struct, frozen=True):
    """Size of the lines of a run, from a sample of its records."""

    #: Name of the layout or of the kind of lines.
    name: str
    #: Number of records that each one in the sample stands for.
    each: float
    #: Bytes of a record's lines without attributes; for samples without numbers.
    base: np.ndarray
    #: Bytes of each attribute, by its bit.
    fields: dict[int, np.ndarray] = field(default_factory=dict)
    #: Durations of ranges, ns.
    durations: np.ndarray | None = None
    #: Bytes of the numbers of samples.
    numbers: float = 0.0
    #: Of a run of samples: how many there are, and the times of the first and the last (ns).
    samples: tuple[int, int, int] | None = None

    def count_bytes(self, spec: CutSpec) -> float:
        """Return the bytes that a cut leaves."""
        if self.name in spec.away:
            return 0.0
        if self.samples is not None:
            rows, first, last = self.samples
            rate = spec.rates.get(self.name)
            share = min(1.0, ((last - first) * rate / SECOND + 2) / rows) if rate else 1.0
            return share * (float(self.base.sum()) * self.each + self.numbers)
        present = spec.field_mask.get(self.name, -1)
        total = self.base + sum(column for bit, column in self.fields.items() if present >> bit & 1)
        if self.durations is not None and (least := spec.least.get(self.name, 0)):
            total = total[self.durations >= least]
        return float(total.sum()) * self.each


def _weigh_runs(job: Job) -> list[Weight]:
    """Return the weight of every run of a job that is ready to be written, in which all runs are in
    trace time.
    """
    weigher, ids = _Weigher(job), make_global_ids(job)
    weights = []
    with SpillReader() as reader:
        for run in job.runs:
            if run.shape.stream in WEIGHED:
                sample = reader.read_every(run, -(-run.rows // SAMPLE_SIZE))
                records = WindowRecords(run.shape, ids, [(run, sample)])
                weights.append(weigher.weigh(run, records, run.rows / len(sample)))
    return weights


class _Weigher:
    """Weighs the lines of runs by samples of their records."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._addresses = np.array([len(address) for address in job.model.tree.addresses], np.int64)
        metrics = job.collect_metrics()
        self._codes = assign_counter_codes(
            {layout: [metric.name for metric in metrics[layout]] for layout in metrics}
        )

    def weigh(self, run: Run, records: WindowRecords, each: float) -> Weight:
        """Return the weight of a run, of which each of these records stands for so many."""
        name = run.shape.name
        if run.shape.stream == BEGIN:
            return self._weigh_events(run.shape, records, each)
        if run.shape.stream == LINE:
            tag = load_catalogue().lines[name].tag
            base = 10 + _count_digits(records.column("size"))
            base += _count_digits(records.column("tag")) if tag is None else len(str(tag))
            # Each time is there twice, as a logical and as a physical one.
            base += 2 * (_count_digits(records.times) + _count_digits(records.column("receive")))
            for end in ("sender", "receiver"):
                base += self._addresses[records.column(end)]
            return Weight(name, each, base)
        base = 4 + _count_digits(records.times) + self._addresses[records.column("object")]
        stored = records.column("values").astype(np.int64)
        codes = [2 + len(str(self._codes[name, metric.name])) for metric in run.shape.metrics]
        numbers = float(((np.array(codes) + _count_digits(stored - 1)) * (stored > 0)).sum())
        samples = run.rows, run.first_time, run.last_time
        return Weight(name, each, base, numbers=numbers * each, samples=samples)

    def _weigh_events(self, shape: RecordFormat, records: WindowRecords, each: float) -> Weight:
        layout = load_catalogue().layouts[shape.name]
        time, end = records.times, records.column("end")
        lines = 1 if layout.is_state else 2
        base = lines * (4 + self._addresses[records.column("object")]) + _count_digits(time)
        if lines == 2:
            base = base + _count_digits(np.minimum(end, self._job.duration))
        fields = {}
        for bit, layout_field in enumerate(layout.fields):
            if shape.field_mask >> bit & 1:
                values = records.column(layout_field.name).astype(np.int64)
                code = 2 + self._find_code_width(layout_field.code, records)
                # The value, and where the range ends, 0.
                width = _count_digits(values + layout_field.offset) + (lines - 1)
                fields[bit] = lines * code + width
        base = base + fields.pop(0)
        return Weight(layout.name, each, base, fields, None if layout.is_state else end - time)

    def _find_code_width(self, code: int | DomainCode, records: WindowRecords) -> np.ndarray | int:
        if not isinstance(code, DomainCode):
            return len(str(code))
        codes = [code.code_of(name, number) for name, number in self._job.domain_codes]
        return _count_digits(np.array(codes, np.int64))[records.column("domain")]


def _count_digits(numbers: np.ndarray) -> np.ndarray:
    return np.searchsorted(_POWERS, numbers, "right") + 1


class Reduction(Struct, frozen=True):
    """Leave out something. A later reduction of the same subject goes further."""

    #: What it reduces.
    subject: str
    #: What is left out, for people.
    what: str
    #: What to leave out, in any window.
    spec: CutSpec


def _find_all_layouts(kinds: Iterable[str]) -> list[str]:
    return [layout for kind in kinds for layout in find_layouts(kind)]


def _leave_out_short(noun: str, durations: Iterable[int], *kinds: str) -> Iterator[Reduction]:
    layouts = load_catalogue().layouts
    ranges = [name for name in _find_all_layouts(kinds) if not layouts[name].is_state]
    for least in durations:
        description = f"{noun} shorter than {format_duration(least)}"
        yield Reduction(noun, description, CutSpec(least=dict.fromkeys(ranges, least)))


def _list_reductions() -> list[Reduction]:
    """Return the reductions to apply one after the other until the trace fits, in the order of
    docs/cutting.md.
    """
    counters = find_sampled_layouts(load_catalogue().layouts)
    calls = "osrt", "pthread", "file_accesses"
    # 10 us, 100 us, 1 ms.
    short = 10_000, 100_000, 1_000_000

    def leave_out(noun: str, *kinds: str) -> Reduction:
        return Reduction(noun, noun, CutSpec(away=frozenset(_find_all_layouts(kinds))))

    return [
        leave_out("CPU samples", "cpu_samples"),
        leave_out("thread states", "sched"),
        *_leave_out_short("OS runtime calls", short, *calls),
        Reduction("attributes", "attributes of events", leave_out_attributes()),
        Reduction("lines", "communication lines", leave_out_lines()),
        *(
            Reduction(
                NUMBERS,
                f"{NUMBERS} beyond {rate:,} a second",
                CutSpec(rates=dict.fromkeys(counters, rate)),
            )
            for rate in (1_000, 100, 10)
        ),
        *_leave_out_short("NVTX ranges", short, *NAMED_RANGES),
        leave_out("OS runtime calls", *calls),
        Reduction(NUMBERS, NUMBERS, CutSpec(away=frozenset(counters))),
        *_leave_out_short("CUDA calls", short[:2], "cuda_api_trace"),
        *_leave_out_short("ranges", (*short, 10_000_000), "all"),
    ]


class Fitting:
    """Makes a trace fit into --max-size, step by step.

    job: without any step. spec: what is cut apart from the steps. limit: greatest size of the
    .prv, bytes.
    """

    def __init__(self, job: Job, spec: CutSpec, limit: int) -> None:
        self.limit, self._spec = limit, spec
        #: What the steps left out that changed something, by their subjects.
        self.done: dict[str, str] = {}
        #: Steps not tried yet.
        self._left = iter(_list_reductions())
        self._weights = _weigh_runs(job)
        self._beside = BESIDE + len(
            job.model.tree.format_header("01/01/2000 at 00:00", job.duration)
        )
        #: Estimated size of the trace after the steps done, bytes.
        self.bytes = self._estimate(spec)

    @property
    def fits(self) -> bool:
        """Return whether the trace should stay within the limit."""
        return self.bytes * MARGIN <= self.limit

    def go_further(self) -> CutSpec:
        """Return the specification by which the trace should fit. Raises Nsys2prvError where no step is
        left.
        """
        for step in self._left:
            self._spec = self._spec.leave_out_also(step.spec)
            smaller = self._estimate(self._spec)
            if smaller < self.bytes:
                self.done.pop(step.subject, None)
                self.done[step.subject] = step.what
                self.bytes = smaller
            if self.fits:
                return self._spec
        share = max(0.01, 100 * self.limit / (self.bytes * MARGIN))
        raise Nsys2prvError(
            f"--max-size: the trace would still be about {format_size(self.bytes)} without everything that may be left out; "
            f"cut its time as well, as in --time 0:{share:.2g}%"
        )

    def measure_again(self, job: Job) -> None:
        """Take the actual size after a cut by :meth:`go_further`."""
        self.bytes = _sum_weights(_weigh_runs(job), CutSpec()) + self._beside

    def _estimate(self, spec: CutSpec) -> float:
        return _sum_weights(self._weights, spec) + self._beside


def _sum_weights(parts: Iterable[Weight], spec: CutSpec) -> float:
    return float(np.sum([part.count_bytes(spec) for part in parts]))
