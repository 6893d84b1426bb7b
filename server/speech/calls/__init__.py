"""Formats of tool calls, one file each, under the names that vLLM gives its parsers where it has them."""

from ....core.registry import Registry
from ..format import CallFormat

REGISTRY: Registry[CallFormat] = Registry("tool call parser", package=__name__)
FALLBACK = "json"  # for templates that teach none


def taught_by(template: str | None) -> str:
    """The name of the format that models write under a chat template."""
    names = (name for name in REGISTRY.names() if template is not None and REGISTRY[name].is_taught_by(template))
    return next(names, FALLBACK)
