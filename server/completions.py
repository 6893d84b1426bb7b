"""POST /v1/completions: one or many prompts, continued as they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from ..core.body import describes
from ..core.callers import Caller
from ..engine.detokenizer import Detokenizer
from ..engine.metering import Work
from ..engine.params import SamplingParams
from ..engine.request import Chunk, TokenLogprobs
from . import prompts, sampling
from .answers import Completion
from .body import reads, size_of
from .deps import BY_KEY, AskerDep, Face, FaceDep, resolved
from .generation import Choice, Collected, Generation, new_id
from .logprobs import CompletionLogprobs, Speller, of_prompt
from .openapi import answers
from .request_ids import named
from .schemas import CompletionRequest, StreamOptions
from .sse import EventStream, event, unless_gone
from .standing import standing_of
from .unsupported import COMPLETIONS, ignored, refuse
from .writing import answered, framed

Json = dict[str, Any]

router = APIRouter(dependencies=BY_KEY)
ANSWERS = answers(Completion, event=Completion)
TEXTS = {skips: SamplingParams(skip_special_tokens=skips) for skips in (True, False)}  # uncut


@router.post("/v1/completions", openapi_extra=describes(CompletionRequest), responses=ANSWERS)
async def completions(
    request: Request,
    face: FaceDep,
    caller: AskerDep,
    body: Annotated[CompletionRequest, Depends(reads(CompletionRequest))],
) -> Response:
    """Continue each prompt, on the base or on an adapter."""
    return await unless_gone(request, _begin(request, face, caller, body))


async def _begin(request: Request, face: Face, caller: Caller, body: CompletionRequest) -> Response:
    refuse(body.unknown, COMPLETIONS)
    sampling.check_stream(body)
    resolution = await resolved(request, caller, body.model, body.user)
    encoded, params = await face.aside.work(size_of(request), partial(_asked, face, body))
    work = Work(caller=caller, resolution=resolution, prompts=encoded, params=params)
    headers = {**named(body.request_id), **ignored(body.unknown, COMPLETIONS)}
    generation = Generation(new_id("cmpl-"), body.model, work, *standing_of(body, caller), headers=headers)
    view = CompletionView(body, generation, Speller(face.engine.text, bool(body.return_tokens_as_token_ids)))
    if body.stream:
        return EventStream(view.events(face), generation.headers)
    found = await Collected.of(generation.run(face))
    return await answered(face.aside, partial(view.whole, found), generation.headers, size=view.size(found))


def _asked(face: Face, body: CompletionRequest) -> tuple[list[list[int]], list[SamplingParams]]:
    """Its prompts, and the params of each. For a worker thread."""
    encoded = prompts.of_prompt(
        face.engine,
        body.prompt,
        prompts.Room(face.engine.model, body.truncate_prompt_tokens),
        rows=sampling.rows(body),
        add_special_tokens=body.add_special_tokens,
        suffix=body.suffix,
    )
    params = sampling.of_completion(body, face.engine, list(map(len, encoded)))
    sampling.check_scores(params, encoded)
    return encoded, params


@dataclass(frozen=True, slots=True)
class CompletionView:
    """One completion answer as its client sees it, whole or piece by piece."""

    body: CompletionRequest
    work: Generation
    speller: Speller
    lists: dict[int, CompletionLogprobs] = field(default_factory=dict)  # by choice: how far its text has come

    def whole(self, found: Collected) -> Json:
        """The text_completion object."""
        choices = [
            self._piece(at, index, choice, found.prompt_logprobs.get(at)) for at, index, choice in found.sorted()
        ]
        return {**self.work.head("text_completion"), "choices": choices, "usage": self._usage(found)}

    def size(self, found: Collected) -> int:
        """Tokens and scores that the answer may tell of."""
        scores = max(self.body.logprobs or 0, self.body.prompt_logprobs or 0)
        return found.usage.num_tokens * self.work.n * (1 + scores)

    async def events(self, face: Face) -> AsyncGenerator[bytes, None]:
        """The text_completion events."""
        options, found = self.body.stream_options or StreamOptions(), Collected()
        async with aclosing(self.work.run(face)) as stream:
            async for prompt_at, chunk in stream:
                is_first = found.note(prompt_at, chunk)
                if is_first or chunk.text or chunk.logprobs or chunk.finish_reason or self.body.return_token_ids:
                    make = partial(self._event, found, prompt_at, chunk, options)
                    yield await framed(face.aside, make, size=self.size(found) if is_first else 0)
        if options.include_usage:
            yield event({**self.work.head("text_completion"), "choices": [], "usage": self._usage(found)})

    def _event(self, found: Collected, prompt_at: int, chunk: Chunk, options: StreamOptions) -> Json:
        piece = self._piece(prompt_at, chunk.index, chunk, found.prompt_logprobs.get(prompt_at))
        payload = {**self.work.head("text_completion"), "choices": [piece]}
        if options.include_usage:
            payload["usage"] = self._usage(found) if options.continuous_usage_stats else None
        return payload

    def _usage(self, found: Collected) -> Json:
        return found.usage.shown(output=not sampling.scores_only(self.body))

    def _piece(
        self, prompt_at: int, index: int, news: Choice | Chunk, scored: Sequence[TokenLogprobs | None] | None
    ) -> Json:
        """All of one choice, or its next part; the first part of an echoing one begins with the prompt."""
        at = prompt_at * self.work.n + index
        is_first = at not in self.lists
        prompt = list(self.work.prompts[prompt_at]) if is_first else []
        if is_first:
            self.lists[at] = CompletionLogprobs(self.speller, self.body.logprobs or 0, self._text(prompt))
        text, token_ids, logprobs = self._output(news)
        if self.body.echo and is_first:
            text, token_ids, logprobs = self._echo(prompt_at) + text, prompt + token_ids, [*(scored or ()), *logprobs]
        shown = {
            "index": at,
            "text": text,
            "logprobs": None if self.body.logprobs is None else self.lists[at].take(logprobs, token_ids),
            "finish_reason": news.finish_reason,
            "stop_reason": news.stop_reason,
        }
        if self.body.prompt_logprobs is not None:
            shown["prompt_logprobs"] = of_prompt(scored, self.speller, self.body.prompt_logprobs)
        if self.body.return_token_ids:
            shown |= {"token_ids": news.token_ids, "prompt_token_ids": prompt if is_first else None}
        return shown

    def _text(self, prompt: Sequence[int]) -> Detokenizer:
        """Tells how much of a choice's text each token makes certain; no stop string cuts it."""
        params = TEXTS[self.body.skip_special_tokens is not False]
        return self.speller.text.detokenizer(params, () if self.body.echo else prompt)

    def _output(self, news: Choice | Chunk) -> tuple[str, list[int], Sequence[TokenLogprobs | None]]:
        """What follows the prompt; nothing when only the prompt was to be scored."""
        if sampling.scores_only(self.body):
            return "", [], ()
        return news.text, list(news.token_ids), news.logprobs or ()

    def _echo(self, prompt_at: int) -> str:
        """The prompt as its caller wrote it; token ids are turned into text."""
        written = prompts.texts(self.body.prompt)
        if written is not None:
            return written[prompt_at]
        return self.speller.text.decode(self.work.prompts[prompt_at], self.body.skip_special_tokens is not False)
