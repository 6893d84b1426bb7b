"""vLLM's flags about adapters that mean something here; the others stand in _elsewhere.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import Conflict, InvalidRequest
from ..core.log import event, get_logger

if TYPE_CHECKING:
    from ..admin_api.adapters import AdapterService

log = get_logger(__name__)
TRIES = 5
FIELDS = ("name", "path", "base_model_name")


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter named on the command line. `base`, if given, must be the id of the served base."""

    name: str
    path: Path
    base: str | None = None

    @classmethod
    def of(cls, text: str) -> Iterable[LoraModule]:
        """`name=path`, or a JSON object or list of them as vLLM takes them; raises InvalidRequest."""
        name, sign, path = text.partition("=")
        if sign and not text.lstrip().startswith(("{", "[")):
            return [cls(name, _folder(name, path))]
        try:
            found = json.loads(text)
        except ValueError as error:
            raise _wrong(f"{text!r} is neither name=path nor JSON: {error}") from None
        return [cls._of_json(each) for each in (found if isinstance(found, list) else [found])]

    def check_base(self, served: str) -> None:
        """Raises InvalidRequest when it is said to be of another base."""
        if self.base not in (None, served):
            raise _wrong(f"{self.name}: base_model_name {self.base!r} is not the served {served!r}")

    @classmethod
    def _of_json(cls, said: Any) -> LoraModule:
        if not isinstance(said, dict) or not set(said) <= set(FIELDS) or not {"name", "path"} <= set(said):
            raise _wrong(f"{json.dumps(said)} is no object with name, path and perhaps base_model_name")
        if not all(isinstance(value, str) for value in said.values() if value is not None):
            raise _wrong(f"{json.dumps(said)}: every value is a string")
        return cls(said["name"], _folder(said["name"], said["path"]), said.get("base_model_name"))


def add_lora_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of vLLM about adapters."""
    group = parser.add_argument_group("adapters, as in vLLM")
    group.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        metavar="NAME=PATH",
        help="adapters to upload at the start, each a PEFT folder on this machine; also vLLM's JSON form",
    )
    group.add_argument("--enable-lora", action="store_true", help="says what is so anyway: adapters are always served")
    group.add_argument(
        "--max-loras", dest="max_adapters", metavar="ADAPTERS", default=argparse.SUPPRESS, help="--max-adapters"
    )


def lora_modules(given: Sequence[str] | None) -> tuple[LoraModule, ...]:
    """What --lora-modules names; raises InvalidRequest, also for a name that is given twice."""
    found = [module for text in given or () for module in LoraModule.of(text)]
    names = [module.name for module in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _wrong(f"{', '.join(sorted(twice))}: given twice")
    return tuple(found)


async def register_modules(service: AdapterService, modules: Iterable[LoraModule]) -> None:
    """Let each name mean the bytes in its folder from now on; the same bytes again change nothing.

    Raises InvalidRequest naming the adapter that cannot be served: then nothing should be.
    """
    for module in modules:
        module.check_base(service.catalog.base)
        try:
            await _upload(service, module)
        except InvalidRequest as error:
            raise _wrong(f"{module.name}: {error.message}") from error
        log.info(event("lora_module_registered", adapter=module.name, path=module.path))


async def _upload(service: AdapterService, module: LoraModule) -> None:
    for left in reversed(range(TRIES)):
        try:
            await service.upload_folder(module.name, module.path)
            return
        except Conflict:  # another server on the same database registers it too
            if not left:
                raise


def _folder(name: str, path: str) -> Path:
    folder = Path(path).expanduser()
    if not name or not path or not folder.is_dir():
        raise _wrong(f"{name}: no folder {path!r}; it takes a PEFT folder on this machine")
    return folder


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"--lora-modules: {what}", param="lora_modules")
