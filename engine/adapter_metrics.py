"""What requests came to, by adapter: an Observer. The label is the adapter's name; the base goes by its own.

Only requests that were let in are seen, and those name something that exists: no model name of a caller's becomes a
label.
"""

from __future__ import annotations

from ..core.metrics import ADAPTERS, adapter_counter, adapter_histogram
from .metering import Outcome, Work

REQUESTS = adapter_counter("adapter_requests", "Requests that ended, well or not")
ERRORS = adapter_counter("adapter_errors", "Requests that were not answered to their end, by code", ["code"])
PROMPT_TOKENS = adapter_counter("adapter_prompt_tokens", "Tokens of prompts")
CACHED_TOKENS = adapter_counter("adapter_cached_tokens", "Tokens of prompts whose KV was there already")
OUTPUT_TOKENS = adapter_counter("adapter_generation_tokens", "Tokens of answers")
FIRST_TOKEN_SECONDS = adapter_histogram(
    "adapter_time_to_first_token_seconds", "From a request's start to the first token of its answer"
)
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
GAP_SECONDS = adapter_histogram(
    "adapter_inter_token_seconds", "Between the tokens of a choice, as the client got them", GAP_BUCKETS
)
REQUEST_SECONDS = adapter_histogram("adapter_request_seconds", "From a request's start to its end")


class AdapterMetrics:
    """Implements engine.metering.Observer."""

    def ended(self, work: Work, outcome: Outcome) -> None:
        """Count it."""
        ref = work.resolution.ref
        label = ADAPTERS.touch(ref.name if ref else work.resolution.speaker)
        REQUESTS.labels(label).inc()
        if outcome.error is not None:
            ERRORS.labels(label, outcome.error).inc()
        PROMPT_TOKENS.labels(label).inc(outcome.prompt_tokens)
        CACHED_TOKENS.labels(label).inc(outcome.cached_tokens)
        OUTPUT_TOKENS.labels(label).inc(outcome.completion_tokens)
        REQUEST_SECONDS.labels(label).observe(outcome.seconds)
        if outcome.first_token_seconds is not None:
            FIRST_TOKEN_SECONDS.labels(label).observe(outcome.first_token_seconds)
        gaps = GAP_SECONDS.labels(label)
        for gap in outcome.gaps:
            gaps.observe(gap)
