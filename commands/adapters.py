"""`aril adapters ...`: the adapters of a running server, through its admin API."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ._adapters import aliases, changing, showing, uploading
from ._admin import Act, add_action, add_actions, run
from ._command import Command

ACTIONS: tuple[tuple[str, Act, Callable[[argparse.ArgumentParser], None], str], ...] = (
    ("upload", uploading.upload, uploading.add_upload_flags, "add an adapter, or a new revision of one"),
    ("list", showing.list_all, showing.add_list_flags, "all adapters"),
    ("show", showing.show, showing.add_show_flags, "an adapter, a revision of it or an alias"),
    ("wait", uploading.wait, uploading.add_wait_for, "wait for the gate: 0 when ready, 1 when rejected"),
    ("alias", aliases.alias, aliases.add_alias_flags, "show an alias, or point it somewhere"),
    ("canary", aliases.canary, aliases.add_canary_flags, "let an alias send a few requests to another revision"),
    ("shadow", aliases.shadow, aliases.add_shadow_flags, "let a revision answer copies of an alias's requests"),
    ("rollback", aliases.rollback, aliases.add_alias_name, "take the last move of an alias back"),
    ("activate", changing.activate, changing.add_activate_flags, "let the bare name mean a revision"),
    ("deactivate", changing.deactivate, changing.add_name, "let the bare name mean nothing"),
    ("recheck", changing.recheck, changing.add_recheck_flags, "have what was checked on another base checked on this"),
    ("retire", changing.retire, changing.add_revision, "make a revision history"),
    ("edit", changing.edit, changing.add_edit_flags, "change its description, or who may use it"),
    ("delete", changing.delete, changing.add_name, "forget it with all its revisions"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action for each thing that the admin API does."""
    actions = add_actions(parser)
    for name, act, add_flags, help in ACTIONS:
        add_flags(add_action(actions, name, act, help))


EXPORT = Command("upload, list, alias and retire the adapters of a running server", add_arguments, run)
