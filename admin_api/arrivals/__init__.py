"""Adapters on their way in: in parts that a client sends, or fetched from a source. Both end as an upload."""

from .service import Arrivals

__all__ = ["Arrivals"]
