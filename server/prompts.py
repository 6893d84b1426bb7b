"""What callers send becomes token ids. Tokenising takes time, so all of this is for a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from ..core.errors import InvalidRequest
from ..engine.client import EngineFacts, ModelInfo
from ..engine.templates import LARGEST, render, render_apart
from ..engine.text import Text
from . import in_words
from .deps import Face
from .schemas import Message, Prompt

MAX_PROMPTS = (
    2048  # of one completion request, each as often as texts are computed of it: all run before what comes later
)
OWN_VARIABLES = frozenset(
    ("self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template")
)  # what chat_template_kwargs may not set: each has a field of its own, or is the operator's


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens of a prompt count: the context's, or, where its caller asks for that, the last `keep` of them.

    Raises InvalidRequest for more than the context holds.
    """

    model: ModelInfo
    keep: int | None = None

    def __post_init__(self) -> None:
        most = self.model.max_model_len
        if self.keep is not None and not 1 <= self.keep <= most:
            message = f"truncate_prompt_tokens={self.keep} is out of range; it goes from 1 to {most}"
            raise InvalidRequest(message, param="truncate_prompt_tokens")

    def check(self, written: str, text: Text, param: str) -> None:
        """Raises InvalidRequest for what is too long whatever its tokens are; to know them would take seconds."""
        if len(written) <= self.model.max_model_len:
            return
        if self.keep is not None:
            _check_end(written, param)
            return
        longest = text.longest_token
        if longest is not None and (least := longest.fewest(written)) > self.model.max_model_len:
            raise InvalidRequest(
                f"{self.model.limit} However, your {param} has {len(written)} characters, which are {least} tokens or "
                f"more, as none has over {longest.characters} characters. Please reduce the length of the {param}.",
                param=param,
                code="context_length_exceeded",
            )

    def cut(self, prompt: list[int]) -> list[int]:
        """What counts of `prompt`."""
        return prompt if self.keep is None else prompt[-self.keep :]


def _check_end(written: str, param: str) -> None:
    """Raises InvalidRequest where all of a text would take seconds to tokenise, for the sake of its last tokens."""
    if len(written) > LARGEST:
        raise InvalidRequest(
            f"{param}: {len(written)} characters are over {LARGEST}, the most that truncate_prompt_tokens cuts; send "
            "its end",
            param=param,
        )


