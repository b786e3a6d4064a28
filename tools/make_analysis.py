"""Write ``docs/analysis.md``: its code is run on a sample and what it prints is put below: ``python
tools/make_analysis.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

ROOT = Path(__file__).parent.parent

PAGE = """# Insight without Paraver

Made by `python tools/make_analysis.py`, which runs the code below on a sample.

The same aligned events that a trace is written from can be looked at directly: in the terminal, as JSON, and as data frames in Python.
The figures are those that Paraver gives for our views on the same trace.

## In the terminal

```
nsys2prv report rank*.sqlite                       what holds the job back, and the first tables: 60 lines at most
nsys2prv report rank*.sqlite --full                everything that was found, and every table
nsys2prv report rank*.sqlite --only efficiencies,overlap
nsys2prv report rank*.sqlite --iterations "step*"  each efficiency of each iteration of these NVTX ranges
nsys2prv report rank*.sqlite --rows 50 --bins 500  more rows of each printed table (5, or 20 with --full), finer maps over time (200)
nsys2prv report rank*.sqlite --ranks 0-7 --time 10:20 -t -osrt   a part of the job; also --hosts, --devices, --cut-region
nsys2prv report rank*.sqlite --json report.json    everything, for scripts and for later comparisons
nsys2prv report rank*.sqlite --html report.html    everything as one page for a browser, with pictures
nsys2prv report report.json --html report.html     the same, later and elsewhere
nsys2prv report rank*.sqlite --title "64 GPUs"     what the report is called; its files by default
nsys2prv report rank*.sqlite --compare 8gpus.json 16gpus/ --scaling weak
nsys2prv diff before.json after.json               two jobs side by side; a job is a report, a folder of reports, or such a JSON file
nsys2prv diff before/ after/ --html diff.html       the same as a page for a browser, with all tables
nsys2prv diff a.json b.json --fail-above 5%        exit status 4 where b takes longer by more than that: an iteration, else the job
nsys2prv -m rank*.sqlite out.prv --report          with a conversion, which reads the reports once for both; writes out.report.json, .html
```

With more than eight ranks or GPUs, tables with a row for each of them print the least, the mean and the greatest of all, then the worst.
In a terminal, tables leave out the last columns that do not fit; in a pipe they have all of them, and there are no escape sequences.

An analysis whose inputs are missing says which table of the reports it would need, rather than print a figure that misleads.

* `findings`: what holds the job back (below).
* `efficiencies`: device parallel efficiency = load balance x communication efficiency x orchestration efficiency, of the job, of nodes,
  per device, per iteration; of hosts MPI and offload efficiencies.
* `overlap`: communication that is exposed and that is overlapped by computation, by device, by operation, by class of kernels; kernels at
  a time during NCCL's; kernels in flight.
* `iterations`: what a GPU does in an iteration of the steady state (computing, NCCL alone, copies alone, idle): median, least and greatest,
  and each iteration.
* `collectives`: NCCL per communicator and operation: calls, bytes, waits, bus bandwidth; who arrives last, how long the others wait for
  it, and what it does meanwhile; MPI calls. NCCL's communicators are called by their members; its own number of each is in
  `communicator_hash` (printed with `--full`).
* `kernels`: kernels and classes: count, mean, median, least, greatest, deviation, imbalance over ranks, tensor cores by name and
  measured; durations, and those with two modes; classes by iteration.
* `operations`: NVTX ranges, nested: calls, host time, GPU time of the work launched inside, communication, GEMM with and without tensor
  cores.
* `idle`: gaps of devices by length and by what the host does in them; launch latency; API calls; memory copies; what Nsight's expert
  rules look for.
* `metrics`: GPU metrics and network: means, and maps over time; the use of devices over time.
* `critical_path`: where `--only critical_path` asks for it: the time of the job along its critical path, by cause, rank, class of kernels
  and kernel (below).
* `clocks`: how the clock of each host was corrected, and how far it may still be wrong.

*Useful* on a device are kernels other than NCCL's (`--useful compute`, as BSC's tools count) or all kernels (`--useful all-kernels`, as
TALP does). An iteration is from the first rank's begin of a range to the last rank's end; the n-th execution of a name on every rank is
one iteration. Work that is launched in an iteration and runs after it counts where it runs.

`diff` compares jobs of different numbers of iterations too: by the median iteration, part by part, by iterations of the same number in
the steady state, and, in each table, by the change of an iteration beside that of the whole.

## Findings

