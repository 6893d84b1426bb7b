"""`aril run-batch -i IN -o OUT MODEL`: the requests of an OpenAI batch file, answered without a server."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from ..core.errors import InvalidRequest
from ..engine.config import EngineConfig
from ._command import Command
from ._elsewhere import OF_ENGINES, refuse_elsewhere
from ._flags import add_engine_flags, add_server_flags, engine_config, server_config
from ._lora_flags import add_lora_flags, lora_modules

ELSEWHERE = ("model", "adapter_store")  # the first is added here, the second is of servers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, the model by place or by flag as vLLM has it, and the engine's flags."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument("model", nargs="?", metavar="MODEL", help="as for `aril serve`")
    model.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same, as vLLM's run-batch takes it")
    parser.add_argument(
        "-i", "--input-file", type=Path, required=True, metavar="IN.jsonl", help="requests, in OpenAI's batch format"
    )
    parser.add_argument(
        "-o", "--output-file", type=Path, required=True, metavar="OUT.jsonl",
        help="answers, as they come; the requests that it answers already are passed over",
    )  # fmt: skip
    add_engine_flags(parser, only=[each.name for each in fields(EngineConfig) if each.name not in ELSEWHERE])
    add_server_flags(parser, only=("tool_call_parser", "reasoning_parser", "trust_request_chat_template"))
    add_lora_flags(parser)
    refuse_elsewhere(parser, OF_ENGINES)


def run(args: argparse.Namespace) -> int:
    """Answer what has no answer yet."""
    args.model = args.model or args.model_flag
    if args.model is None:
        raise InvalidRequest("which model? aril run-batch -i IN.jsonl -o OUT.jsonl MODEL", param="model")
    config, manners, modules = engine_config(args), server_config(args), lora_modules(args.lora_modules)
    from ..server.inside import BATCHED
    from ._batch_files import Answers, Requests

    requests = Requests(args.input_file, BATCHED)
    answers = Answers(args.output_file, requests)
    before = len(answers.done)
    if before:
        print(f"{args.output_file} has {before} of {len(requests)} answers already; they are passed over")
    if before < len(requests):
        from ._offline import answer_all

        try:
            answer_all(config, manners, modules, requests, answers)
        finally:
            answers.close()
    failed = f", {answers.num_failed} of them with an error" if answers.num_failed else ""
    print(f"{len(requests) - before} requests answered{failed}: {args.output_file}")
    return 0


EXPORT = Command("answer a file of requests without a server", add_arguments, run)
