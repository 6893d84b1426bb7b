"""What /v1/files and /v1/batches take and answer, in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from ...core.body import Body
from ..tables import Batch, BatchState, File

MONTH = 30 * 24 * 3600
Label = Annotated[str, Field(max_length=64)]
Seconds = Annotated[int, Field(ge=3600, le=MONTH)]


class Expiry(Body):
    """When a file is to go: so many seconds after it was made."""

    anchor: Literal["created_at"]
    seconds: Seconds


class NewBatch(Body):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    output_expires_after: Expiry | None = None


class FileView(BaseModel):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, row: File) -> FileView:
        """The view of a row."""
        return cls(
            id=row.id,
            bytes=row.size,
            created_at=row.created,
            expires_at=row.expires,
            filename=row.name,
            purpose=row.purpose,
        )


class Deletion(BaseModel):
    """The answer to a DELETE."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchError(BaseModel):
    """What is wrong with a line, or with all of the batch."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    """All that is wrong, a hundred at most."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class Counts(BaseModel):
    """Lines: all, those answered with a 2xx, all other answered ones."""

    total: int
    completed: int
    failed: int


class InputDetails(BaseModel):
    """Of the tokens of the prompts."""

    cached_tokens: int


class OutputDetails(BaseModel):
    """Of the tokens of the answers; nobody tells those of reasoning apart."""

    reasoning_tokens: Literal[0] = 0


class BatchUsage(BaseModel):
    """Tokens of all lines that were answered."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class BatchView(BaseModel):
    """A batch. Files of answers are named once it has ended."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    usage: BatchUsage
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, row: Batch) -> BatchView:
        """The view of a row."""
        names = [state for state in BatchState if state is not BatchState.VALIDATING]
        times: dict[str, Any] = {f"{state.value}_at": row.times.get(state.value) for state in names}
        return cls(
            id=row.id,
            endpoint=row.endpoint,
            model=row.model,
            errors=BatchErrors(data=[BatchError(**error) for error in row.errors]) if row.errors else None,
            input_file_id=row.input_file_id,
            completion_window=row.window,
            status=row.state,
            output_file_id=row.output_file_id if row.is_over else None,
            error_file_id=row.error_file_id if row.is_over else None,
            created_at=row.created,
            expires_at=row.expires,
            request_counts=Counts(total=row.total, completed=row.completed, failed=row.failed),
            usage=BatchUsage(
                input_tokens=row.prompt_tokens,
                input_tokens_details=InputDetails(cached_tokens=row.cached_tokens),
                output_tokens=row.completion_tokens,
                total_tokens=row.prompt_tokens + row.completion_tokens,
            ),
            metadata=row.tags,
            **times,
        )


View = TypeVar("View", FileView, BatchView)


class Listed(BaseModel, Generic[View]):
    """A page of a list; the next one begins after `last_id`."""

    object: Literal["list"] = "list"
    data: list[View]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, views: Sequence[View], limit: int) -> Listed[View]:
        """The first `limit` of what was found."""
        data = list(views[:limit])
        ids = [view.id for view in data]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=len(views) > limit)
