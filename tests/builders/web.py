"""Web servers on this machine that speak TLS under any name, with an authority of their own that clients may trust."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[BaseHTTPRequestHandler], None]


class Authority:
    """Signs certificates; `file` holds its own, for SSL_CERT_FILE."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("aril test authority", self._key, (), is_authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *names: str) -> ssl.SSLContext:
        """What a server needs to be those names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pair(*names))
        return context

    def pair(self, *names: str) -> Path:
        """A file with a key and the certificate of those names."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._sign(names[0], key, names).public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{names[0]}.pem"
        file.write_bytes(secret + signed)
        return file

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, names: tuple[str, ...], *, is_authority: bool = False
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if is_authority else self._certificate.subject
        today = datetime.datetime.now(datetime.UTC)
        draft = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(today - datetime.timedelta(days=1))
            .not_valid_after(today + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            draft = draft.add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        return draft.sign(self._key, hashes.SHA256())


class Site(ThreadingHTTPServer):
    """Answers paths with bytes, or lets a function answer; `seen` are the paths that were asked for."""

    daemon_threads = True

    def __init__(self, address: str, pages: Mapping[str, bytes | Answer]) -> None:
        super().__init__((address, 0), _Handler)
        self.pages = dict(pages)
        self.seen: list[str] = []
        self.num_connections = 0
        self.port = self.server_address[1]

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        """Count it."""
        self.num_connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


@contextmanager
def site(
    authority: Authority, name: str, pages: Mapping[str, bytes | Answer], *, at: str = "127.0.0.1"
) -> Iterator[Site]:
    """A server that is `name`, for a while."""
    server = Site(at, pages)
    server.socket = authority.context(name, at).wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def redirect(target: str) -> Answer:
    """Sends whoever asks elsewhere."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Never stops."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1 << 16))


def closing(content: bytes) -> Answer:
    """Answers and hangs up, so that whoever asks next has to connect anew."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(content)

    return answer


class _Handler(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        page = self.server.pages.get(self.path)
        if callable(page):
            page(self)
            return
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write(page or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
