"""POST /v1/embeddings: one vector for each input, of the base's hidden states or of an adapter's."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ..core.body import describes
from ..core.callers import Caller
from ..core.errors import InvalidRequest
from ..engine.client import ModelInfo
from ..engine.embedding import check_dimensions, shaped
from ..engine.metering import Work
from ..engine.params import SamplingParams
from ..engine.request import Vector
from . import prompts
from .answers import EmbeddingList
from .body import reads, size_of
from .deps import BY_KEY, AskerDep, Face, FaceDep, resolved
from .generation import Generation, Usage, new_id
from .openapi import answers
from .request_ids import named
from .schemas import EmbeddingRequest
from .sse import unless_gone
from .standing import standing_of
from .unsupported import EMBEDDINGS, ignored, refuse

router = APIRouter(dependencies=BY_KEY)
ONE = ("input", 1)  # vector of each input


@router.post("/v1/embeddings", openapi_extra=describes(EmbeddingRequest), responses=answers(EmbeddingList))
async def embeddings(
    request: Request,
    face: FaceDep,
    caller: AskerDep,
    body: Annotated[EmbeddingRequest, Depends(reads(EmbeddingRequest))],
) -> Response:
    """Embed each input, on the base or on an adapter."""
    return await unless_gone(request, _begin(request, face, caller, body))


async def _begin(request: Request, face: Face, caller: Caller, body: EmbeddingRequest) -> Response:
    refuse(body.unknown, EMBEDDINGS)
    check_dimensions(body.dimensions, face.engine.model.embedding_sizes)
    resolution = await resolved(request, caller, body.model, body.user)
    inputs = await face.aside.work(size_of(request), partial(_inputs, face, body))
    params = SamplingParams.embedding(body.pooling or face.engine.model.pooling)
    work = Work(caller=caller, resolution=resolution, prompts=inputs, params=[params] * len(inputs))
    headers = {**named(body.request_id), **ignored(body.unknown, EMBEDDINGS)}
    generation = Generation(new_id("embd-"), body.model, work, *standing_of(body, caller), headers=headers)
    vectors, usage = dict[int, Vector](), Usage()
    async with aclosing(generation.run(face)) as stream:
        async for at, chunk in stream:
            usage.count(at, chunk)
            if chunk.embedding is not None:
                vectors[at] = chunk.embedding
    written = await face.aside.work(0, partial(_shown, body, vectors, usage))  # a second's for thousands of vectors
    return Response(written, media_type="application/json", headers=generation.headers)


def _inputs(face: Face, body: EmbeddingRequest) -> list[list[int]]:
    """Token ids of each input, in bounds. For a worker thread."""
    if "" in (body.input if isinstance(body.input, list) else [body.input]):
        raise InvalidRequest("input: an empty text has no embedding", param="input")
    model = face.engine.model
    room = prompts.Room(model, body.truncate_prompt_tokens)
    inputs = prompts.of_prompt(
        face.engine, body.input, room, rows=ONE, add_special_tokens=body.add_special_tokens, param="input"
    )
    for at, ids in enumerate(inputs):
        _check_length(at, ids, model)
        prompts.check_tokens(ids, model.vocab_size, "input")
    return inputs


def _check_length(at: int, ids: Sequence[int], model: ModelInfo) -> None:
    if len(ids) > model.max_model_len:
        raise InvalidRequest(
            f"{model.limit} However, input {at} has {len(ids)} tokens. Please make it shorter, or send "
            "truncate_prompt_tokens.",
            param="input",
            code="context_length_exceeded",
        )


def _shown(body: EmbeddingRequest, vectors: dict[int, Vector], usage: Usage) -> str:
    """OpenAI's list of embeddings, as JSON. It is written vector by vector, so that other threads get their turns."""
    data = (
        json.dumps({"object": "embedding", "index": at, "embedding": _written(body, vector)})
        for at, vector in sorted(vectors.items())
    )
    counted = usage.shown()
    told = {name: counted[name] for name in ("prompt_tokens", "total_tokens")}
    rest = json.dumps({"object": "list", "model": body.model, "usage": told}, ensure_ascii=True)
    return f'{rest[:-1]}, "data": [{", ".join(data)}]}}'


def _written(body: EmbeddingRequest, vector: Vector) -> list[float] | str:
    found = shaped(vector, dimensions=body.dimensions, normalize=body.normalize is not False)
    if body.encoding_format == "base64":
        return base64.b64encode(found.astype("<f4").tobytes()).decode()
    numbers: list[float] = found.tolist()
    return numbers
