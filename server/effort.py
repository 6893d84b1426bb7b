"""`reasoning_effort`: for chat templates that know it. To others it would say nothing, and so it is refused."""

from __future__ import annotations

from ..core.errors import InvalidRequest
from .deps import Face
from .schemas import ChatRequest

NAME = "reasoning_effort"


def heeded(face: Face, body: ChatRequest) -> ChatRequest:
    """`body`, with its effort among what the template is told; what `chat_template_kwargs` says of it goes first."""
    if body.reasoning_effort is None:
        return body
    if knows(face, body, NAME):
        told = {NAME: body.reasoning_effort, **(body.chat_template_kwargs or {})}
        return body.model_copy(update={"chat_template_kwargs": told})
    if body.reasoning_effort == "none":
        return body
    message = f"{NAME} is not supported: this model's chat template does not know it"
    raise InvalidRequest(message, param=NAME, code="unsupported_parameter")


def knows(face: Face, body: ChatRequest, variable: str) -> bool:
    """Whether the chat template of a request reads `variable`."""
    template = body.chat_template or face.engine.text.template(with_tools=bool(body.tools)) or ""
    return variable in template
