"""What a request of /v1/messages asks for, as the chat request that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.body import checked
from ...core.errors import InvalidRequest
from ..passed import passed_on
from ..renamed import speaking
from ..schemas import ChatRequest
from ..unsupported import CHAT, Refusals, refuse
from .blocks import messages_of, unheeded
from .schemas import CountRequest, MessagesRequest, Thinking, Tool, ToolChoice

NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "tool_choice.function": "tool_choice",
    "tools[].function": "tools[]",
    "tools[].function.parameters": "tools[].input_schema",
    "user": "metadata.user_id",
}
REFUSED: Refusals = {
    **CHAT,
    "container": ((), "nothing is run here"),
    "context_management": (({},), "send fewer messages"),
    "mcp_servers": (([],), "tools are run by the caller"),
}
THINKING = "enable_thinking"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: CountRequest, model: str, *, max_tokens: int | None) -> ChatRequest:
    """The chat request; `model` is the base's name, `max_tokens` as many as there may be."""
    refuse(body.unknown, REFUSED)
    messages = messages_of(body.messages, body.system, model)
    form = body.output_config.format if body.output_config else None
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "tools": None if body.tools is None else [_tool(at, tool) for at, tool in enumerate(body.tools)],
        "tool_choice": _tool_choice(body.tool_choice),
        "reasoning_effort": body.output_config and body.output_config.effort,
        "response_format": None if form is None else _format(form.schema_),
        "max_completion_tokens": max_tokens,
        **passed_on(body.unknown),
    }
    if messages and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        fields["continue_final_message"] = True  # the answer goes on with what was begun
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use is not None:
        fields["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    if body.thinking is not None:
        fields["chat_template_kwargs"] = _told(body.thinking, fields.get("chat_template_kwargs"))
    if isinstance(body, MessagesRequest):
        fields |= {"temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k}
        fields |= {"stop": body.stop_sequences, "user": body.metadata and body.metadata.user_id}
    with speaking(NAMES):
        return checked(ChatRequest, {name: value for name, value in fields.items() if value is not None})


def unheeded_in(body: CountRequest, *, thinks: bool) -> dict[str, Any]:
    """The fields that nothing is done with, those inside of others by their path; `thinks`: the chat template can be
    told to think or not."""
    found: dict[str, Any] = {n: v for n, v in body.unknown.items() if n not in passed_on(body.unknown)}
    if body.thinking is not None and not thinks:
        found["thinking"] = True
    found |= dict.fromkeys(sorted(unheeded(body.messages)), True)
    inner: dict[str, Any] = {"thinking": body.thinking, "output_config": body.output_config}
    inner["metadata"] = body.metadata if isinstance(body, MessagesRequest) else None
    for path, part in inner.items():
        found |= {f"{path}.{name}": value for name, value in (part.unknown if part else {}).items()}
    for at, tool in enumerate(body.tools or ()):
        found |= {f"tools[{at}].{name}": value for name, value in tool.unknown.items()}
    return {name: value for name, value in found.items() if not name.endswith("cache_control")}


def _told(thinking: Thinking, variables: Any) -> Any:
    """What the chat template hears of it, by the name that templates of thinking models know."""
    asked = {THINKING: thinking.type != "disabled"}
    return {**asked, **variables} if isinstance(variables, dict) else asked


def _tool(at: int, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        param = f"tools[{at}].type"
        message = f"{param}: there is no built-in tool {tool.type!r} here; only tools that the caller runs"
        raise InvalidRequest(message, param=param, code="unsupported_parameter")
    if tool.input_schema is None:
        param = f"tools[{at}].input_schema"
        raise InvalidRequest(f"{param}: this field is required", param=param, code="missing_required_parameter")
    told = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in told.items() if value is not None}}


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        message = "tool_choice.name: this field is required with type tool"
        raise InvalidRequest(message, param="tool_choice.name", code="missing_required_parameter")
    return {"type": "function", "function": {"name": choice.name}}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
