"""Write ``docs/analysis.md``: its code is run on a sample and what it prints is put below: ``python
tools/make_analysis.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from nsys2prv.analysis.findings.finding import KINDS

ROOT = Path(__file__).parent.parent

PAGE = """# Analysis without Paraver

`nsys2prv report` says what holds a job back: in the terminal, as a web page, as JSON, and as data frames in Python. It reads the same
aligned events that a trace is written from, so its figures agree with those of Paraver's views.

## In the terminal

| command | gives |
|---|---|
| `nsys2prv report rank*.sqlite` | findings and the most important tables, at most 60 lines; tables that have no room are not computed |
| `nsys2prv report rank*.sqlite --full` | all findings and all tables |
| `nsys2prv report rank*.sqlite --only efficiencies,overlap` | the tables of these analyses |
| `nsys2prv report rank*.sqlite --iterations "step*"` | efficiencies of each iteration: each execution of these NVTX ranges |
| `nsys2prv report rank*.sqlite --ranks 0-7 --time 10:20 -t -osrt` | a part of the job; also `--hosts`, `--devices`, `--cut-region` |
| `nsys2prv report rank*.sqlite --rows 50` | more rows of each table (default: 5, with `--full` 20) |
| `nsys2prv report rank*.sqlite --html report.html` | everything as one web page with pictures |
| `nsys2prv report rank*.sqlite --json report.json` | everything for scripts and later comparisons |
| `nsys2prv report report.json --html report.html` | the page made from the JSON file, without the reports |
| `nsys2prv rank*.sqlite out.prv --report` | a trace and `out.report.json` and `out.report.html`, reading the reports once |

A job is a report, a folder of reports, or a JSON file that `--json` wrote:

| command | gives |
|---|---|
| `nsys2prv diff before/ after.json` | two jobs side by side |
| `nsys2prv diff before/ after/ --html diff.html` | the same as a web page, with all tables |
| `nsys2prv diff before.json after.json --fail-above 5%` | exit status 4 if an iteration (without iterations: the job) takes over 5 % longer |
| `nsys2prv report 64/ --compare 8/ 16.json --scaling weak` | how the job scales over several sizes |

With more than eight ranks or GPUs, a table with a row for each prints the minimum, mean and maximum, then the worst rows. A terminal that
is too narrow for a table loses its last columns; a pipe gets all of them.

