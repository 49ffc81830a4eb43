"""The address that gloo or NCCL would listen on, as selected by the environment."""

from __future__ import annotations

import pytest

from runbook.node_checks import networks


@pytest.mark.parametrize(
    ("variable", "value", "address"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", "127.0.0.1"),
        ("GLOO_SOCKET_IFNAME", "=lo", ""),
        ("GLOO_SOCKET_IFNAME", "^docker", ""),
        ("NCCL_SOCKET_IFNAME", "=lo", "127.0.0.1"),
        ("NCCL_SOCKET_IFNAME", "l", "127.0.0.1"),
    ],
)
def test_only_nccl_takes_signs_before_a_name(monkeypatch, variable, value, address):
    for name in networks.INTERFACE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert networks.chosen_address() == address
