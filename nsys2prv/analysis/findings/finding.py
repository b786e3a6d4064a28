"""What a finding is, and the kinds of findings."""

from __future__ import annotations

from html import escape
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

#: Kind -> what it means, for the glossary.
KINDS = {
    "straggler": "a rank that is usually the last at collectives, so that the others wait for it",
    "slow_host": "all ranks of one host are usually last: what they share is slow",
    "slow_link": "a group of ranks takes longer than its peers to move the same data",
    "hiccup": "a rank that was held up once, or a few times, for much longer than usual",
    "imbalance": "ranks wait for each other, and not always for the same one",
    "exposed_communication": "devices move data between ranks without computing",
    "exposed_copies": "devices copy or set memory and do nothing else",
    "blocked_by_call": "devices are idle while their hosts wait in a call that synchronises",
    "launch_bound": "devices are idle while their hosts are in other CUDA API calls",
    "host_mpi": "devices are idle while their hosts are in MPI",
    "host_nccl": "devices are idle while their hosts are in NCCL calls",
    "host_io": "devices are idle while their hosts read or write files, or the network",
    "host_work": "devices are idle while their hosts are in no recorded call: they compute",
    "no_tensor_cores": "matrix products run without tensor cores",
    "critical_path": "what the critical path consists of, and how much of it no device works (only with `--only critical_path`)",
}


class Finding(Struct, frozen=True):
    """One cause that holds the job back."""

    # one of KINDS
    kind: str
    # one sentence: who and what
    title: str
    # share of the job's time (of its steady state, where one was found) that would be gained at
    # most if the cause were removed
    share: float
    # whose fault it is, the culprit first; empty where it is nobody's
    ranks: tuple[int, ...] = ()
    # their GPUs, as "host GPU number"
    devices: tuple[str, ...] = ()
    # what was measured, a sentence each
    evidence: tuple[str, ...] = ()
    # what to do
    advice: str = ""
    # Paraver views that show it (nsys2prv cfgs)
    views: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"<Finding {self.kind}, costs up to {self.share:.1%}: {self.title}>"

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{escape(line)}</li>" for line in (*self.evidence, self.advice) if line
        )
        return f"<p><b>{escape(self.title)}</b> (costs up to {self.share:.1%} of the time)</p><ul>{lines}</ul>"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of(cls, found: dict[str, Any]) -> Finding:
        """Return the finding that :meth:`as_dict` wrote."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**values)
