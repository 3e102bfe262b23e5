"""The pods' network of a local cluster."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from e2e.local import networks


def test_nodes_share_a_bridge_and_no_address() -> None:
    ranges = []
    for node in (1, 2):
        (bridge,) = networks.cni(node, Path("/state"))["plugins"]
        assert bridge["bridge"] == networks.BRIDGE
        ((given,),) = bridge["ipam"]["ranges"]
        ranges.append((IPv4Address(given["rangeStart"]), IPv4Address(given["rangeEnd"])))
    for start, end in ranges:
        assert start in IPv4Network(networks.POD_RANGE)
        assert start <= end
        assert not start <= IPv4Address(networks.GATEWAY) <= end
    (_, end), (start, _) = ranges
    assert end < start


def test_no_service_or_pod_can_get_a_fixed_address() -> None:
    services = IPv4Network(networks.SERVICE_RANGE)
    assert IPv4Address(networks.API_ADDRESS) == next(services.hosts())
    assert IPv4Address(networks.DNS_ADDRESS) not in services
    assert IPv4Address(networks.DNS_ADDRESS) not in IPv4Network(networks.POD_RANGE)
