"""`aril chat`: talk in the terminal, to a running server or to a model started for the occasion."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.errors import ArilError, InvalidRequest
from ._command import Command
from ._flags import add_api_key, add_url_flags, key_given

if TYPE_CHECKING:
    from ._remote import Remote

TEMPERATURE = 0.2  # of models that say none: the API's 1 makes small ones ramble
HELP = "/adapter NAME (no name: the base), /adapters, /reset, /help, /quit"
ENDINGS = ("/quit", "/exit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to talk to, and how."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="start this model; without it, use the server at --url"
    )
    add_url_flags(parser)
    add_api_key(parser)
    parser.add_argument("--adapter", help="begin with this adapter")
    parser.add_argument("--system", help="a system message")
    parser.add_argument(
        "--temperature", type=float, help=f"(what the model's generation_config.json says, else {TEMPERATURE})"
    )
    parser.add_argument("--max-tokens", type=int)


def run(args: argparse.Namespace) -> int:
    """Talk until /quit or the end of the input."""
    from ._remote import Remote

    with _server(args) as (url, key), Remote(url, key) as server:
        talk = Talk(server, _params(args, server.models()[0]), system=args.system)
        talk.choose(args.adapter)
        print(f"{talk.model} at {url}. {HELP}")
        talk.go_on()
    return 0


@dataclass(slots=True)
class Talk:
    """One conversation; changing the adapter keeps what has been said."""

    server: Remote
    params: dict[str, object]
    system: str | None = None
    model: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def go_on(self) -> None:
        """Read lines until one ends the talk. Ctrl-C ends an answer, not the talk."""
        with contextlib.suppress(EOFError):
            while (line := input(f"{self.model}> ").strip()) not in ENDINGS:
                try:
                    self._command(line) if line.startswith("/") else self._say(line)
                except ArilError as error:
                    print(f"! {error.message}")

    def choose(self, name: str | None) -> None:
        """Talk to an adapter, or to the base; raises InvalidRequest with the choices."""
        names = [model["id"] for model in self.server.models()]
        if name is not None and name not in names:
            raise InvalidRequest(f"no adapter {name!r}; there are {', '.join(names[1:]) or 'none'}")
        self.model = name or names[0]

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/adapter":
            self.choose(rest.strip() or None)
        elif word == "/adapters":
            print("\n".join(model["id"] for model in self.server.models()))
        elif word == "/reset":
            self.messages.clear()
        elif word == "/help":
            print(HELP)
        else:
            print(f"! no command {word}; there are {HELP}")

    def _say(self, line: str) -> None:
        if not line:
            return
        self.messages.append({"role": "user", "content": line})
        opening = [{"role": "system", "content": self.system}] if self.system else []
        heard = ""
        try:
            with closing(self.server.chat(self.model, [*opening, *self.messages], **self.params)) as parts:
                for part in parts:
                    print(part, end="", flush=True)
                    heard += part
        except KeyboardInterrupt:
            print(" ...", end="")
        except ArilError:
            self.messages.pop()  # so that the next line is not a second one in a row
            raise
        print()
        self.messages.append({"role": "assistant", "content": heard})


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """(url, key) of the server to talk to; one that was started here ends with the talk."""
    if args.model is None:
        yield args.url, key_given("--api-key", args.api_key)
        return
    from ._process import running

    print(f"starting {args.model} ...", flush=True)
    with running(args.model, tell=partial(print, flush=True)) as server:
        yield server.url, None


def _params(args: argparse.Namespace, base: Mapping[str, Any]) -> dict[str, object]:
    given = {"temperature": args.temperature, "max_tokens": args.max_tokens}
    if "temperature" not in base.get("sampling_defaults", ()):
        given["temperature"] = TEMPERATURE if args.temperature is None else args.temperature
    return {name: value for name, value in given.items() if value is not None}


EXPORT = Command("talk to a model in the terminal", add_arguments, run)
