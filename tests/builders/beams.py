"""Beam search over the device without numbers: likely tokens out of fingerprints, and what a search must find."""

from __future__ import annotations

from collections.abc import Callable

from aril.engine.beams import BeamSearch
from aril.engine.detokenizer import Detokenizer
from aril.engine.pieces import Pieces
from aril.engine.request import Request, TokenLogprobs
from aril.engine.stop import ending_of

PIECES = Pieces({"type": "Fuse"}, lambda token: f"<{token}>", frozenset())
EOS = 0


def likeliest(fingerprint: int, vocab: int) -> TokenLogprobs:
    """All tokens after a position, the likeliest first."""
    scores = {token: -(hash((fingerprint, token)) % 1_000_003) / 100_000 - token * 1e-7 for token in range(vocab)}
    top = dict(sorted(scores.items(), key=lambda item: -item[1]))
    best = next(iter(top))
    return TokenLogprobs(best, top[best], 1, top)


def searched(request: Request, max_len: int, last: int, told: Callable[[int], TokenLogprobs]) -> list[list[int]]:
    """The best texts after a prompt whose last fingerprint is `last`, by a search that shares nothing."""
    params, num_prompt = request.params, len(request.prompt)
    room = max_len - num_prompt
    search = BeamSearch(
        params,
        Detokenizer(PIECES, params, request.prompt),
        lambda token, count: ending_of(params, token, count, {EOS}, is_full=count >= room),
        most_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
    )
    while search.running:
        prints = []
        for beam in search.running:
            fingerprint = last
            for token in beam.tokens:
                fingerprint = hash((fingerprint, token))
            prints.append(fingerprint)
        search.advance([told(fingerprint) for fingerprint in prints])
    return [list(ended.beam.tokens) for ended in search.ended]
