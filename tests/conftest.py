"""What holds in every test: eight virtual CPU devices, strict shapes, no network.

The environment is set here, before any test module can import JAX; pytest-xdist workers load
this file too. `jax_transfer_guard` is left to the tests that need it.
"""

from __future__ import annotations

import os
import socket
from typing import Any

DEVICES = 8

_flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count={DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
for _name in ("WANDB_MODE", "HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED"):
    os.environ[_name] = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}.get(_name, "0")

import hypothesis  # noqa: E402  (after the environment: a strategy module may import JAX)
import pytest  # noqa: E402

hypothesis.settings.register_profile("project", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("project")

_connect = socket.socket.connect
_connect_ex = socket.socket.connect_ex


def _is_here(sock: socket.socket, address: Any) -> bool:
    """Whether `address` lies on this machine: connecting a datagram socket sends nothing."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type & socket.SOCK_DGRAM:
        return True
    host = address[0]
    if host in ("", "localhost") or host == socket.gethostname():
        return True
    with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # only an own address can be bound
        except OSError:
            return False
    return True


def _guarded(real: Any) -> Any:
    def connect(sock: socket.socket, address: Any) -> Any:
        if not _is_here(sock, address):
            raise RuntimeError(f"a test tried to reach {address}; tests use this machine alone")
        return real(sock, address)

    return connect


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Any:
    """Refuse every connection that would leave this machine."""
    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", _guarded(_connect))
    patch.setattr(socket.socket, "connect_ex", _guarded(_connect_ex))
    yield
    patch.undo()
