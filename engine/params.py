"""What a caller may ask of one generation: sampling and stop rules, checked once, immutable afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..core.errors import InvalidRequest
from .grammar.asked import StructuredOutputs
from .grammar.thoughts import Thoughts

MAX_LOGPROBS = 20  # OpenAI's bound on top_logprobs
MAX_STOPS = 32  # stop strings: each is asked of every character, on the engine's thread
MAX_STOP_SIZE = 1 << 13  # characters of them all
MAX_BAD_WORDS = 1 << 14  # characters of them all: each step of the request looks through their lengths
MAX_SEED = 2**63 - 1
MAX_BEAMS = 32  # of one search: a step sorts as many candidates for each beam, on the engine's thread
MAX_BEAM_ENDS = 64  # stop_token_ids of a search, each of which may be among the candidates of a beam
MOST_EOS = 8  # ends of sequence that a model has
Pooling = Literal["last", "mean"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Names, defaults and meanings are vLLM's and OpenAI's.

    `logprobs=k` returns the chosen token's log-probability and the k most likely ones, of the distribution before
    temperature, penalties and truncation; `prompt_logprobs=k` the same for each prompt token. `prompt_logits` brings
    every logit at the prompt's positions; it is for those who call the engine in this process.
    `max_tokens=None` means up to the end of the context. `structured_outputs` may be an object with its fields; a
    text under a constraint ends where the constraint ends it, whatever `min_tokens` and `ignore_eos` say.
    `use_beam_search` gives the `n` best texts that `best_of` beams find, as transformers' `generate` does; beams follow
    the distribution as it is, so what would change or cut that is refused beside it.
    With `pooling` the prompt is embedded and nothing follows it (see `SamplingParams.embedding`).

    `bad_words` become `bad_words_ids`, sequences of tokens that may not be completed, when the engine spells them.
    Raises InvalidRequest, naming the field, for a value out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: tuple[int, ...] = ()  # special tokens that are text nonetheless
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logits: bool = False
    structured_outputs: StructuredOutputs | None = None
    thoughts: Thoughts | None = None  # what may come before structured outputs
    pooling: Pooling | None = None
    use_beam_search: bool = False
    best_of: int | None = None  # beams; None: n
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "bad_words", tuple(self.bad_words))
        object.__setattr__(self, "bad_words_ids", tuple(map(tuple, self.bad_words_ids)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if isinstance(self.structured_outputs, Mapping):
            object.__setattr__(self, "structured_outputs", StructuredOutputs.of(self.structured_outputs))
        if self.pooling is not None:
            self._check_pooling()
        self._check_beams()
        for name, low, high in RANGES:
            if self.pooling is None or name != "max_tokens":
                _check_range(name, getattr(self, name), low, high)
        if any(not text for text in self.stop):
            raise InvalidRequest("stop: an empty string would stop at once; leave it out", param="stop")
        if len(self.stop) > MAX_STOPS or sum(map(len, self.stop)) > MAX_STOP_SIZE:
            raise InvalidRequest(
                f"stop: at most {MAX_STOPS} strings, of {MAX_STOP_SIZE} characters in all", param="stop"
            )
        for token, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token}]", bias, -100.0, 100.0)
        self._check_words()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens={self.min_tokens} is over max_tokens={self.max_tokens}", param="min_tokens"
            )

    @classmethod
    def embedding(cls, pooling: Pooling) -> SamplingParams:
        """Those of a prompt that is embedded: its last hidden states, pooled, and no token after it."""
        return cls(temperature=0.0, max_tokens=0, pooling=pooling)

    @property
    def num_beams(self) -> int:
        """Texts that a beam search follows at a time."""
        return self.best_of or self.n

    @property
    def num_rows(self) -> int:
        """Sequences that are computed for it."""
        return self.num_beams if self.use_beam_search else self.n

    @property
    def num_likely(self) -> int | None:
        """How many of the likeliest tokens each drawn one comes with; None: it comes alone.

        A beam's must have `num_beams` among them that do not end it.
        """
        if not self.use_beam_search:
            return self.logprobs
        return max(self.logprobs or 0, self.num_beams + len(self.stop_token_ids) + MOST_EOS)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < 1e-5 or self.top_k == 1

    @property
    def scores_prompt(self) -> bool:
        """Whether logits are wanted at every position of the prompt."""
        return self.prompt_logits or self.prompt_logprobs is not None

    def _check_words(self) -> None:
        if self.allowed_token_ids == ():
            raise InvalidRequest(
                "allowed_token_ids: an empty list allows no token; name one or leave it out", param="allowed_token_ids"
            )
        if not all(self.bad_words) or not all(self.bad_words_ids):
            raise InvalidRequest("bad_words: an empty one is in every text; leave it out", param="bad_words")
        size = sum(map(len, self.bad_words))
        if size > MAX_BAD_WORDS:
            raise InvalidRequest(f"bad_words: {size} characters are over {MAX_BAD_WORDS} in all", param="bad_words")

    def _check_beams(self) -> None:
        if not self.use_beam_search:
            for name, value in {"best_of": self.n, "length_penalty": 1.0, "early_stopping": False}.items():
                if getattr(self, name) not in (None, value):
                    raise InvalidRequest(f"{name} needs use_beam_search: true", param=name)
            return
        for name, neutral in _WITH_BEAMS.items():
            if (given := getattr(self, name)) not in neutral:
                why = "does not go with use_beam_search, which follows the likeliest texts as they are"
                if isinstance(given, StructuredOutputs):
                    raise given.refused(f"a form {why}")
                raise InvalidRequest(f"{name}={given!r} {why}", param=name)
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequest("early_stopping: true, false or 'never'", param="early_stopping")
        if len(self.stop_token_ids) > MAX_BEAM_ENDS:
            raise InvalidRequest(
                f"stop_token_ids: at most {MAX_BEAM_ENDS} go with use_beam_search", param="stop_token_ids"
            )
        _check_range("n", self.n, 1, MAX_BEAMS)
        _check_range("best_of", self.best_of, self.n, MAX_BEAMS)

    def _check_pooling(self) -> None:
        if self.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling={self.pooling!r}: there are {', '.join(POOLINGS)}", param="pooling")
        if self.max_tokens != 0 or self.n != 1 or self.scores_prompt or self.structured_outputs is not None:
            raise InvalidRequest("pooling: no token, score or form is to be had with it", param="pooling")


_WITH_BEAMS: Mapping[str, tuple[object, ...]] = {  # what a field must be beside use_beam_search
    "temperature": (0.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": ({},),
    "allowed_token_ids": (None,),
    "bad_words": ((),),
    "bad_words_ids": ((),),
    "min_tokens": (0,),
    "structured_outputs": (None,),
    "prompt_logprobs": (None,),
    "prompt_logits": (False,),
    "pooling": (None,),
}
RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, 128),
    ("temperature", 0.0, 2.0),
    ("top_p", 1e-9, 1.0),
    ("top_k", -1, math.inf),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-9, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("min_tokens", 0, math.inf),
    ("max_tokens", 1, math.inf),
    ("length_penalty", -10.0, 10.0),
    ("seed", -MAX_SEED, MAX_SEED),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if not (low <= value <= high):  # also false for NaN
        shown = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        raise InvalidRequest(f"{name}={value} is out of range; it goes {shown}", param=name.split("[", maxsplit=1)[0])
