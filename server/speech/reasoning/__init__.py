"""How models write their thoughts, a file each, under the names that vLLM gives its parsers."""

from ....core.registry import Registry
from ..thoughts import ThoughtFormat

REGISTRY: Registry[ThoughtFormat] = Registry("reasoning parser", package=__name__)
