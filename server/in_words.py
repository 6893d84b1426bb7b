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


def told(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, by: str = "system"
) -> list[Message]:
    """`messages` without anything that only a template for tools understands.

    The tools are told `by` the system, or the user for templates that know no other.
    """
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _append(found, "user", f"<tool_response>\n{message['content']}\n</tool_response>")
        elif message.get("tool_calls"):
            found.append({"role": message["role"], "content": _with_calls(message)})
        else:
            found.append(message)
    return _introduced(found, tools, by) if tools else found


def _introduced(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], by: str) -> list[Message]:
    """The tools go before the rest: into the first message, if it is the system's or by whoever tells of them."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    words = TOLD.format(tools=lines)
    role, content = messages[0]["role"], messages[0]["content"]
    if role in ("system", "developer"):
        return [{**messages[0], "content": f"{content}\n\n{words}"}, *messages[1:]]
    if role == by:
        return [{**messages[0], "content": f"{words}\n\n{content}"}, *messages[1:]]
    return [{"role": by, "content": words}, *messages]


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
