"""Grammar backends, a file each: a file's EXPORT makes a Backend of a Vocabulary."""

from ....core.registry import Registry
from ..base import BackendKind

REGISTRY: Registry[BackendKind] = Registry("grammar backend", package=__name__)
