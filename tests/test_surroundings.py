"""What tests/conftest.py promises to every test."""

from __future__ import annotations

import socket
import warnings

import jax
import jax.numpy as jnp
import pytest


def test_eight_cpu_devices() -> None:
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8


def test_ranks_are_not_promoted_silently() -> None:
    with pytest.raises(ValueError, match="rank"):
        _ = jnp.ones((2, 3)) + jnp.ones(3)


def test_warnings_are_errors() -> None:
    with pytest.raises(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)


def test_other_machines_cannot_be_reached() -> None:
    for address in (("192.0.2.1", 80), ("an-index.invalid", 443)):  # reserved, never assigned
        with socket.socket() as sock, pytest.raises(RuntimeError, match="tests use this machine"):
            sock.connect(address)


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.connect(server.getsockname())
