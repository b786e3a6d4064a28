"""What the tables of an export are for, and why some are not translated."""

from __future__ import annotations

#: Tables that describe the report or hold what other tables refer to: no events of their own.
DESCRIPTIVE = ("ENUM_", "TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "StringIds", "ThreadNames", "PROCESSES", "ProcessStreams",
               "ANALYSIS_", "NVTX_PAYLOAD_", "NVTX_SCOPES", "DYNAMIC_NVTXPAYLOAD_",
               "NVTX_EVENTS_PAYLOAD_SCHEMAS", "NVTX_EXPORT_TRANSLATION", "SystemInfo", "UnwindMethodType", "MPI_RANKS", "MPI_COMMUNICATORS",
               "NIC_ID_MAP", "NET_IB_", "GENERIC_EVENT_SOURCES", "GENERIC_EVENT_TYPE", "UCP_WORKERS")
#: Tables that `nsys stats` and scripts leave behind in an export.
LEFT_BEHIND = ("NvtxPushPopRanges", "DomainStrings", "MemcpyOperationStrings", "estEnd", "me", "ms")
CALL_CHAINS = ("OSRT_CALLCHAINS", "CUDA_CALLCHAINS")


def purpose(table: str) -> str:
    """Why a table that no kind of event reads is not translated; "" for tables that hold no events."""
    if table.startswith(DESCRIPTIVE):
        return ""
    if table in LEFT_BEHIND or table.endswith("Stats"):
        return "derived from other tables by nsys stats"
    if table in CALL_CHAINS:
        return "call stacks, which Paraver has no place for"
    return "this version has no kind of event for it"
