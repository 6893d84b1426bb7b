"""Every query on adapters, revisions and aliases. Each function is a piece of one transaction; none of them commits.

Whoever changes anything of an adapter holds the lock of its row first, so that servers on one database take turns.
"""

from .adapters import Wanted, acting, adapter, delete, describe, page
from .aliases import activate, alias, deactivate, remove_alias, rollback, set_alias
from .gate import LEASE_SECONDS, abandon_all, become_ready, become_rejected, claim, postpone, renew
from .revisions import (
    Facts,
    Particulars,
    check_again,
    chosen,
    is_needed,
    needed_digests,
    recheck,
    record,
    retire,
    retire_older,
    revision,
)
from .snapshot import Judge, all_listed, anywhere, listed, registry

__all__ = [
    "LEASE_SECONDS",
    "Facts",
    "Judge",
    "Particulars",
    "Wanted",
    "abandon_all",
    "acting",
    "activate",
    "adapter",
    "alias",
    "all_listed",
    "anywhere",
    "become_ready",
    "become_rejected",
    "check_again",
    "chosen",
    "claim",
    "deactivate",
    "delete",
    "describe",
    "is_needed",
    "listed",
    "needed_digests",
    "page",
    "postpone",
    "recheck",
    "record",
    "registry",
    "remove_alias",
    "renew",
    "retire",
    "retire_older",
    "revision",
    "rollback",
    "set_alias",
]
