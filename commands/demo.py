"""`aril demo`: one base and four adapters answer in one batch, and a fifth joins while they talk."""

from __future__ import annotations

import argparse
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import NotFound, Unavailable
from ._command import Command
from ._examples import FOLDER, Example, examples

if TYPE_CHECKING:
    from ._remote import Admin, Remote

MODEL = "demo"
FIRST = 4  # adapters that are there from the start; one more comes later
GATE_SECONDS = 300  # for an adapter to be checked
ANSWER_TOKENS = 48
LONG_TOKENS = 96  # of the answers that are under way when the last adapter comes


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer with its times, in seconds from when it was asked for."""

    text: str
    num_tokens: int
    first: float
    total: float


def run(_args: argparse.Namespace) -> int:
    """The whole show; takes a minute at most, the first start excepted."""
    found = examples()
    if len(found) < 2:
        raise NotFound(f"the demo needs the example adapters, which are not in {FOLDER}")
    from ._process import running
    from ._remote import Admin, Remote

    print("Starting the demo base.", flush=True)
    begin = time.perf_counter()
    with (
        running(MODEL, ["--no-examples"], tell=partial(print, flush=True)) as server,
        Remote(server.url) as remote,
        Admin(server.url, server.admin_key) as registry,
    ):
        print(f"Ready in {time.perf_counter() - begin:.1f} s at {server.url}\n")
        early, late = found[:FIRST], found[min(FIRST, len(found) - 1)]
        for example in early:
            _upload(registry, example)
        _together(remote, early)
        _join_in(remote, early, lambda: _upload(registry, late), late)
    print("\nThat was the demo. `aril serve demo` keeps it running; `aril chat` talks to it.")
    return 0


def _together(remote: Remote, early: Sequence[Example]) -> None:
    """Ask the base and all adapters at the same moment, and show what each says."""
    base = remote.models()[0]["id"]
    asked = [(base, "the base, as it is", early[0].ask), *((e.name, e.about, e.ask) for e in early)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as pool:
        under_way = [pool.submit(_ask, remote, name, question, ANSWER_TOKENS) for name, _, question in asked]
        num_together = _most_running(remote, under_way)
        answers = [future.result() for future in under_way]
    seconds = time.perf_counter() - begin
    print(f"\n{len(asked)} models, asked at once:")
    for (name, about, question), answer in zip(asked, answers, strict=True):
        _show(name, about, question, answer)
    num_tokens = sum(answer.num_tokens for answer in answers)
    print(
        f"\nSeen in one step: {num_together} of them. {num_tokens} tokens in {seconds:.2f} s, "
        f"{num_tokens / seconds:.0f} tokens/s in all."
    )


def _join_in(remote: Remote, early: Sequence[Example], upload: Callable[[], None], late: Example) -> None:
    """Upload one more adapter while the others stream, and ask it at once."""
    print(f"\nNow {late.name} is uploaded while the others stream:")
    talking = threading.Barrier(len(early) + 1)
    with ThreadPoolExecutor(len(early)) as pool:
        streams = [
            pool.submit(_ask, remote, e.name, e.ask, LONG_TOKENS, ignore_eos=True, talking=talking) for e in early
        ]
        talking.wait(timeout=120)
        upload()
        answer = _ask(remote, late.name, late.ask, ANSWER_TOKENS)
        num_streaming = sum(not stream.done() for stream in streams)
        _show(late.name, late.about, late.ask, answer)
        _report(streams, num_streaming)


def _most_running(remote: Remote, under_way: Sequence[Future[Answer]]) -> int:
    """The most requests that the engine was seen to run at one moment, until all are answered."""
    most = 0
    while wait(under_way, timeout=0.02).not_done:
        most = max(most, remote.ready()["running"])
    return most


def _report(streams: Sequence[Future[Answer]], num_streaming: int) -> None:
    answers = [stream.result() for stream in streams]
    tokens = sum(answer.num_tokens for answer in answers)
    print(
        f"\n{num_streaming} of {len(answers)} other streams were still going when it had answered; "
        f"all ended well, with {tokens} tokens in {max(answer.total for answer in answers):.2f} s."
    )


def _upload(registry: Admin, example: Example) -> None:
    from ._remote import Wishes, decided, rejection, upload

    begin = time.perf_counter()
    number = upload(registry, example.name, str(example.folder), Wishes(description=example.about))
    revision = decided(registry, example.name, number, timeout=GATE_SECONDS)
    if (why := rejection(example.name, revision)) is not None:
        raise why
    print(
        f"  uploaded {example.name:<10} rank {revision['rank']:>2}, {revision['size'] / 1024:>4.0f} KiB, "
        f"active after {1e3 * (time.perf_counter() - begin):.0f} ms",
        flush=True,
    )


def _ask(
    remote: Remote,
    model: str,
    question: str,
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    talking: threading.Barrier | None = None,
) -> Answer:
    """One streamed answer; `talking` is met at its first piece."""
    messages = [{"role": "user", "content": question}]
    params = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": ignore_eos}
    begin, first, text, num_tokens = time.perf_counter(), 0.0, "", 0
    with closing(remote.chat_events(model, messages, stream_options={"include_usage": True}, **params)) as events:
        for event in events:
            if not first:
                first = time.perf_counter() - begin
                if talking is not None:
                    talking.wait(timeout=120)
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    if not num_tokens:
        raise Unavailable(f"{model} said nothing")
    return Answer(text.strip(), num_tokens, first, time.perf_counter() - begin)


def _show(name: str, about: str, question: str, answer: Answer) -> None:
    print(f"\n  {name}: {about}")
    print(f"    asked    {question}")
    said = textwrap.wrap(answer.text, 100) or [""]
    print(f"    answers  {said[0]}")
    for line in said[1:]:
        print(f"             {line}")
    print(f"    ({answer.num_tokens} tokens, the first after {1e3 * answer.first:.0f} ms)")


EXPORT = Command("show it all: a base, four adapters in one batch, and a fifth that joins", lambda _: None, run)
