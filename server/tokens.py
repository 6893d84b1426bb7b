"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ..core.body import describes
from ..core.callers import Caller
from ..core.errors import InvalidRequest
from . import prompts
from .answers import Text, Tokens
from .body import reads, size_of
from .deps import BY_KEY, CallerDep, Face, FaceDep, resolved
from .openapi import answers
from .schemas import DetokenizeRequest, TokenizeRequest
from .tool_use import schemas_of, shown
from .writing import OneByOne, in_pieces

router = APIRouter(dependencies=BY_KEY)


@router.post("/tokenize", openapi_extra=describes(TokenizeRequest), responses=answers(Tokens))
async def tokenize(
    request: Request,
    face: FaceDep,
    caller: CallerDep,
    body: Annotated[TokenizeRequest, Depends(reads(TokenizeRequest))],
) -> Response:
    """Token ids of a text, or of a conversation as its chat template writes it."""
    await _check_model(request, caller, body.model)
    written = await face.aside.work(size_of(request), partial(_tokenized, face, body))
    return Response(written, media_type="application/json")


@router.post("/detokenize", openapi_extra=describes(DetokenizeRequest), responses=answers(Text))
async def detokenize(
    request: Request,
    face: FaceDep,
    caller: CallerDep,
    body: Annotated[DetokenizeRequest, Depends(reads(DetokenizeRequest))],
) -> Response:
    """The text of token ids, special tokens included."""
    await _check_model(request, caller, body.model)
    written = await face.aside.work(size_of(request), partial(_detokenized, face, body))
    return Response(written, media_type="application/json")


def _tokenized(face: Face, body: TokenizeRequest) -> bytes:
    text, ids = face.engine.text, _ids(face, body)
    strings = OneByOne(lambda: map(text.token_text, ids)) if body.return_token_strs else None
    longest = face.engine.model.max_model_len
    return in_pieces({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": strings})


def _detokenized(face: Face, body: DetokenizeRequest) -> bytes:
    prompts.check_tokens(body.tokens, face.engine.model.vocab_size, "tokens")
    return in_pieces({"prompt": face.engine.text.decode(body.tokens, skip_special_tokens=False)})


def _ids(face: Face, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens: the chat template writes the special tokens", param="add_special_tokens"
            )
        schemas_of(body.tools)
        return prompts.of_messages(face, body.messages, body, tools=shown(body.tools), room=None)
    return face.engine.text.encode(body.prompt or "", body.add_special_tokens is not False)


async def _check_model(request: Request, caller: Caller, name: str | None) -> None:
    """All adapters share the base's tokenizer, but a name that is not served is still an error."""
    if name is not None:
        await resolved(request, caller, name, None)
