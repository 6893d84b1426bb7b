"""An application without a network: an engine, adapters from folders, and whoever asks it from within this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tqdm import tqdm

from ..admin_api.batches.asking import Asker
from ..admin_api.catalog import AdapterCatalog
from ..admin_api.listing import Listed
from ..admin_api.residency import Residency
from ..core.batch_lines import Reply
from ..core.callers import LOCAL
from ..engine.aio import AsyncEngine
from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..engine.folders import AdapterFolders
from ..server.app import create_app
from ..server.config import ServerConfig
from ..server.formats import Formats
from ..server.inside import Inside
from ._lora_flags import LoraModule

if TYPE_CHECKING:
    from ._batch_files import Answers, Requests


def answer_all(
    config: EngineConfig,
    manners: ServerConfig,
    modules: Sequence[LoraModule],
    requests: Requests,
    answers: Answers,
) -> None:
    """Answer every request that has no answer yet. Raises InvalidRequest for an adapter that cannot be served."""
    folders = AdapterFolders({module.name: module.path for module in modules})
    engine = Engine(config, adapter_folder=folders.home)
    folders.check(engine)
    client = AsyncEngine(engine)
    for module in modules:
        module.check_base(client.model.id)
    catalog = AdapterCatalog(client.model.id, Residency(client))
    catalog.put_all(Listed.alone(ref) for ref in folders.refs.values())
    formats = Formats.of(client.text, manners.tool_call_parser, manners.reasoning_parser)
    inside = Inside(create_app(client, catalog, formats=formats, trusts_templates=manners.trust_request_chat_template))
    asyncio.run(_answer(client, inside, config.max_num_seqs, requests, answers))


async def _answer(client: AsyncEngine, inside: Inside, at_once: int, requests: Requests, answers: Answers) -> None:
    try:
        with tqdm(
            total=len(requests),
            initial=len(answers.done),
            desc="requests",
            dynamic_ncols=True,
            disable=None,  # where nobody watches
        ) as bar:

            async def keep(reply: Reply) -> None:
                answers.add(reply)
                bar.update()

            room = asyncio.Semaphore(at_once)
            asker = Asker(inside, lambda: LOCAL, keep, room=room, at_once=at_once)
            await asker.run(requests.besides(answers.done))
    finally:
        await client.close()
