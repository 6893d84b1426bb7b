"""The smoke run: a short text through the real base, without and with the adapter, and how far apart they are."""

from __future__ import annotations

import asyncio

import torch
from torch import Tensor

from ...core.errors import ArilError
from ...engine.params import SamplingParams
from ...engine.sampler import NOT_FINITE
from ...lora.adapter import AdapterRef
from .asking import Asker
from .report import Check

# Plain prose, a question and its answer, some code and numbers: what adapters are about.
TEXT = (
    "Question: Which river flows through Paris?\nAnswer: The Seine. It is 777 km long.\n"
    "def total(prices):\n    return sum(prices)"
)
MAX_TOKENS = 48
SCORED = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logits=True)


class Smoke:
    """Runs adapters; keeps what the base says, which is always the same."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._prompt: list[int] | None = None
        self._base: Tensor | None = None
        self._first = asyncio.Lock()

    async def run(self, check: Check, ref: AdapterRef) -> None:
        """Add the distance between adapter and base, or what is wrong, to the check. Raises what the engine raises."""
        base = await self._of_base()
        try:
            logits = await self._logits(ref)
        except ArilError as error:
            if error.code != NOT_FINITE:
                raise
            check.problems.append("smoke run: with the adapter the logits are NaN or Inf")
        else:
            await asyncio.to_thread(_compare, check, base, logits)

    async def _of_base(self) -> Tensor:
        async with self._first:
            if self._base is None:
                self._base = await self._logits(None)
            return self._base

    async def _logits(self, ref: AdapterRef | None) -> Tensor:
        return torch.cat((await self._asker.ask(self.tokens(), SCORED, ref)).logits)

    def tokens(self) -> list[int]:
        """The text in the model's tokens; where it has none for it, the first of its vocabulary."""
        if self._prompt is None:
            engine = self._asker.engine
            tokens = engine.text.encode(TEXT)
            room = min(MAX_TOKENS, engine.model.max_model_len - 1)
            self._prompt = (tokens if len(tokens) > 1 else list(range(min(MAX_TOKENS, engine.model.vocab_size))))[:room]
        return self._prompt


def _compare(check: Check, base: Tensor, logits: Tensor) -> None:
    """KL(adapter | base) at each position of the text, in nats."""
    check.numbers |= {"tokens": len(logits)}
    if not bool(torch.isfinite(logits).all()):
        wrong = int((~torch.isfinite(logits).all(-1)).sum())
        check.problems.append(
            f"smoke run: with the adapter the logits of {wrong} of {len(logits)} tokens are NaN or Inf"
        )
        return
    ours, theirs = logits.log_softmax(-1), base.log_softmax(-1)
    kl = (ours.exp() * (ours - theirs)).nan_to_num(0.0).sum(-1).clamp_min(0.0)  # [n]
    same = float((logits.argmax(-1) == base.argmax(-1)).float().mean())
    check.numbers |= {
        "mean_kl": float(kl.mean()),
        "max_kl": float(kl.max()),
        "same_top_token": round(same, 4),
    }
    if torch.equal(logits, base):
        check.problems.append(
            "smoke run: the adapter changes nothing: every logit is that of the base. Its numbers are too small to "
            "survive the precision that is served"
        )
