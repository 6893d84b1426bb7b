"""The command `aril`: runs one of the files in commands/, and makes of any error one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence

from . import __version__
from .commands._command import Command
from .commands._parser import Parser
from .core.errors import ArilError, InvalidRequest
from .core.registry import Registry

DEBUG = "ARIL_DEBUG"  # set to anything to see where an unexpected error came from
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aril ARGV...`: 0 when all went well, 2 for wrong usage, 1 for any other failure."""
    args, strays = _parser().parse_known_args(argv)
    if strays:
        parser: Parser = args.parser
        parser.refuse(strays, getattr(args, "hint", None))
    try:
        command: Command = args.command
        return command.run(args)
    except ArilError as error:
        _complain(error.message, *(problem for problem in error.problems if problem not in error.message))
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has gone
        return 1
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _complain(f"unexpected {type(error).__name__}: {error} (set {DEBUG}=1 to see where)")
        return 1
    finally:
        gc.freeze()  # the interpreter's last collection would walk all of torch, for seconds


def _parser() -> Parser:
    parser = Parser(prog="aril", description="Serve one base language model with very many LoRA adapters.")
    parser.add_argument("--version", action="version", version=__version__)
    commands: Registry[Command] = Registry("command", f"{__package__}.commands")
    choices = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in commands.names():
        command = commands[name]
        sub = choices.add_parser(name.replace("_", "-"), help=command.summary, description=command.summary)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def _complain(message: str, *problems: str) -> None:
    print(f"aril: {message}", file=sys.stderr)
    for problem in problems:
        print(f"  - {problem}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
