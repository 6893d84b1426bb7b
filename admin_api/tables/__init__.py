"""The registry's tables, all of them."""

from .adapters import DEFAULT_ALIAS, Adapter, Alias, Revision, State
from .arrivals import Arrival, Stage
from .base import NAME_LENGTH, Base, now
from .batches import UNDER_WAY, Batch, BatchState, File, FilePiece
from .records import AuditLine, Flush, Reply, Spending, Usage
from .responses import StoredResponse
from .stores import Store
from .tenants import Key, Tenant

__all__ = [
    "DEFAULT_ALIAS",
    "NAME_LENGTH",
    "UNDER_WAY",
    "Adapter",
    "Alias",
    "Arrival",
    "AuditLine",
    "Base",
    "Batch",
    "BatchState",
    "File",
    "FilePiece",
    "Flush",
    "Key",
    "Reply",
    "Revision",
    "Spending",
    "Stage",
    "State",
    "Store",
    "StoredResponse",
    "Tenant",
    "Usage",
    "now",
]
