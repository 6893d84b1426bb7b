"""The few exceptions that cross a floor: one type per way of recovering. None of them knows HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ArilError(Exception):
    """A failure that a user can understand: what was asked, what is possible, what to do.

    `param` names the field at fault, as the caller spelled it; `problems` lists every finding where there are several.
    """

    code = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.problems = tuple(problems)


class InvalidRequest(ArilError):
    """The caller's input is wrong and stays wrong: change it."""

    code = "invalid_value"


class InvalidAdapter(InvalidRequest):
    """An adapter that cannot be served on this base; `problems` names every tensor and field at fault."""

    code = "invalid_adapter"


class Unauthorized(ArilError):
    """No key, or one that is not known."""

    code = "invalid_api_key"


class Forbidden(ArilError):
    """A known key that may not do this."""

    code = "permission_denied"


class NotFound(ArilError):
    """Nothing answers to that name (`code` says of which kind)."""

    code = "not_found"


class Conflict(ArilError):
    """The thing exists, but not in a state that allows this."""

    code = "conflict"


class Stale(Conflict):
    """The thing has changed since the caller looked at it: look again."""

    code = "stale"


class Misplaced(Conflict):
    """A part of a file that does not go on where the last one ended, which is at `offset`."""

    code = "wrong_offset"

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class RateLimited(ArilError):
    """Over a limit of the caller's: come back in `retry_after` seconds. `headers` are OpenAI's rate-limit headers."""

    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after = retry_after
        self.headers = dict(headers or {})


class TooLarge(ArilError):
    """More bytes than this server accepts."""

    code = "too_large"


class WrongMedia(ArilError):
    """A body of a kind that is not read here."""

    code = "unsupported_media_type"


class Unavailable(ArilError):
    """Not now: try again."""

    code = "unavailable"


class Overloaded(Unavailable):
    """No room now; nothing was done for the request."""

    code = "queue_full"


class ShuttingDown(Unavailable):
    """The server ends; another one, or the next one, answers."""

    code = "shutting_down"


class TooSlow(ArilError):
    """The request came more slowly than one may."""

    code = "too_slow"


class TimedOut(ArilError):
    """It took longer than a request may."""

    code = "timeout"


class Unsupported(ArilError):
    """A model, format, option or device that Aril does not serve; the message lists what it does."""

    code = "unsupported"


class DoesNotFit(ArilError):
    """Not enough memory; the message gives the bytes and the flag to turn."""

    code = "does_not_fit"


class EngineDead(Unavailable):
    """The engine has stopped; nothing runs until the process is started again."""

    code = "engine_dead"
