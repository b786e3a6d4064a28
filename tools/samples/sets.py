"""Making a whole set: the reports, by one or several processes, and ``truth.json``."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from .cluster import EPOCH_NS, Cluster, build_cluster
from .metrics.watcher import ABOUT as ABOUT_METRICS
from .options import Options
from .recorder import ABOUT_BANDWIDTH
from .simulate import Written, planned, write_ranks

TRUTH = "truth.json"
_LINE = 500
_JOB = {"mpi", "faults"}
"""Sections of the truth that are about the whole job."""

_ABOUT = (
    "Times called true are ns since the job's beginning on a perfect clock; its UTC then is epoch_utc_ns. A host's "
    "clocks read true * (1 + drift_ppm / 1e6) plus a constant; its UTC is wrong by offset_ns at true 0. Times in a "
    "report count from its capture start on its host's clock. 'tables' sums the rows of the report as written, "
    "durations in that clock."
)


def generate(folder: str | os.PathLike[str], options: Options | None = None, **changes: Any) -> dict[str, Any]:
    """Write a set of reports and their truth into ``folder`` (made if absent); returns the truth.

    Options can be given as an object or as keyword arguments, such as ``generate("out", ranks=2, hosts=1)``.
    """
    options = planned(options or Options(**changes))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    shares = [list(range(first, options.ranks, options.jobs)) for first in range(min(options.jobs, options.ranks))]
    if len(shares) == 1:
        parts = [write_ranks(options, target, shares[0])]
    else:
        with ProcessPoolExecutor(len(shares), mp_context=multiprocessing.get_context("spawn")) as pool:
            parts = list(pool.map(write_ranks, [options] * len(shares), [target] * len(shares), shares))
    truth = _truth(options, build_cluster(options), parts)
    (target / TRUTH).write_text(_as_text(truth) + "\n", encoding="utf-8")
    return truth


def _truth(options: Options, cluster: Cluster, parts: list[Written]) -> dict[str, Any]:
    return {
        "about": _ABOUT,
        "options": options.described(),
        "epoch_utc_ns": EPOCH_NS,
        "hosts": [
            {
                "name": host.name,
                "offset_ns": host.offset_ns,
                "drift_ppm": host.drift_ppm,
                "utc_minus_system_clock_ns": host.utc_minus_system,
                "gpus": [{"uuid": gpu.uuid, "bus": gpu.bus} for gpu in host.gpus],
            }
            for host in cluster.hosts
        ],
        "communicators": [{"id": comm.hash, "kind": comm.group.name.lower(), "ranks": list(comm.ranks)} for comm in cluster.communicators],
        "ranks": sorted((rank for part in parts for rank in part.ranks), key=lambda rank: rank["rank"]),
        "collectives_total": parts[0].collectives_total,
        "collectives_of_every_nth_step": parts[0].collectives_every,
        "collectives": parts[0].collectives,
        **({"about_bandwidth": ABOUT_BANDWIDTH} if options.bandwidth_truth else {}),
        **_more([part.more for part in parts]),
    }


def _more(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Sections of the truth from several writers: of devices, each tells of those it knows; of the job, each the same."""
    found: dict[str, Any] = {}
    for part in parts:
        for section, content in part.items():
            found[section] = content if section in _JOB else found.get(section, {}) | content
    sampled = {"about_metrics": ABOUT_METRICS} if found.keys() - _JOB else {}
    return sampled | {section: content if section in _JOB else dict(sorted(content.items())) for section, content in found.items()}


def _as_text(value: Any, indent: str = "") -> str:
    """JSON with every object and list that fits on one line on one line."""
    flat = json.dumps(value)
    if len(flat) <= _LINE or not isinstance(value, (dict, list)) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_as_text(part, inner)}" for name, part in value.items()]
    else:
        parts = [_as_text(part, inner) for part in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"