What a report says first, in the terminal, in `--json` (the list `findings`), on the page and as `job.findings()`: what holds the job back.
A finding is one cause, with who (rank, host, GPU), its share of the time (how much would be gained at most if it vanished), what was
measured, what to do, and the Paraver views that show it. The most costly is first; there are at most ten, and none where nothing costs
enough. Findings share out the time of the GPUs, so that nothing is told twice: waiting for a straggler is no exposed communication, and a
host that waits beside a busy GPU costs nothing.

* `straggler`: a rank that is usually the last at collectives, so that the others wait for it
* `slow_host`: all ranks of one host are usually last: what they share is slow
* `slow_link`: a group of ranks takes longer than its peers to move the same data
* `hiccup`: a rank that was held up once, or a few times, for much longer than usual
* `imbalance`: ranks wait for each other, now for one and now for another
* `exposed_communication`: devices move data between ranks and compute nothing meanwhile
* `exposed_copies`: devices copy or set memory and do nothing else meanwhile
* `blocked_by_call`: devices are idle while their hosts wait in a call that synchronises
* `launch_bound`: devices are idle while their hosts are in other calls of the CUDA API
* `host_mpi`: devices are idle while their hosts are in MPI
* `host_nccl`: devices are idle while their hosts are in calls of NCCL
* `host_io`: devices are idle while their hosts read or write files, or the network
* `host_work`: devices are idle while their hosts are in no call that was recorded: they compute
* `no_tensor_cores`: matrix products run without tensor cores
* `critical_path`: what the critical path consists of, and for how much of it no device works (with `--only critical_path` alone)

Who is late is told by who waits least, not by who is last: a rank that a straggler delays is late elsewhere too. A straggler has to be
last so often that chance explains it in one of 200 cases at most, to cost 2 % of the time (of few ranks, which differ anyway, more: of 4
ranks 5 %), and to be further from the others than those are from each other. A hiccup costs half a percent of the time, and is so long that
noise (exponential, as great as half and as four fifths of the stretches between collectives say) explains it in one of 300 jobs at most. A
straggler costs what the middle one of the others waits longer than it does; what its GPU is idle or moves data beyond the others is told of
in no other finding. Where the export has no payloads of NCCL, communicators are not known: then GPUs whose kernels of one name always end
together are taken for one, and a wait is what a kernel lasts longer than the shortest of them. `python benchmarks/culprits.py` generates jobs
with known faults and counts how often the right one is named (`--payload none`: without payloads).

Findings are of the *steady state* where one is found: from the first to the last of the iterations, without a long first one. Iterations
are NVTX ranges whose names differ in numbers alone, that repeat on a thread without overlapping, hold most of the kernels, and about as many
of them each (three at least, two of numbered ranges that follow each other); without
such ranges, the period of the sequence of kernels on a device. The table *Phases* says what was left out.

## The critical path

`nsys2prv report rank*.sqlite --only critical_path` tells what the job's time went to along the one chain of work and waiting that explains
how long it took, over all ranks on one timeline. Only what is on it makes the job shorter when it gets faster. The same chain is in a trace
that `nsys2prv -t critical_path rank*.sqlite out.prv` writes (all kinds of events, and this one), on the rows that it leads over; the views
`critical_path` and `critical_path_time_2dh` show it, and a section of the page with `--html`.
In Python it is `open_job(..., demanded=("critical_path",))`.

The path is walked backwards, from the end of the last call or operation. Each step leads to what the present one had to wait for:

* The end of an operation of a device leads to its begin. That of a collective of NCCL leads to the begin of its kernel on the rank that
  came last: what the other ranks do until then is waiting, and not on the path.
* The begin of an operation leads to the end of the operation before it on its stream (`Queued on the device`), to the end of the one that a
  CUDA event made its stream wait for (`cudaStreamWaitEvent`, where the export has the record and the wait with its stream; `Queued on the
  device` too), or to the call that launched it (`Launch latency`), whichever was the latest. Where all were over by more than 10 us before,
  and another stream of the device ended an operation since, it leads to that one.
* The end of a call that synchronises leads to the last end of an operation of its process within the call (`Return from synchronisation`);
  the end of a call of MPI that waits for another (the one that sends what it receives, the last to come to a blocking collective, or its
  root) to the begin of that one, if it is later; the end of any other call to its begin. Calls within calls are part of the outermost one.
* The begin of a call leads to the end of the call before it on its thread (`Host between calls`), the first one of a thread to the last
  call of its process that ended before.

The pieces follow each other without gap or overlap, so that their shares add up to 1. Threads of a process that wait for each
other lead to nothing else: that counts as time between calls. Where two chains take equally long, one of them
is the path: among balanced ranks it says little which of them has more of it. Time and memory grow with the number of calls and
operations. What `-t` leaves out is not on the path.

