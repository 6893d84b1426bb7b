"""How long a request may get here, and the words for one that is too long from its start."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import InvalidRequest
from .request import Request


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens: the model's context, and all that the KV cache holds."""

    context: int
    kv_cache: int

    @property
    def most(self) -> int:
        """Of prompt and output together."""
        return min(self.context, self.kv_cache)

    def check(self, request: Request) -> None:
        """Raises InvalidRequest when it can never run here."""
        num_prompt, pooled = len(request.prompt), request.params.pooling is not None
        if num_prompt == 0:
            raise InvalidRequest("the prompt is empty; it takes at least one token", param="prompt")
        most = self.most if pooled else self.most - 1
        if num_prompt > most:
            what = "can be embedded" if pooled else "leave room for an answer"
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens, and at most {most} {what}: "
                f"the context is {self.context} tokens and the KV cache holds {self.kv_cache}",
                param="prompt",
                code="context_length_exceeded",
            )
