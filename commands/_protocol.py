"""uvicorn's HTTP/1.1, but that what is no request is refused as every wrong request is: in JSON, by its number."""

from __future__ import annotations

import json
import sys
import uuid
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..core.http_status import shape
from ..server.request_ids import REQUEST_ID

CODES = {HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large"}


class Protocol(H11Protocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 has just refused, and hang up."""
        error = sys.exc_info()[1]
        status = HTTPStatus(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)
        told = f"this is no HTTP/1.1 request that the server reads: {error or msg}"
        body = json.dumps(shape(told, status=400, code=CODES.get(status, "invalid_http"))).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            REQUEST_ID: uuid.uuid4().hex,
        }
        response = h11.Response(status_code=status, headers=list(headers.items()), reason=status.phrase)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
