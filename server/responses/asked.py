"""What a request of /v1/responses asks for, as the chat request that it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import InvalidRequest
from ..passed import passed_on
from ..unsupported import CHAT, Refusals, refuse
from .items import messages_of
from .schemas import InputRequest, ResponseRequest, TextConfig, Tool
from .store import Json

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "tool_choice.function": "tool_choice",
    "tools[].function": "tools[]",
    "verbosity": "text.verbosity",
}
REFUSED: Refusals = {
    **CHAT,
    "background_options": (({},), "a background response begins as soon as there is room"),
    "context_management": (([],), "send truncation: auto, or fewer items"),
    "conversation": ((), "go on from a response with previous_response_id"),
    "image": (({},), "this is a text model"),
    "moderation": ((), "nothing is moderated here"),
    "prompt": ((), "no prompt templates are kept here; send instructions and input"),
}


def chat_fields(body: InputRequest, items: Sequence[Json]) -> dict[str, Any]:
    """The fields of the chat request that `body` stands for, with all its items; those of sampling come beside."""
    refuse(body.unknown, REFUSED)
    messages = messages_of(items)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "tools": None if body.tools is None else [_tool(at, tool) for at, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "verbosity": body.text and body.text.verbosity,
        "response_format": _format(body.text),
        "user": body.user,
        **passed_on(body.unknown),
    }
    return {name: value for name, value in fields.items() if value is not None}


def sampling_fields(body: ResponseRequest) -> dict[str, Any]:
    """The fields of the chat request that say how the answer is drawn and told."""
    for at, name in enumerate(body.include or ()):
        if name not in INCLUDABLE:
            known = ", ".join(sorted(INCLUDABLE))
            raise InvalidRequest(f"include[{at}]: there is no {name!r}; there are {known}", param=f"include[{at}]")
    fields = {
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
    }
    if tells_logprobs(body):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return {name: value for name, value in fields.items() if value is not None}


def tells_logprobs(body: ResponseRequest) -> bool:
    """Whether the answer is to come with log-probabilities."""
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def unheeded(body: InputRequest) -> dict[str, Any]:
    """The fields that nothing is done with, those inside of others by their path."""
    found: dict[str, Any] = {n: v for n, v in body.unknown.items() if n not in passed_on(body.unknown)}
    if isinstance(body, ResponseRequest):
        found |= {f"include.{name}": True for name in body.include or () if name != LOGPROBS}
        if body.stream_options is not None and body.stream_options.include_obfuscation:
            found["stream_options.include_obfuscation"] = True
    inner = {"text": body.text, "text.format": body.text and body.text.format, "reasoning": body.reasoning}
    for path, part in inner.items():
        found |= {f"{path}.{name}": value for name, value in (part.unknown if part else {}).items()}
    for at, tool in enumerate(body.tools or ()):
        found |= {f"tools[{at}].{name}": value for name, value in tool.unknown.items()}
    return found


def check_call_ids(items: Sequence[Json], first: int) -> None:
    """Raises InvalidRequest where an output answers a call that nobody made; the input begins at `first`."""
    made = set()
    for at, item in enumerate(items):
        if item["type"] == "function_call":
            made.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in made:
            param = f"input[{at - first}].call_id"
            raise InvalidRequest(
                f"{param}: no function call before it has the call_id {item['call_id']!r}", param=param
            )


def _tool(at: int, tool: Tool) -> Json:
    if tool.type != "function":
        param = f"tools[{at}].type"
        message = f"{param}: there is no built-in tool {tool.type!r} here; only functions, which the caller runs"
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    if not tool.name:
        param = f"tools[{at}].name"
        raise InvalidRequest(f"{param}: this field is required", param=param, code="missing_required_parameter")
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in told.items() if value is not None}}


def _tool_choice(choice: str | Json | None) -> str | Json | None:
    """A choice in chat's shape, where a function is named one level deeper."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": kind, "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        named = [_tool_choice(tool) if isinstance(tool, dict) else tool for tool in choice.get("tools") or ()]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    message = f"tool_choice: there is no built-in tool {kind!r} here; only functions, which the caller runs"
    raise InvalidRequest(message, param="tool_choice", code="unsupported_parameter")


def _format(text: TextConfig | None) -> Json | None:
    asked = text.format if text else None
    if asked is None:
        return None
    if asked.type != "json_schema":
        return {"type": asked.type}
    for name, value in (("name", asked.name), ("schema", asked.schema_)):
        if value is None:
            param = f"text.format.{name}"
            message = f"{param}: this field is required with type json_schema"
            raise InvalidRequest(message, param=param, code="missing_required_parameter")
    told = {"name": asked.name, "description": asked.description, "schema": asked.schema_, "strict": asked.strict}
    return {"type": "json_schema", "json_schema": {name: value for name, value in told.items() if value is not None}}