| analysis | shows |
|---|---|
| `findings` | what holds the job back ([below](#findings)) |
| `efficiencies` | parallel efficiency of the devices = load balance x communication x orchestration efficiency: of the job, the steady state, each node, each iteration; shares of the time of each device; MPI and offload efficiencies of the hosts |
| `overlap` | exposed and overlapped communication by device, operation and kernel class; concurrent kernels; kernels in flight |
| `iterations` | how a GPU spends an iteration of the steady state (computing, NCCL alone, copies alone, idle): median, minimum, maximum |
| `collectives` | NCCL by communicator and operation: calls, bytes, waits, bus bandwidth; which rank arrives last, how long the others wait for it, what it does then; MPI calls |
| `kernels` | kernels and kernel classes: count, time, mean, median, min, max, standard deviation, imbalance over ranks, tensor cores; bimodal durations |
| `operations` | NVTX ranges: calls, host time, GPU time of the work launched inside, communication, GEMM with and without tensor cores |
| `idle` | idle time of devices by gap length and by what the host does; launch latency; CUDA API calls; memory operations; Nsight's expert rules |
| `metrics` | sampled metrics of GPUs and network: means, and maps over time; use of devices over time |
| `clocks` | how the clock of each host was corrected, and the error that may remain |
| `critical_path` | the job's time along its critical path ([below](#the-critical-path)); only with `--only critical_path` |

An analysis whose input was not recorded says which table is missing. The [glossary](glossary.md) explains the columns.

*Useful* time of a device is that of all kernels but NCCL's (`--useful compute`, the default, as BSC's tools count it), or of all kernels
(`--useful all-kernels`, as TALP does). An iteration is the n-th execution of an NVTX range on every rank, from the first rank's begin to
the last rank's end. Work that is launched in an iteration and runs later counts where it runs.

`diff` also compares jobs with different numbers of iterations: the median iteration, iterations of the same number, and each table's
change per iteration.

## Findings

A report begins with its findings, the most expensive first, at most ten. A finding is one cause: which rank, host or GPU; the share of the
time that would be gained at most if the cause were removed; what was measured; what to do; which Paraver views show it. They are also the
list `findings` of `--json`, and `job.findings()` in Python. No time counts twice: waiting for a straggler is not exposed
communication, nor is a transfer that would be hidden without this wait; a host that waits while its GPU works costs nothing.

KINDS_OF_FINDINGS

Findings are about the *steady state*, if there is one: all iterations except a long first one. An iteration is an NVTX range that
repeats on a thread under the same name (numbers in it may differ). Iterations do not overlap, launch about the same number of kernels each,
and most kernels of the job together. There must be at least three (two if they are numbered in sequence). Without such ranges, nsys2prv
looks for a period in the sequence of kernels. The table *Phases* shows start-up, steady state and shutdown.

What it takes to be reported:

* **Straggler.** The rank that waits least is the late one: a rank that is merely last may have been delayed by another. Three things
  are required. It waits least so often that the probability of this by chance is below 1 in 200. It costs at least 2 % of the time (5 %
  with 4 ranks, as few ranks differ anyway). And it differs more from the others than they differ from each other. Its cost is how much
  longer the others wait than it does, in the median. Idle time and communication that only the straggler has are in no other finding.
* **Hiccup.** It costs at least 0.5 % of the time, and is so long that noise would explain it in at most 1 of 300 jobs. Noise is taken as
  exponential, with the median and the 80th percentile of the delays between collectives.

Without NCCL payloads in the export, communicators are not known. Then GPUs whose kernels of one name always end together are taken for one
communicator, and a wait is what a kernel lasts longer than the shortest of them.

`python benchmarks/culprits.py` generates jobs with known faults and counts how often the right one is named (`--payload none`: without
payloads).

## The critical path

The critical path is the one chain of work and waiting, over all ranks, that explains how long the job took. Only what is on it makes the
job shorter when it gets faster.

* `nsys2prv report rank*.sqlite --only critical_path` shows its time by cause, rank, kernel class and kernel, for the
  whole job and for its steady state; the finding is of the steady state.
* `nsys2prv -t critical_path rank*.sqlite out.prv` writes it into the trace (with all kinds of events), on the rows that it passes; the
  views `critical_path` and `critical_path_time_2dh` show it. With `--html`, the page has a section of it.
* In Python: `open_job(..., demanded=("critical_path",))`.

The path is walked backwards from the end of the last call or device operation. Each step leads to what the current one waited for:

* From the end of a device operation to its begin. From the end of an NCCL collective to the begin of its kernel on the rank that came
  last; what other ranks do until then is waiting, not on the path.
* From the begin of a device operation to the end of the one before it on its stream, or of the one that a CUDA event made its stream wait
  for (both `Queued on the device`), or to the call that launched it (`Launch latency`), whichever was latest. If both were over 10 us earlier and another stream of the device finished
  an operation since, to that one.
* From the end of a synchronising call to the last device operation of its process that ended within the call (`Return from
  synchronisation`).
* From the end of an MPI call that waits for another to the begin of that other call, if it is later: the sender, the last rank
  of a blocking collective, or its root.
* From the end of any other call to its begin; nested calls are part of the outermost one.
* From the begin of a call to the end of the previous call on its thread (`Host between calls`); from the first call of a thread to the
  last earlier call of its process.

The pieces leave no gaps and do not overlap, so their shares add up to 1. Limits: threads of a process that wait for each other count as time
between calls; of two equally long chains only one is shown, so with balanced ranks the share of each rank says little; what `-t`
leaves out is not on the path. Time and memory grow with the number of calls and operations.

## As a web page

`--html FILE` (needs `pip install matplotlib`) writes one self-contained file: findings, efficiencies, where the time of the
GPUs went, then each analysis with its pictures. Tables can be sorted, filtered and folded. The figures are those of `--json`, rounded; the
exact value of a cell is in its attribute `data-v`. Tables are cut at 300 rows (1,024 for ranks and devices) and say so. With more
than 40 ranks or GPUs, pictures show the mean (maps also minimum and maximum), then the rows that differ most from it.

![The page of the sample job](report.png)

## In Python

Open a job in a `with` statement, or close it: this removes its temporary files. `jobs=0` uses a process per CPU.

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

Each kind of record is a [polars](https://docs.pola.rs) frame: begin and end in ns since the job's first event, aligned over all hosts;
rank, device and stream; and the fields you name. Only these are read.

```python
kernels = job.frame("cuda_kernel", "kernel", "class", "tensor_cores")
print(kernels.head(3))
```

GEMM time of each rank with and without tensor cores:

```python
import polars as pl

gemm = kernels.filter(pl.col("class") == "GEMM").with_columns(ns=pl.col("end") - pl.col("begin"))
print(gemm.group_by("rank", "tensor_cores").agg(pl.col("ns").sum()).sort("rank", "tensor_cores"))
```

`.to_pandas()` makes a pandas frame (`pip install pandas pyarrow`). Integer columns with missing values become floats there;
`.to_pandas(use_pyarrow_extension_array=True)` keeps every digit.

The analyses are those of `nsys2prv report`; each has tables, notes, and what is missing.

```python
results = job.analyse("efficiencies", "overlap", useful="compute", region="iteration*")
efficiencies = results["efficiencies"]
print(efficiencies.tables["device"].frame)
print(efficiencies.missing)
```

Columns that end in `_ns` are times in nanoseconds, `_bytes` sizes, `share` and `efficiency` fractions of 1. The iterations:

```python
print(
    efficiencies.tables["iterations"].frame.select(
        "region", "elapsed_ns", "parallel_efficiency", "load_balance_efficiency"
    )
)
```

Which rank arrives last at NCCL collectives, and how long the others wait for it:

```python
print(
    job.analyse("collectives")["collectives"]
    .tables["stragglers"]
    .frame.select("rank", "times_last", "total_late_ns", "others_waited_ns")
)
```

The tables of the terminal are text of the same frames:

```python
from nsys2prv.analysis.text import table_lines

print("\\n".join(table_lines(job.analyse("idle")["idle"].tables["gaps"].frame)))
```

Sets of times need no loop. How much of each NCCL kernel of the first GPU overlaps computation:

```python
from nsys2prv.analysis.intervals import union

of_gpu = pl.col("device") == 0
compute = kernels.filter(of_gpu)
busy = union(compute["begin"].to_numpy(), compute["end"].to_numpy())
nccl = job.frame("nccl_kernel", "kernel", "bytes").filter(of_gpu)
print(
    nccl.with_columns(
        overlapped=pl.Series(busy.within(nccl["begin"].to_numpy(), nccl["end"].to_numpy()))
    )
    .select("begin", "end", "bytes", "overlapped")
    .head(3)
)
job.close()
```
"""


def page() -> str:
    """The text of the page, each piece of Python followed by what it prints."""
    kinds = "\n".join(f"* `{kind}`: {meaning}" for kind, meaning in KINDS.items())
    text = PAGE.replace("KINDS_OF_FINDINGS", kinds)
    parts, namespace = [], {}
    for number, part in enumerate(text.split("```python\n")):
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
