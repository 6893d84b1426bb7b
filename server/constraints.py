"""`response_format` and `structured_outputs` become one constraint, or a 400 that names the field."""

from __future__ import annotations

from ..core.errors import InvalidRequest
from ..engine.grammar.asked import StructuredOutputs
from .schemas import ResponseFormat, Sampling


def constraint_of(body: Sampling) -> StructuredOutputs | None:
    """The form that the answer must have; raises InvalidRequest for two, or for half of one."""
    format_, asked = body.response_format, body.structured_outputs
    formatted = None if format_ is None else _of_format(format_)
    if asked is None:
        return formatted
    if formatted is not None:
        raise InvalidRequest(
            "response_format and structured_outputs both constrain the answer: send one", param="response_format"
        )
    given = asked.model_dump(by_alias=True, exclude_none=True)
    return StructuredOutputs.of({name: given[name] for name in given if asked.unknown.get(name) is not False})


def _of_format(asked: ResponseFormat) -> StructuredOutputs | None:
    """Without `strict: true`, what a schema says beyond our reach is passed over, as OpenAI has it."""
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return StructuredOutputs(json_object=True, param="response_format")
    if asked.json_schema is None:
        raise InvalidRequest(
            "response_format.json_schema: this field is required with type json_schema",
            param="response_format.json_schema",
            code="missing_required_parameter",
        )
    told = asked.json_schema
    return StructuredOutputs(json=told.schema_, lenient=not told.strict, param="response_format.json_schema.schema")
