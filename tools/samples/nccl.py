"""NCCL's NVTX payloads: their schemas and how a value is exported, as JSON text and as binary data.

Schema ids are 2**24 plus NCCL's number for the function, the reduction is an enumeration of its own (ids as in NCCL
2.29); offsets and entry types (5 int, 18 uint64, 22 size_t, or a schema id) are those of real exports. ``binaryData``
is a header of four little-endian 64-bit numbers (domain id, schema id, payload size, payload offset) and then the
payload.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from .cluster import Cluster, Rank
from .program import Domain, Payload

_STATIC_IDS = 1 << 24
REDUCTION_ID = _STATIC_IDS + 24
REDUCTIONS = ("Sum", "Product", "Max", "Min", "Avg")
_INT, _UINT64, _SIZE = 5, 18, 22

_COMM, _BYTES = ("NCCL communicator ID", _UINT64, 0), ("Message size [bytes]", _SIZE, 8)
_REDUCTION, _PEER, _ROOT = ("Reduction operation", REDUCTION_ID, 16), ("Peer rank", _INT, 16), ("Root", _INT, 16)
_INIT = (_COMM, ("No. of ranks", _INT, 8), ("Rank", _INT, 12), ("CUDA device", _INT, 16))
_FORMATS = {_INT: "i", _UINT64: "Q", _SIZE: "Q", REDUCTION_ID: "i"}


@dataclass(frozen=True)
class Schema:
    """A payload schema: entries (name, type, offset in bytes) and the payload's size in bytes."""

    id: int
    size: int
    entries: tuple[tuple[str, int, int], ...]


SCHEMAS = {
    "Init": Schema(_STATIC_IDS + 11, 24, _INIT),
    "Finalize": Schema(_STATIC_IDS + 14, 8, (_COMM,)),
    "AllGather": Schema(_STATIC_IDS + 4, 16, (_COMM, _BYTES)),
    "AllReduce": Schema(_STATIC_IDS + 5, 24, (_COMM, _BYTES, _REDUCTION)),
    "Broadcast": Schema(_STATIC_IDS + 6, 24, (_COMM, _BYTES, _ROOT)),
    "ReduceScatter": Schema(_STATIC_IDS + 7, 24, (_COMM, _BYTES, _REDUCTION)),
    "Reduce": Schema(_STATIC_IDS + 8, 24, (_COMM, _BYTES, _ROOT, ("Reduction operation", REDUCTION_ID, 20))),
    "Send": Schema(_STATIC_IDS + 9, 24, (_COMM, _BYTES, _PEER)),
    "Recv": Schema(_STATIC_IDS + 10, 24, (_COMM, _BYTES, _PEER)),
}
ROOTED = ("Broadcast", "Reduce")


def values(payload: Payload, rank: Rank, cluster: Cluster) -> dict[str, int]:
    """What one rank's call says, by entry name."""
    comm = cluster.communicator(payload.group, rank.rank)
    size, own = len(comm.ranks), comm.ranks.index(rank.rank)
    said = {
        "NCCL communicator ID": comm.hash,
        "Message size [bytes]": payload.bytes,
        "No. of ranks": size,
        "Rank": own,
        "CUDA device": rank.device,
        "Reduction operation": payload.reduction,
        "Peer rank": (own + payload.peer) % size,
        "Root": payload.root % size,
    }
    return {name: said[name] for name, _, _ in SCHEMAS[payload.function].entries}


def as_json(payload: Payload, rank: Rank, cluster: Cluster) -> str:
    """A flat object; the reduction by its name."""
    said: dict[str, int | str] = dict(values(payload, rank, cluster))
    if "Reduction operation" in said:
        said["Reduction operation"] = REDUCTIONS[payload.reduction]
    return json.dumps(said, separators=(",", ":"))


def as_binary(payload: Payload, rank: Rank, cluster: Cluster) -> bytes:
    shape = SCHEMAS[payload.function]
    said = values(payload, rank, cluster)
    body = bytearray(shape.size)
    for name, kind, offset in shape.entries:
        struct.pack_into("<" + _FORMATS[kind], body, offset, said[name])
    return struct.pack("<4Q", Domain.NCCL, shape.id, shape.size, 32) + bytes(body)
