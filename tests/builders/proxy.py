"""A proxy before a server that loses connections: each may carry so many bytes to the server, then it is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

PIECE = 1 << 16


class LosingProxy:
    """`url` is where it listens; `sent` counts what went to the server, `cut` the connections that were lost."""

    def __init__(self, target: str, budgets: Sequence[int]) -> None:
        """The first connections that carry more than PIECE bytes have `budgets`; later ones are not cut."""
        self._target = (urlsplit(target).hostname, urlsplit(target).port)
        self._budgets = list(budgets)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self.cut = 0

    def serve(self) -> None:
        """Until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for work in (self._forth, self._back):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        carried = 0
        with suppress(OSError):
            while piece := client.recv(PIECE):
                server.sendall(piece)
                self.sent += len(piece)
                carried += len(piece)
                if self._budgets and carried > self._budgets[0]:
                    self._budgets.pop(0)
                    self.cut += 1
                    break
        _shut(client, server)
        client.close()  # only then does a client that is still sending hear of it

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(PIECE):
                client.sendall(piece)
        _shut(client, server)


@contextmanager
def losing(target: str, budgets: Sequence[int]) -> Iterator[LosingProxy]:
    """One before `target`, while the context lasts."""
    proxy = LosingProxy(target, budgets)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
