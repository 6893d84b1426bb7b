"""Fields that would change the answer and that Aril does not serve: refused by name, never ignored.

A field is allowed with the values listed beside it, which ask for what happens anyway; null is always allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from ..core.errors import InvalidRequest

IGNORED = "x-aril-ignored-fields"
LONGEST_LIST = 1000  # characters; a caller may send any number of names
Refusals = Mapping[str, tuple[tuple[Any, ...], str]]  # field -> (harmless values, what to do instead)

GUIDED = "it is a field of structured_outputs now, without guided_; vLLM has dropped this name too"
TOOLS = "OpenAI has replaced it; send tools and tool_choice"

EVERYWHERE: Refusals = {
    "guided_choice": ((), GUIDED),
    "guided_decoding_backend": ((), "the operator chooses it with --grammar-backend"),
    "guided_grammar": ((), GUIDED),
    "guided_json": ((), GUIDED),
    "guided_regex": ((), GUIDED),
    "guided_whitespace_pattern": ((), GUIDED),
    "kv_transfer_params": ((), "one engine does prompt and output"),
    "logits_processors": (([],), "use logit_bias"),
    "prompt_embeds": ((), "send text or token ids"),
    "repetition_detection": ((), "use repetition_penalty or frequency_penalty"),
    "structural_tag": ((), "a grammar in structured_outputs can say what it says"),
    "thinking_token_budget": ((), "use max_tokens"),
    "vllm_xargs": (({},), "there are no plug-ins that would read them"),
}
CHAT: Refusals = {
    **EVERYWHERE,
    "add_special_tokens": ((False,), "the chat template writes the special tokens"),
    "audio": ((), "this is a text model"),
    "echo": ((False,), "the messages are known to the caller"),
    "function_call": (("none",), TOOLS),
    "functions": (([],), TOOLS),
    "moderation": ((), "nothing is moderated here"),
    "modalities": ((["text"],), "this is a text model"),
    "suffix": ((), "it belongs to /v1/completions of models that fill in the middle"),
    "verbosity": (("medium",), "ask for it in the messages"),
    "web_search_options": ((), "the model has no tools"),
}
COMPLETIONS: Refusals = EVERYWHERE

EMBEDDINGS: Refusals = {
    "embed_dtype": (("float32",), "vectors are float32"),
    "endianness": (("native", "little"), "base64 is of little-endian numbers, as OpenAI's clients read it"),
    "messages": ((), "send input"),
    "mm_processor_kwargs": (({},), "this is a text model"),
    "prompt_embeds": EVERYWHERE["prompt_embeds"],
    "use_activation": ((True,), "send normalize"),
}


def refuse(fields: Mapping[str, Any], refusals: Refusals) -> None:
    """Raises InvalidRequest for the first of `fields` that asks for something this server does not do."""
    for name, value in fields.items():
        if value is None or name not in refusals:
            continue
        harmless, advice = refusals[name]
        if value not in harmless:
            raise InvalidRequest(f"{name} is not supported: {advice}", param=name, code="unsupported_parameter")


def ignored(fields: Mapping[str, Any], refusals: Refusals) -> dict[str, str]:
    """The header of the answer that lists those of `fields` that nothing was done with; no header without any."""
    found = (name for name, value in fields.items() if value is not None and name not in refusals)
    names = [quote(name[:LONGEST_LIST]) for name in islice(found, LONGEST_LIST)]
    return {IGNORED: ",".join(names)[:LONGEST_LIST]} if names else {}
