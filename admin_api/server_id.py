"""What one life of a server calls itself where several share a database: leases, audit, logs."""

from __future__ import annotations

import os
import secrets
import socket

HOST_LENGTH = 40  # so that the whole fits a column of 64


def new_server_id() -> str:
    """host:pid:random. A server that is started again is another one."""
    return f"{socket.gethostname()[:HOST_LENGTH]}:{os.getpid()}:{secrets.token_hex(4)}"