## As a page

`--html FILE` (`pip install matplotlib`) writes one file that refers to nothing outside itself, to be mailed or kept: findings by
what they cost, efficiencies, where the time of the GPUs went, then each analysis with its pictures; light and dark; tables sort, filter
and fold. Its figures are those of `--json`; a cell of a table is rounded, the figure itself is in its `data-v`. Tables of more than 300
rows (1,024 where a row is a rank or a device) are cut, which they say; maps are drawn and not listed. Pictures of more than 40 ranks or GPUs
show the mean (maps the greatest and the least values too), then those that differ most from it. Without `--html`, the page can be
made of what `--json` wrote, on a machine that need not have the reports.

![The page of an imagined job of 8 GPUs](report.png)

## In Python

Open a job in a `with` statement, or close it; its temporary files go with it. `jobs=0` lets a process per CPU work.

```python
import nsys2prv

job = nsys2prv.open(
    [
        "sample_reports/training/rank0.sqlite",
        "sample_reports/training/rank1.sqlite",
        "sample_reports/training/rank2.sqlite",
        "sample_reports/training/rank3.sqlite",
    ]
)
print(job.duration, "ns")
print(job.layouts)
print(job.devices)
```

Every kind of record is a frame ([polars](https://docs.pola.rs); `.to_pandas()` makes a pandas one, with
`pip install pandas pyarrow`; there, columns of integers with absent values become floats, or keep every digit with
`.to_pandas(use_pyarrow_extension_array=True)`): begin and end in ns since the job's
first event, aligned over all hosts; where it is; and the fields asked for. Only these are read.

```python
kernels = job.frame("cuda_kernel", "kernel", "class", "tensor_cores")
print(kernels.head(3))
```

Frames are ordinary data. GEMM time of each rank on tensor cores and without:

```python
import polars as pl

gemm = kernels.filter(pl.col("class") == "GEMM").with_columns(ns=pl.col("end") - pl.col("begin"))
print(gemm.group_by("rank", "tensor_cores").agg(pl.col("ns").sum()).sort("rank", "tensor_cores"))
```

The analyses are those of `nsys2prv report`; each gives tables, notes, and what is missing.

```python
results = job.analyse("efficiencies", "overlap", useful="compute", region="iteration*")
efficiencies = results["efficiencies"]
print(efficiencies.tables["device"].frame)
print(efficiencies.missing)
```

Columns that end in `_ns` are durations, `_bytes` sizes, `share` and `efficiency` fractions of 1. Iterations:

```python
print(
    efficiencies.tables["iterations"].frame.select(
        "region", "elapsed_ns", "parallel_efficiency", "load_balance_efficiency"
    )
)
```

Who arrives last at NCCL collectives, and how long the others wait for it:

```python
print(
    job.analyse("collectives")["collectives"]
    .tables["stragglers"]
    .frame.select("rank", "last", "late_ns", "made_wait_ns")
)
```

The tables of the terminal are text of the same frames:

```python
from nsys2prv.analysis.text import table_lines

print("\\n".join(table_lines(job.analyse("idle")["idle"].tables["gaps"].frame)))
```

Arithmetic on sets of times, without a loop: how much of each NCCL kernel of the first GPU is beside computation.

```python
from nsys2prv.analysis.intervals import union

of_gpu = pl.col("device") == 0
compute = kernels.filter(of_gpu)
busy = union(compute["begin"].to_numpy(), compute["end"].to_numpy())
nccl = job.frame("nccl_kernel", "kernel", "bytes").filter(of_gpu)
print(
    nccl.with_columns(
        beside=pl.Series(busy.within(nccl["begin"].to_numpy(), nccl["end"].to_numpy()))
    )
    .select("begin", "end", "bytes", "beside")
    .head(3)
)
job.close()
```
"""


def page() -> str:
    """The text of the page, each piece of Python followed by what it prints."""
    parts, namespace = [], {}
    for number, part in enumerate(PAGE.split("```python\n")):
        if number == 0:
            parts.append(part)
            continue
        code, rest = part.split("```\n", 1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, namespace)
        output = "\n".join(line.rstrip() for line in said.getvalue().splitlines())
        parts.append(
            f"```python\n{code}```\n" + (f"\n```text\n{output}\n```\n" if output else "") + rest
        )
    return "".join(parts)


if __name__ == "__main__":
    os.chdir(ROOT)
    (ROOT / "docs" / "analysis.md").write_text(page(), encoding="utf-8", newline="\n")
