"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from ..core.body import describes
from ..core.callers import Caller
from ..core.errors import InvalidRequest
from . import prompts
from .answers import Text, Tokens
from .body import reads
from .deps import CallerDep, Face, FaceDep, resolved
from .openapi import answers
from .schemas import DetokenizeRequest, TokenizeRequest
from .tool_use import schemas_of, shown

router = APIRouter()


@router.post("/tokenize", openapi_extra=describes(TokenizeRequest), responses=answers(Tokens))
async def tokenize(
    request: Request,
    face: FaceDep,
    caller: CallerDep,
    body: Annotated[TokenizeRequest, Depends(reads(TokenizeRequest))],
) -> dict[str, Any]:
    """Token ids of a text, or of a conversation as its chat template writes it."""
    await _check_model(request, caller, body.model)
    ids = await _ids(face, body)
    strings = [face.engine.text.token_text(token) for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": face.engine.model.max_model_len, "tokens": ids, "token_strs": strings}


@router.post("/detokenize", openapi_extra=describes(DetokenizeRequest), responses=answers(Text))
async def detokenize(
    request: Request,
    face: FaceDep,
    caller: CallerDep,
    body: Annotated[DetokenizeRequest, Depends(reads(DetokenizeRequest))],
) -> dict[str, Any]:
    """The text of token ids, special tokens included."""
    await _check_model(request, caller, body.model)
    prompts.check_tokens(body.tokens, face.engine.model.vocab_size, "tokens")
    text = await asyncio.to_thread(face.engine.text.decode, body.tokens, skip_special_tokens=False)
    return {"prompt": text}


async def _ids(face: Face, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens: the chat template writes the special tokens", param="add_special_tokens"
            )
        schemas_of(body.tools)
        return await prompts.of_messages(face, body.messages, body, tools=shown(body.tools))
    return await asyncio.to_thread(face.engine.text.encode, body.prompt or "", body.add_special_tokens is not False)


async def _check_model(request: Request, caller: Caller, name: str | None) -> None:
    """All adapters share the base's tokenizer, but a name that is not served is still an error."""
    if name is not None:
        await resolved(request, caller, name, None)
