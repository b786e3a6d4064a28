"""Data of studies with known figures."""

from typing import Any


def make_run(devices: int, parallel: float, scalability: float, **others: Any) -> dict[str, Any]:
    """Return a run of 9 iterations with figures that multiply."""
    elapsed = 8e6 / devices / parallel / scalability
    device = {
        "global": parallel * scalability,
        "parallel": parallel,
        "load_balance": 1.0,
        "load_balance_in": 1.0,
        "load_balance_out": 1.0,
        "communication": parallel / 0.98,
        "orchestration": 0.98,
        "computation_scalability": scalability,
    }
    regions = {
        name: {"elapsed_ns": 9 * elapsed * part, "lost_ns": elapsed * part * lost, "device": device}
        for name, part, lost in (("forward", 0.3, 0.1), ("backward", 0.6, 0.5))
    }
    return {
        "name": f"runs/job_{devices}",
        "label": f"job_{devices}",
        "ranks": devices,
        "devices": devices,
        "nodes": devices // 2,
        "gpu_models": {"A100": devices},
        "interval": {
            "begin_ns": 0,
            "end_ns": round(9 * elapsed),
            "iterations": 9,
            "what": "9 of 10 `it`",
        },
        "metrics": {
            "elapsed_ns": elapsed,
            "speedup": 2e6 / elapsed,
            "efficiency": 8e6 / elapsed / devices,
            "device": device,
            "host": {"parallel": 0.3, "offload": 0.3},
        },
        "regions": regions,
        "sums": {"elapsed_ns": elapsed, "useful_ns": 8e6 / scalability, "hosts": devices},
        "iteration_ns": [round(elapsed)] * 9,
        **others,
    }


def make_study_data() -> dict[str, Any]:
    """Return the data of a study of three runs."""
    runs = [make_run(4, 0.95, 1.0), make_run(8, 0.7996, 0.9), make_run(16, 0.55, 0.8)]
    return {
        "format": "nsys2prv study 1",
        "scaling": {"detected": "strong", "used": "strong", "why": "work ~ devices^0.05"},
        "reference": runs[0]["name"],
        "warnings": [],
        "regions": ["forward", "backward"],
        "runs": runs,
    }
