"""TLS from files: read and tried before anything else of a server, so that what is wrong with them is said at once."""

from __future__ import annotations

import ssl

from ..core.errors import InvalidRequest
from ..server.config import ServerConfig


def tls_of(config: ServerConfig) -> ssl.SSLContext | None:
    """What the flags ask for; None is plain HTTP. Raises InvalidRequest that names the flag."""
    if config.ssl_certfile is None:
        for flag, value in (("--ssl-keyfile", config.ssl_keyfile), ("--ssl-ca-certs", config.ssl_ca_certs)):
            if value is not None:
                raise InvalidRequest(f"{flag} needs --ssl-certfile, the server's certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, config.ssl_certfile, config.ssl_keyfile)
    if config.ssl_ca_certs is not None:
        _load_authorities(context, config.ssl_ca_certs)
    elif config.ssl_cert_reqs != ssl.CERT_NONE:
        raise InvalidRequest(f"--ssl-cert-reqs {config.ssl_cert_reqs} needs --ssl-ca-certs, who signs clients")
    context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    for flag, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        _check_readable(flag, path)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # else it would ask whoever sits at the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidRequest(f"--ssl-keyfile {key} is not the key of --ssl-certfile {certificate}") from None
        where = f"--ssl-certfile {certificate}" + (f" and --ssl-keyfile {key}" if key else "")
        raise InvalidRequest(f"{where}: no certificate with its key, unencrypted, in PEM: {_words(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_readable("--ssl-ca-certs", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise InvalidRequest(f"--ssl-ca-certs {path}: no certificates in PEM: {_words(error)}") from None


def _check_readable(flag: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: {error.strerror}") from None


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
