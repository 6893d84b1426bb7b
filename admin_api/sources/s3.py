"""s3://bucket/prefix: the files of a PEFT folder in a bucket that the server's own keys open."""

from __future__ import annotations

from contextlib import suppress

from ...core.errors import NotFound
from ...lora.objects import Bucket
from ...lora.store import KEPT
from ..origins import Allowed, Order, Origin


class S3Source:
    """Buckets."""

    def check(self, origin: Origin, allowed: Allowed) -> None:
        """Raises Forbidden for what is not allowed."""
        allowed.check(origin)

    def fetch(self, origin: Origin, order: Order) -> str:
        """Download the files that are kept of an adapter."""
        self.check(origin, order.allowed)
        bucket, size = Bucket(str(origin)), 0
        for name in KEPT:
            with suppress(NotFound):
                order.room(origin, size + bucket.size(name))
                with (order.folder / name).open("wb") as file:
                    for piece in bucket.read(name):
                        size += len(piece)
                        order.room(origin, size)
                        file.write(piece)
        if not any(order.folder.iterdir()):
            raise NotFound(f"there is no adapter in {origin}", param="source")
        return str(origin)


EXPORT = S3Source()
