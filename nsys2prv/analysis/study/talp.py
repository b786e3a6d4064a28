"""Write a study as the files that DLB's TALP writes, one for each run, which TALP-Pages reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nsys2prv._util.files import write_complete_file
from nsys2prv.analysis.study.model import ROW_OF
from nsys2prv.analysis.study.tables import Study, measure_focus, name_file

#: The version of DLB whose form the files have, and what TALP calls the whole focus of analysis.
DLB, WHOLE = "3.7.0", "Global"
#: TALP's name -> ours. As with TALP, what the program does not use (MPI, OpenMP) loses nothing.
EFFICIENCIES = {
    "parallelEfficiency": "host.parallel",
    "mpiParallelEfficiency": "mpi.parallel",
    "mpiCommunicationEfficiency": "mpi.communication",
    "mpiLoadBalance": "mpi.load_balance",
    "mpiLoadBalanceIn": "mpi.load_balance_in",
    "mpiLoadBalanceOut": "mpi.load_balance_out",
    "ompParallelEfficiency": "openmp.parallel",
    "ompLoadBalance": "openmp.load_balance",
    "ompSchedulingEfficiency": "openmp.scheduling",
    "ompSerializationEfficiency": "openmp.serialisation",
    "deviceOffloadEfficiency": "host.offload",
    "gpuParallelEfficiency": "device.parallel",
    "gpuLoadBalance": "device.load_balance",
    "gpuCommunicationEfficiency": "device.communication",
    "gpuOrchestrationEfficiency": "device.orchestration",
}
COUNTS = {"numCpus": "ranks", "numMpiRanks": "ranks", "numNodes": "nodes", "numGpus": "devices"}
#: What is not counted here: without PAPI, TALP has 0, too.
NOT_COUNTED = (
    *("cycles", "instructions", "numResets", "numMpiCalls", "numOmpParallels", "numOmpTasks"),
    *("numGpuRuntimeCalls", "mpiWorkerIdleTime", "ompLoadImbalanceTime", "ompSchedulingTime"),
    "ompSerializationTime",
)


def write_talp_files(study: Study, folder: Path) -> list[Path]:
    """Write a file for each run below a folder, which TALP-Pages is given, and return their paths.
    They have the regions that all runs have, as it stops where one lacks some.
    """
    runs = study["runs"]
    names = [
        name for name in study.get("regions") or () if all(run["regions"].get(name) for run in runs)
    ]
    paths: list[Path] = []
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for number, run in enumerate(runs, 1):
        application = {WHOLE: _describe(run, run["metrics"], measure_focus(run))}
        application |= {
            name: _describe(run, run["regions"][name], run["regions"][name]["elapsed_ns"])
            for name in names
        }
        content = {
            "dlbVersion": DLB,
            "timestamp": now,
            "resources": {
                **{name: run[key] for name, key in COUNTS.items()},
                "numAvailableCpus": run["ranks"],
            },
            "Application": application,
        }
        paths.append(folder / study["scaling"]["used"] / f"{name_file(number, run)}.json")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        write_complete_file(paths[-1], json.dumps(content, indent=1))
    return paths


def _describe(run: Mapping[str, Any], metrics: Mapping[str, Any], elapsed: float) -> dict[str, Any]:
    """Return what TALP says of a region. elapsed: its time (ns)."""
    hosts, devices = run["ranks"], run["devices"]
    known = {name: ROW_OF[path].find_value(metrics) for name, path in EFFICIENCIES.items()}
    shares = {name: 1.0 if value is None else value for name, value in known.items()}
    outside = shares["mpiParallelEfficiency"] * hosts * elapsed
    useful = shares["parallelEfficiency"] * hosts * elapsed
    least_mpi = elapsed * (1 - shares["mpiCommunicationEfficiency"])
    most_active = shares["gpuOrchestrationEfficiency"] * elapsed
    return {
        **{name: run[key] for name, key in COUNTS.items()},
        "avgCpus": float(hosts),
        **dict.fromkeys(NOT_COUNTED, 0),
        "numMeasurements": max(1, run["interval"]["iterations"]),
        "elapsedTime": round(elapsed),
        "usefulTime": round(useful),
        "mpiTime": round(hosts * elapsed - outside),
        "gpuRuntimeTime": round(outside - useful),
        "minMpiNormdProc": least_mpi,
        "minMpiNormdNode": least_mpi,
        "gpuUsefulTime": round(shares["gpuParallelEfficiency"] * devices * elapsed),
        "maxGpuUsefulTime": round(shares["gpuCommunicationEfficiency"] * most_active),
        "maxGpuActiveTime": round(most_active),
        **shares,
    }
