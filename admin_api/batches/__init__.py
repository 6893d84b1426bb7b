"""OpenAI's files and batches: rows in the database, and a worker that has their lines answered."""

from .worker import Worker

__all__ = ["Worker"]
