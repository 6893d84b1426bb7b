"""`tools`, `tool_choice` and `parallel_tool_calls`: which tools there are, which may be called, and which must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.errors import InvalidRequest
from ..engine.grammar.asked import StructuredOutputs
from ..engine.grammar.spans import Spans
from .schemas import ChatRequest, Tool
from .speech.base import Listener, Plain
from .speech.forced import Arguments, calls_listener
from .speech.format import CallFormat, Tools
from .tool_schemas import check_schema, place_of, schema_of_calls

How = Literal["none", "auto", "required", "named"]
CHOICES = "none, auto, required, or an object of type function or allowed_tools"
ANYTHING: Mapping[str, Any] = {"type": "object"}
PARAMETERS = "function.parameters"  # of a tool
NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one request says about tools. `shown`: what the chat template is told of, None for no tools."""

    how: How = "none"
    shown: Sequence[Mapping[str, Any]] | None = None
    offered: Tools = field(default_factory=dict)
    strict: frozenset[str] = frozenset()  # those of them that ask for arguments as their schema has them
    is_parallel: bool = True
    fields: Mapping[str, str] = field(default_factory=dict)  # where the caller wrote the schema of each

    @classmethod
    def of(cls, body: ChatRequest) -> ToolUse:
        """Raises InvalidRequest for tools that are none, and for a choice that there is not."""
        tools = schemas_of(body.tools)
        how, names = _chosen(body.tool_choice, tools)
        if how == "none" or not tools:
            return cls()
        offered = {name: tools[name] for name in names}
        asking = {tool.function.name for tool in body.tools or () if tool.function.strict}
        strict = frozenset(asking & offered.keys())
        fields = {tool.function.name: f"tools[{at}].{PARAMETERS}" for at, tool in enumerate(body.tools or ())}
        return cls(how, shown(body.tools), offered, strict, body.parallel_tool_calls is not False, fields)

    def constraint(self, beside: StructuredOutputs | None, format_: CallFormat) -> StructuredOutputs | None:
        """The form of calls, which the model writes as `format_` has it unless there must be one; else `beside`.

        Raises InvalidRequest where both ask for something.
        """
        if self.how == "none":
            return beside
        if beside is not None:
            param = beside.param.partition(".")[0]
            raise InvalidRequest(
                f"{param}: an answer of that form has no room for tool calls; send tool_choice 'none' with it",
                param=param,
            )
        if self.how == "auto":
            return self._spans(format_)
        if self.how == "named":
            [(name, schema)] = self.offered.items()
            return StructuredOutputs(json=schema, lenient=not self.strict, param=self.fields[name])
        schema = schema_of_calls(self.offered, most=self._most)
        return StructuredOutputs(json=schema, lenient=not self.strict, param="tools", places=self._places)

    def passed_over(self, format_: CallFormat) -> dict[str, bool]:
        """What of the tools nothing, or not always something, is done with, by its place in the body."""
        is_held = format_.held is not None and format_.held.everywhere
        return {"tools.function.strict": True} if self.how == "auto" and self.strict and not is_held else {}

    def listener(self, format_: CallFormat) -> Listener:
        """Hears the calls in one choice, which the model writes as `format_` has it, or as `constraint` says."""
        match self.how:
            case "none":
                return Plain()
            case "auto":
                return format_.listener(self.offered, self._most)
            case "required":
                return calls_listener(self.offered, self._most, format_.new_id)
            case "named":
                [name] = self.offered
                return Arguments(name, format_.new_id)

    @property
    def _most(self) -> int | None:
        """Calls that there may be."""
        return None if self.is_parallel else 1

    @property
    def _places(self) -> tuple[tuple[str, str], ...]:
        """Where each tool's schema stands in that of all calls, and in the body."""
        return tuple((place_of(at), self.fields[name]) for at, name in enumerate(self.offered))

    def _spans(self, format_: CallFormat) -> StructuredOutputs | None:
        """Calls that the model makes by itself, where a tool is strict: the arguments of the others are any object."""
        if not self.strict or format_.held is None:
            return None
        tools = {name: schema if name in self.strict else ANYTHING for name, schema in self.offered.items()}
        forms = format_.held.forms(tools, self._most)
        return StructuredOutputs(spans=Spans(format_.held.marks, forms), param="tools", places=self._places)


def shown(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as a chat template is told of them: as they came, without what is null."""
    return [tool.model_dump(exclude_none=True) for tool in tools] if tools else None


def schemas_of(tools: Sequence[Tool] | None) -> dict[str, Mapping[str, Any]]:
    """The schema of each tool's arguments; raises InvalidRequest for one that is none, and for a name used twice."""
    found: dict[str, Mapping[str, Any]] = {}
    for at, tool in enumerate(tools or ()):
        name, parameters = tool.function.name, tool.function.parameters
        if name in found:
            param = f"tools[{at}].function.name"
            raise InvalidRequest(f"{param}: there is another tool named {name}", param=param)
        check_schema(parameters, f"tools[{at}].{PARAMETERS}")
        found[name] = {"type": "object", **parameters} if parameters else NOTHING
    return found


def _chosen(choice: str | Mapping[str, Any] | None, tools: Tools) -> tuple[How, Sequence[str]]:
    """How tools are used, and which of them."""
    if choice is None:
        return ("auto" if tools else "none"), list(tools)
    if choice == "none":
        return "none", []
    if not tools:
        raise InvalidRequest("tool_choice is only allowed when tools are given", param="tool_choice")
    if choice == "auto":
        return "auto", list(tools)
    if choice == "required":
        return "required", list(tools)
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            return _allowed(choice.get("allowed_tools"), tools)
        if choice.get("type") == "function":
            return "named", [_named(choice, tools, "tool_choice")]
    raise InvalidRequest(f"tool_choice: there is no such choice; there are {CHOICES}", param="tool_choice")


def _allowed(given: Any, tools: Tools) -> tuple[How, Sequence[str]]:
    """OpenAI's way to offer fewer tools than the model is told of."""
    param = "tool_choice.allowed_tools"
    mode = given.get("mode") if isinstance(given, Mapping) else None
    listed = given.get("tools") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{param}.mode: there are auto and required", param=f"{param}.mode")
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest(f"{param}.tools: expected a list of tools", param=f"{param}.tools")
    names = [_named(each, tools, f"{param}.tools[{at}]") for at, each in enumerate(listed)]
    return ("auto" if mode == "auto" else "required"), list(dict.fromkeys(names))


def _named(given: Any, tools: Tools, param: str) -> str:
    """The name in `{"type": "function", "function": {"name": ...}}`."""
    function = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(f"{param}.function.name: expected the name of a tool", param=f"{param}.function.name")
    if name not in tools:
        known = ", ".join(sorted(tools))
        raise InvalidRequest(
            f"{param}.function.name: there is no tool {name!r}; there are {known:.500}", param=f"{param}.function.name"
        )
    return name
