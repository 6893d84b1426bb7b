"""What an operator decides about the registry; checked once, passed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InvalidRequest

DATABASE_FILE = "registry.sqlite3"
KEY_FILE = "admin.key"
MAX_DAYS = 36_500
MIN_RESPONSE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """The registry's options; raises InvalidRequest for a value that cannot work."""

    state_dir: Path
    database_url: str | None = None  # None: SQLite in the state folder
    admin_key: str | None = None  # None: a random one, kept in the state folder
    api_keys: tuple[str, ...] = ()  # of /v1, for the default tenant, beside those of the database
    max_upload_bytes: int = 2 << 30  # of the body, and again of what an archive unpacks to
    adapter_roots: tuple[Path, ...] = ()  # folders that adapters may be read from
    allowed_sources: tuple[str, ...] = ()  # URLs that adapters may be fetched from, each with all that is below
    allowed_addresses: tuple[str, ...] = ()  # that are not public, for https sources
    move_store: bool = False  # let the store be the database's from now on although it had another
    kept_revisions: int = 5  # per adapter; the bytes of older inactive ones are dropped
    max_revisions: int = 100  # of an adapter that are listed; the oldest without bytes are forgotten
    response_days: int = 30  # that responses are kept; 0: none is
    response_bytes: int = 256 << 20  # of the responses that are kept for one tenant
    max_file_bytes: int = 200 << 20  # of /v1/files
    batch_lines: int = 16  # requests of batches that are with the engine at once
    reconcile_seconds: float = 30.0
    retire_grace_seconds: float = 2.0  # a replaced revision stays loaded so long for requests that just resolved it

    def __post_init__(self) -> None:
        if self.admin_key is not None and not self.admin_key.strip():
            raise InvalidRequest("the admin key is empty; give one, or none to have one made", param="admin_key")
        if self.max_upload_bytes < 1 or self.reconcile_seconds <= 0:
            raise InvalidRequest("max_upload_bytes and reconcile_seconds must be positive")
        if self.kept_revisions < 1:
            raise InvalidRequest(f"--kept-revisions {self.kept_revisions} is out of range; it takes 1 or more")
        if self.max_revisions <= self.kept_revisions:
            least = f"it takes more than --kept-revisions, which is {self.kept_revisions}"
            raise InvalidRequest(f"--max-revisions {self.max_revisions} is out of range; {least}")
        if not 0 <= self.response_days <= MAX_DAYS:
            raise InvalidRequest(f"--response-days {self.response_days} is out of range; it goes from 0 to {MAX_DAYS}")
        if self.response_bytes < MIN_RESPONSE_BYTES:
            raise InvalidRequest(f"--response-bytes {self.response_bytes} is less than {MIN_RESPONSE_BYTES}")

    @property
    def url(self) -> str:
        """The database to use."""
        return self.database_url or f"sqlite:///{self.state_dir.absolute() / DATABASE_FILE}"

    @property
    def is_shared(self) -> bool:
        """Whether several servers may use the database, and with it one store: not when it is a file."""
        return not self.url.startswith("sqlite")

    @property
    def key_path(self) -> Path:
        """Where a key that was made here is kept."""
        return self.state_dir / KEY_FILE
