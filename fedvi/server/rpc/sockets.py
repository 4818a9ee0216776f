"""Addresses of a server's local socket; imports little, so that operators' commands start in 0.3 s."""

import os
from pathlib import Path

from fedvi import errors

__all__ = ["SOCKET", "check_address", "socket_address"]

SOCKET = "admin.sock"
"""The socket's name within a server's folder; its file permissions control access."""

# The longest path of a socket, in bytes: 108 on Linux, 104 on a Mac, with a closing zero.
_LONGEST_PATH = 100


def check_address(option: str, address: str) -> None:
    """Refuses an address that gRPC would misread: without a port, or with one too large.

    Raises:
      ConfigError: it is not HOST:PORT or, for IPv6, [HOST]:PORT.
    """
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    is_bare = (host.startswith("[") and host.endswith("]")) or ":" not in host
    if not host or not is_bare or not is_number or int(port) > 65535:
        raise errors.ConfigError(
            f"{option} is {address!r:.100}, expected HOST:PORT with a port up to 65535",
            "such as 0.0.0.0:7443 or [::]:7443; port 0 takes a free one",
        )


def socket_address(folder: Path, name: str = SOCKET) -> str:
    """Returns the address of a socket in a server's folder, for gRPC; no name is longer than ``SOCKET``.

    Raises:
      ConfigError: both the absolute and the relative path are too long for a socket.
    """
    absolute = folder.absolute() / name
    for path in (str(absolute), os.path.relpath(absolute)):
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            return f"unix:{path}"
    raise errors.ConfigError(
        f"the path of {absolute} is too long for a socket, expected at most {_LONGEST_PATH} bytes",
        "put the state into a folder with a shorter path, or start from nearer by",
    )
