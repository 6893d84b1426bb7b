"""Tools told in words, where a chat template knows none: in the system message, and calls and results as text.

The words ask for what server/speech/calls/json.py reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

TOLD = """You can call functions. Each line between the marks describes one: its name, what it does, and the JSON \
schema of its arguments.
<tools>
{tools}
</tools>
To call a function, write nothing but a block of this form, one for each call:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
You will be given what it returned in a <tool_response> block. Where no function helps, answer in words."""


def told(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """`messages` without anything that only a template for tools understands."""
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _append(found, "user", f"<tool_response>\n{message['content']}\n</tool_response>")
        elif message.get("tool_calls"):
            found.append({"role": message["role"], "content": _with_calls(message)})
        else:
            found.append(message)
    return _introduced(found, tools) if tools else found


def _introduced(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The tools go before the rest, into the system message that is there, or one of their own."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    words = TOLD.format(tools=lines)
    if messages[0]["role"] in ("system", "developer"):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def _with_calls(message: Message) -> str:
    """What an assistant said, and its calls as it was asked to write them."""
    calls = [
        f"<tool_call>\n{json.dumps(_called(call.get('function', {})), ensure_ascii=False)}\n</tool_call>"
        for call in message["tool_calls"]
    ]
    return "\n".join(filter(None, [message["content"], *calls]))


def _called(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _append(messages: list[Message], role: str, content: str) -> None:
    """Results that follow each other are one message: templates want the roles to take turns."""
    if messages and messages[-1]["role"] == role and messages[-1]["content"].endswith("</tool_response>"):
        messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n{content}"}
    else:
        messages.append({"role": role, "content": content})
