"""The gate: what an uploaded revision goes through before requests may use it, and the report that stays with it."""

from .golden import golden_of
from .worker import GATE, Gate

__all__ = ["GATE", "Gate", "golden_of"]
