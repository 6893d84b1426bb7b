"""Chat templates rendered: by transformers in its sandbox, here or, for what a stranger wrote, in a process of its own.

The sandbox keeps a template from files and code, but not from taking for ever or all memory: `{{ 10 ** (10 ** 9) }}`
is one call that nothing in this process could end. So the system ends the process that renders it. One is begun for
each such template, which takes half a second: who needs it often has the operator set it.

    python -m aril.engine.templates  < arguments  > text
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidRequest, Unavailable

Renderer = Callable[[Mapping[str, Any]], str]  # of render_jinja_template's arguments, but with one conversation

CPU_SECONDS = 1.0  # of one template; those of models take some milliseconds
SECONDS = 20.0  # by the clock, the start of the process included, however busy the machine is
MEMORY = 256 * 1024**2  # bytes on top of what the process takes
LARGEST = 1 << 22  # characters that it may make
MOST = 2  # at a time: whoever waits for one holds a thread that others need
NICENESS = 10
ENDED = "it takes too long, or too much memory"

_turns = threading.BoundedSemaphore(MOST)


def chosen(templates: str | Mapping[str, str] | None, asked: str | None, *, with_tools: bool) -> str | None:
    """The template in force: the one that was asked for, by name or in words, else the model's."""
    if isinstance(templates, str) or templates is None:
        return asked or templates
    if asked is not None:
        return templates.get(asked, asked)
    return (templates.get("tool_use") if with_tools else None) or templates.get("default")


def read_template(named: str) -> str:
    """That of `--chat-template`: a file, or a template itself."""
    if "{" in named:  # a template itself, as vLLM takes it too
        return named
    if not Path(named).is_file():
        raise InvalidRequest(f"--chat-template {named}: there is no such file", param="chat_template")
    return Path(named).read_text(encoding="utf-8")


def render(arguments: Mapping[str, Any]) -> str:
    """The text; raises InvalidRequest with what the template or the sandbox has to say."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    told = dict(arguments)
    try:
        (text,), _ = render_jinja_template([told.pop("messages")], **told)
    except (TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise InvalidRequest(f"the chat template refuses this conversation: {error}", param="messages") from error
    return str(text)


def render_apart(arguments: Mapping[str, Any]) -> str:
    """`render`, in a process that is ended when it passes a bound; raises Unavailable when too many are at it."""
    if not _turns.acquire(blocking=False):
        raise Unavailable("too many chat templates of requests are being rendered; try again", code="renderer_busy")
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(dict(arguments)).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise refused(ENDED) from None
    finally:
        _turns.release()
    if done.returncode != 0:
        raise refused(ENDED)
    answer: dict[str, str] = json.loads(done.stdout)
    if "refused" in answer:
        raise refused(answer["refused"])
    return answer["text"]


def refused(why: str) -> InvalidRequest:
    """The error of a template that came with a request."""
    return InvalidRequest(f"chat_template: {why}", param="chat_template")


def _answer(arguments: Mapping[str, Any]) -> dict[str, str]:
    try:
        text = render(arguments)
    except InvalidRequest as error:
        return {"refused": error.message[:2000]}
    except (MemoryError, RecursionError):
        return {"refused": ENDED}
    return {"text": text} if len(text) <= LARGEST else {"refused": f"it makes more than {LARGEST} characters"}


def _bound() -> None:
    """Limits that the system holds this process to."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def main() -> None:
    """Render what stands on standard input."""
    import os

    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    arguments = json.load(sys.stdin)
    render({"messages": [], "chat_template": ""})  # imports all there is to import, before there is a bound
    _bound()
    json.dump(_answer(arguments), sys.stdout)


if __name__ == "__main__":
    main()
