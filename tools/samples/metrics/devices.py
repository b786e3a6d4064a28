"""The network: interfaces of every host (one InfiniBand NIC per GPU, one for Ethernet), and the switch between them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from ..cluster import VM_ID
from ..options import Options
from ..rows import Report

ETHERNET, INFINIBAND = 1, 2
"""ENUM_NET_LINK_TYPE."""

_CONNECTX_7, _CONNECTX_6_DX, _VENDOR = 4129, 4125, 5555
_MOST_NICS = 8


@dataclass(frozen=True)
class Nic:
    """A network interface; ``number`` is its nicId, ``guid`` its GUID as exports write it (signed), ``port`` the
    switch's port it is plugged into.
    """

    host: int
    number: int
    name: str
    guid: int
    device: int
    link: int
    port: int

    @property
    def global_id(self) -> int:
        return VM_ID | self.number


@dataclass(frozen=True)
class Switch:
    guid: int
    name: str
    lid: int


def nics_of(options: Options, host: int) -> list[Nic]:
    """The network interfaces of a host, InfiniBand first."""
    rng = np.random.default_rng([options.seed, 23, host])
    base = int(rng.integers(1 << 40)) << 20
    count = min(options.gpus_per_host, _MOST_NICS)
    found = [
        Nic(host, number, f"mlx5_{number}", _signed(0xA088 << 48 | base >> 12 | number * 8), _CONNECTX_7, INFINIBAND,
            1 + host * count + number)
        for number in range(count)
    ]  # fmt: skip
    guid = _signed(0x5C25 << 48 | base >> 12 | 0x800)
    return [*found, Nic(host, count, f"mlx5_{count}", guid, _CONNECTX_6_DX, ETHERNET, 0)]


def nic_of_gpu(options: Options, gpu: int) -> int:
    """The number of the interface through which a GPU of a host talks."""
    return gpu % min(options.gpus_per_host, _MOST_NICS)


def switch_of(options: Options) -> Switch:
    rng = np.random.default_rng([options.seed, 29])
    return Switch(_signed(0xFC6A << 48 | int(rng.integers(1 << 46))), "MF0;ib-leaf01:MQM9700/U1", 1)


def nics_as_json(report: Report) -> str:
    """What the report says of the interfaces among the facts about its system."""
    if not report.options.nic_metrics:
        return "{}"
    nics = [
        {"Id": nic.number, "Name": nic.name, "DeviceId": nic.device, "VendorId": _VENDOR, "LinkLayer": nic.link, "GUID": str(nic.guid)}
        for nic in nics_of(report.options, report.rank.host_index)
    ]
    return json.dumps({"Nics": nics}, separators=(",", ":"))


def _signed(number: int) -> int:
    """A 64-bit number as SQLite keeps it."""
    return number - (1 << 64) if number >> 63 else number