class Conversation(Protocol):
    """The fields that a chat template needs; chat and /tokenize both have them."""

    documents: list[dict[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


def of_messages(
    face: Face,
    messages: Sequence[Message],
    body: Conversation,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    room: Room | None,
) -> list[int]:
    """The prompt that the chat template makes of a conversation; `tools` are told in words where it knows none.

    Without `room` all of it counts, however long it is.
    """
    if not messages:
        raise InvalidRequest("messages: a conversation needs at least one message", param="messages")
    variables = dict(body.chat_template_kwargs or {})
    if taken := sorted(OWN_VARIABLES & variables.keys()):
        raise InvalidRequest(
            f"chat_template_kwargs: {taken[0]} is not for the template to be told here", param="chat_template_kwargs"
        )
    if body.chat_template is not None and not face.trusts_templates:
        raise InvalidRequest(
            "chat_template: this server takes none from requests; its operator may allow it with "
            "--trust-request-chat-template, or set one with --chat-template",
            param="chat_template",
            code="unsupported_parameter",
        )
    begin, text = body.add_generation_prompt, face.engine.text
    said = written(
        text,
        [_plain(at, message, face.engine.model.id) for at, message in enumerate(messages)],
        tools,
        add_generation_prompt=not body.continue_final_message if begin is None else begin,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        chat_template=body.chat_template,
        renderer=render if body.chat_template is None else render_apart,
        variables=variables,
    )
    if room is None:
        return text.encode(said, add_special_tokens=False)
    room.check(said, text, "messages")
    return room.cut(text.encode(said, add_special_tokens=False))


def written(
    text: Text, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, **fields: Any
) -> str:
    """The prompt of a conversation whose messages are as templates expect them; `fields` are those of Text.written."""
    has_tools = tools is not None or any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    if not has_tools or text.shows_tools(fields["chat_template"], fields["renderer"]):
        return text.written(messages, tools=tools, **fields)
    try:
        return text.written(in_words.told(messages, tools), **fields)
    except InvalidRequest:
        if messages[0]["role"] == "system":
            raise
        return text.written(in_words.told(messages, tools, by="user"), **fields)


def of_prompt(
    engine: EngineFacts,
    prompt: Prompt,
    room: Room,
    *,
    rows: tuple[str, int],
    add_special_tokens: bool,
    suffix: str | None = None,
    param: str = "prompt",
) -> list[list[int]]:
    """One list of token ids for each prompt of a request, which stand in its field `param`.

    `rows`: the field that says how many texts are computed of each, and how many that is. With a `suffix` they ask for
    what stands between the prompt and that.
    """
    prompts, text = _each(prompt), engine.text
    if not prompts:
        raise InvalidRequest(f"{param}: the list is empty", param=param)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"{param}: {len(prompts)} {param}s are over {MAX_PROMPTS} in one request", param=param)
    by, each = rows
    if len(prompts) > 1 and len(prompts) * each > MAX_PROMPTS:
        message = f"{by}: {each} texts of each of {len(prompts)} prompts are over {MAX_PROMPTS} in all"
        raise InvalidRequest(message, param=by)

    def write(given: str | list[int]) -> list[int]:
        if isinstance(given, str):
            room.check(given, text, param)
        if suffix:
            room.check(suffix, text, "suffix")
            return text.fill_in(given, suffix, add_special_tokens)
        return room.cut(text.encode(given, add_special_tokens) if isinstance(given, str) else given)

    return _encode(prompts, write, param)


def check_tokens(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequest, naming its place, for the first of `ids` that is no token."""
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            place = f"{param}[{at}]"
            raise InvalidRequest(f"{place}: there is no token {token}; ids go from 0 to {vocab_size - 1}", param=place)


def texts(prompt: Prompt) -> list[str] | None:
    """The prompts as the caller wrote them; None when they came as token ids."""
    if isinstance(prompt, str):
        return [prompt]
    return [p for p in prompt if isinstance(p, str)] or None


def _each(prompt: Prompt) -> list[str] | list[list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]  # pydantic has checked that all of them are
    return prompt  # type: ignore[return-value]


def _encode(
    prompts: Sequence[str | list[int]], write: Callable[[str | list[int]], list[int]], param: str
) -> list[list[int]]:
    encoded = []
    for at, prompt in enumerate(prompts):
        ids = write(prompt)
        if not ids:
            raise InvalidRequest(f"{param} {at} is empty: it takes at least one token", param=param)
        encoded.append(ids)
    return encoded


def _plain(at: int, message: Message, model: str) -> Mapping[str, Any]:
    """A message as templates expect it: its content one string, the arguments of its tool calls objects."""
    fields: dict[str, Any] = {"role": message.role, **message.unknown}
    fields["content"] = _content(f"messages[{at}].content", message, model)
    if message.tool_calls:
        fields["tool_calls"] = [
            _call(f"messages[{at}].tool_calls[{which}]", call) for which, call in enumerate(message.tool_calls)
        ]
    if "reasoning" in fields:  # vLLM's newer name for what templates know by its older one
        fields.setdefault("reasoning_content", fields["reasoning"])
    return fields


def _call(param: str, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call with its arguments as an object; those that are no JSON stay what the model wrote, for it to see."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{param}.function.name: expected the name of a tool", param=f"{param}.function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments) if arguments.strip() else {}
        except ValueError:
            return call
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _content(param: str, message: Message, model: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None and message.tool_calls:
        return ""
    if isinstance(content, list):
        return "\n".join(_part(f"{param}[{at}]", part, model) for at, part in enumerate(content))
    raise InvalidRequest(f"{param}: expected a string or a list of parts", param=param, code="invalid_type")


def _part(param: str, part: object, model: str) -> str:
    """The text of one part; text models read nothing else."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"{param}: expected an object with a type", param=param, code="invalid_type")
    if kind not in ("text", "refusal"):
        raise InvalidRequest(f"{param}: {model} is a text model; it cannot read a part of type {kind}", param=param)
    if not isinstance(part.get(kind), str):
        raise InvalidRequest(f"{param}.{kind}: expected a string", param=f"{param}.{kind}", code="invalid_type")
    return str(part[kind])
