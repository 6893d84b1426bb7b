"""All that a server may ask of an engine, wherever the engine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..lora.adapter import AdapterRef
from .params import Pooling, SamplingParams
from .request import Chunk
from .text import Text


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served base."""

    id: str
    source: str  # what the operator named: folder, file or hub id
    max_model_len: int
    context: int  # what max_model_len would be, had the KV cache room for it
    vocab_size: int
    dtype: str
    created: int  # seconds since the epoch
    pooling: Pooling  # of embeddings, where their request does not say
    embedding_sizes: Sequence[int]  # dimensions that embeddings may have; the last is the model's own

    @property
    def limit(self) -> str:
        """How long a request may be, and why, in OpenAI's words, for which some clients look."""
        told = f"This model's maximum context length is {self.max_model_len} tokens"
        if self.max_model_len == self.context:
            return f"{told}."
        return f"{told}, as this server's KV cache holds no more of its {self.context} (--kv-cache-memory)."


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How the engine stands at this moment."""

    alive: bool
    running: int
    waiting: int
    running_adapters: tuple[str, ...]  # names that a running request uses
    waiting_adapters: tuple[str, ...]  # names that a waiting request wants
    total_blocks: int
    free_blocks: int  # blocks that no request holds, cached ones included
    loaded_adapters: tuple[AdapterRef, ...]  # those that resolve to bytes in the engine's hands
    adapter_slots: int  # most adapters in device memory
    adapter_slots_used: int  # adapters in device memory
    adapter_slots_busy: int  # those of them that a request holds
    adapter_bytes_used: int
    adapter_bytes_total: int


class EngineFacts(Protocol):
    """What it takes to read a request: the model, its words, its defaults."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def text(self) -> Text: ...

    @property
    def default_params(self) -> dict[str, object]:
        """SamplingParams fields that generation_config.json sets (temperature, top_p, ...); a request's own win."""


class EngineClient(EngineFacts, Protocol):
    """The engine as the faces see it. Every method may be called from the event loop; none blocks it."""

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
        salt: str = "",
        owner: str = "",
    ) -> AsyncIterator[Chunk]:
        """Chunks of all `params.n` choices, until each has finished.

        Raises InvalidRequest before the first chunk (prompt empty, too long, token outside the vocabulary, adapter not
        loaded) and EngineDead. Requests with different salts share no cached prefix; owners that wait at one priority
        get equal shares of the engine. Closing the iterator early aborts the request.
        """

    async def abort(self, request_id: str) -> None: ...

    async def load_adapter(self, ref: AdapterRef, *, pinned: bool = False) -> None:
        """Make `ref` usable; its bytes must be in the store, or NotFound is raised. They are read and checked when a
        request needs them, and what is wrong with them is that request's failure.

        One that is being unloaded stays, and whoever waits for its end waits no longer.
        """

    async def unload_adapter(self, ref: AdapterRef) -> None:
        """Stop taking requests for `ref`, wait for the last running one, free its memory. Unknown refs are fine."""

    def prepare(self) -> None:
        """Have made ready, on other threads, what the first constraint would wait for; for who serves strangers."""

    def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...
