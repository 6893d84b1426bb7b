"""Adapters on the host, ready for the device: read and checked in the background, the longest unused going first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..core.errors import ArilError, Unavailable
from ..core.log import event, get_logger
from ..core.metrics import ADAPTERS, adapter_counter, adapter_histogram, gauge
from .adapter import AdapterRef
from .image import Image

FAILURES = adapter_counter("adapter_read_failures", "Adapters whose files could not be read or served")
HOST_BYTES = gauge("adapter_host_bytes", "Bytes of adapters kept in host memory")
SECONDS = adapter_histogram("adapter_read_seconds", "Time to read an adapter into host memory and check it")
log = get_logger(__name__)


class HostCache:
    """Images by digest, at most `max_bytes` but always the newest. Every method may be called from any thread."""

    def __init__(self, read: Callable[[AdapterRef], Image], max_bytes: int, *, num_threads: int = 1) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="aril-adapters")
        self._lock = threading.Lock()
        self._images: dict[str, Image] = {}  # the longest unused first
        self._awaited: set[str] = set()
        self._errors: dict[str, Exception] = {}
        self._ready: list[Callable[[], None]] = []

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback`, from a thread of the cache, whenever a read has ended, well or not."""
        self._ready.append(callback)

    def prefetch(self, ref: AdapterRef) -> None:
        """Begin to read `ref` unless it is here or on its way. An earlier failure is tried again."""
        with self._lock:
            self._errors.pop(ref.digest, None)
            if ref.digest in self._images or ref.digest in self._awaited:
                return
            self._awaited.add(ref.digest)
        self._threads.submit(self._fetch, ref)

    def get(self, ref: AdapterRef) -> Image | None:
        """The image; None while it is not here. Raises what its reading raised, until `prefetch` or `forget`."""
        with self._lock:
            error = self._errors.get(ref.digest)
            if error is not None:
                raise error.with_traceback(None)
            image = self._images.pop(ref.digest, None)
            if image is not None:
                self._images[ref.digest] = image
            return image

    def forget(self, digest: str) -> None:
        """Drop the image, or the wish for it."""
        with self._lock:
            self._images.pop(digest, None)
            self._errors.pop(digest, None)
            self._awaited.discard(digest)
            HOST_BYTES.set(self._num_bytes())

    def close(self) -> None:
        """End the reading threads; what has not begun is dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _fetch(self, ref: AdapterRef) -> None:
        try:
            with SECONDS.labels(ADAPTERS.label(ref.name)).time():
                image = self._read(ref)
        except Exception as error:  # whatever it is, it belongs to those who want this adapter
            log.warning(event("adapter_not_read", adapter=ref.name, digest=ref.digest, error=error))
            self._fail(ref, error if isinstance(error, ArilError) else _unreadable(ref, error))
        else:
            self._keep(ref.digest, image)
        for callback in self._ready:
            callback()

    def _keep(self, digest: str, image: Image) -> None:
        with self._lock:
            if digest not in self._awaited:
                return
            self._awaited.discard(digest)
            self._images[digest] = image
            while self._num_bytes() > self._max_bytes and len(self._images) > 1:
                del self._images[next(iter(self._images))]
            HOST_BYTES.set(self._num_bytes())

    def _fail(self, ref: AdapterRef, error: ArilError) -> None:
        FAILURES.labels(ADAPTERS.label(ref.name)).inc()
        with self._lock:
            if ref.digest in self._awaited:
                self._awaited.discard(ref.digest)
                self._errors[ref.digest] = error

    def _num_bytes(self) -> int:
        return sum(image.data.nbytes for image in self._images.values())


def _unreadable(ref: AdapterRef, error: Exception) -> Unavailable:
    wrapped = Unavailable(f"adapter {ref.name!r} could not be read: {error}")
    wrapped.__cause__ = error
    return wrapped
