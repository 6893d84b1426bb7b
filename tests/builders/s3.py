"""A real S3 server in a process of its own (moto's), with one empty bucket. It forgets everything when it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import httpx

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
BUCKET = "aril-test"
SERVER = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"


@dataclass(frozen=True, slots=True)
class S3:
    """A running server."""

    url: str
    numbers: Iterator[int]

    @property
    def environment(self) -> dict[str, str]:
        """What lets a client in."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def new_place(self) -> str:
        """The URL of a prefix under which there is nothing yet."""
        return f"s3://{BUCKET}/place{next(self.numbers)}"


@contextmanager
def running_s3() -> Iterator[S3]:
    """Start a server, and stop it afterwards."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        yield S3(url, count())
    finally:
        process.kill()
        process.communicate()
