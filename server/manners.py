"""What an application is like to its clients, beside what it answers: one record of it, for who puts it together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from .closing import Closing
from .config import ServerConfig
from .counted import Counted, count
from .flights import Flights
from .messages.errors import Translated
from .patience import Patience
from .records import Recorded, Writer
from .request_ids import REQUEST_ID, RequestIds

EXPOSED = (REQUEST_ID, "x-aril-adapter", "x-aril-ignored-fields", "retry-after")  # what a page may read of an answer


@dataclass(frozen=True, slots=True)
class Cors:
    """The pages that may ask from a browser, and how."""

    origins: Sequence[str] = ()
    methods: Sequence[str] = ("*",)
    headers: Sequence[str] = ("*",)
    credentials: bool = False

    @classmethod
    def of(cls, config: ServerConfig) -> Cors:
        """As the flags say."""
        methods, headers = config.allowed_methods, config.allowed_headers
        return cls(config.allowed_origins, methods, headers, config.allow_credentials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """As much may be held as comes, nothing is written down and no page may ask, unless it says so here."""

    flights: Flights = field(default_factory=Flights)
    writers: Sequence[Writer] = ()  # who is told what each request came to
    keeps_text: bool = False  # whether they are told of its text
    cors: Cors = Cors()
    body_seconds: float | None = None  # in which a body may bring next to nothing
    root_path: str = ""  # that a proxy serves all under
    count: Callable[[str, str], None] = count  # is told route and status of each answer as it begins

    def teach(self, app: FastAPI) -> None:
        """Wrap `app`, whose failures are answers already; the last is the outermost."""
        if self.body_seconds is not None:
            app.add_middleware(Patience, seconds=self.body_seconds)
        app.add_middleware(Closing, flights=self.flights)
        app.add_middleware(Translated)
        app.add_middleware(Counted, count=self.count)
        app.add_middleware(RequestIds)
        if self.cors.origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self.cors.origins,
                allow_methods=self.cors.methods,
                allow_headers=self.cors.headers,
                allow_credentials=self.cors.credentials,
                expose_headers=EXPOSED,
            )
        if self.writers:
            app.add_middleware(Recorded, writers=self.writers, keeps_text=self.keeps_text)
