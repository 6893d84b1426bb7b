"""`aril generate MODEL`: answers without a server. Each prompt goes to each adapter that is named, in one batch."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._command import Command
from ._flags import add_engine_flags, engine_config

if TYPE_CHECKING:
    from ..engine.llm import LLM, RequestOutput
    from ..engine.params import SamplingParams

SAMPLING = {  # flag of a SamplingParams field -> how its text is read
    "n": int,
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "stop": str,
}
MAX_TOKENS = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to ask, whom, and how."""
    parser.add_argument("--prompt", action="append", help="the same; may be given several times")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a PEFT folder, by its path or under a name; may be given several times",
    )
    parser.add_argument("--base", action="store_true", help="let the base answer too, beside the adapters")
    parser.add_argument(
        "--chat", action="store_true", help="take each prompt as a user's message, in the chat template"
    )
    parser.add_argument("--sampling-seed", type=int, help="the same answers each time")
    parser.add_argument("--json", action="store_true", help="one JSON object per answer")
    for name, kind in SAMPLING.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    add_engine_flags(parser)
    prompts = parser.add_argument(
        "prompts", nargs="+", metavar="PROMPT", help="what to answer; without any, lines of stdin"
    )
    prompts.required = False  # `*` would take its none before a flag, and leave none to come after it


def run(args: argparse.Namespace) -> int:
    """Generate and print."""
    prompts = [*(args.prompts or ()), *(args.prompt or ())] or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise InvalidRequest("no prompt: give it after the model, by --prompt, or as lines on stdin")
    adapters = dict(_named(text) for text in args.adapter)
    config = engine_config(args)
    from ..engine.llm import LLM

    llm = LLM(**{each.name: getattr(config, each.name) for each in dataclasses.fields(config)}, adapters=adapters)
    try:
        asked: list[str | None] = [None] if args.base or not adapters else []
        outputs = _answers(llm, args, prompts, [*asked, *adapters])
    finally:
        llm.close()
    for output in outputs:
        _print(output, as_json=args.json, alone=len(outputs) == 1 and len(output.outputs) == 1)
    return 0


def _answers(llm: LLM, args: argparse.Namespace, prompts: list[str], models: list[str | None]) -> list[RequestOutput]:
    """Prompt by prompt, the answers of all models."""
    pairs = [(prompt, model) for prompt in prompts for model in models]
    params, names = _params(llm, args), [model for _, model in pairs]
    shows_progress = sys.stderr.isatty()
    if args.chat:
        talks = [[{"role": "user", "content": prompt}] for prompt, _ in pairs]
        outputs = llm.chat(talks, params, adapter=names, use_tqdm=shows_progress)
    else:
        outputs = llm.generate([prompt for prompt, _ in pairs], params, adapter=names, use_tqdm=shows_progress)
    for output, (prompt, _) in zip(outputs, pairs, strict=True):
        output.prompt = prompt  # as it was asked, without the template around it
    return outputs


def _params(llm: LLM, args: argparse.Namespace) -> SamplingParams:
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    if args.sampling_seed is not None:
        given["seed"] = args.sampling_seed
    return dataclasses.replace(llm.default_params, **{"max_tokens": MAX_TOKENS, **given})


def _named(text: str) -> tuple[str, Path]:
    name, _, folder = text.rpartition("=")
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InvalidRequest(f"--adapter {text}: there is no folder {folder}", param="adapter")
    return name or path.resolve().name, path


def _print(output: RequestOutput, *, as_json: bool, alone: bool) -> None:
    for choice in output.outputs:
        if as_json:
            print(json.dumps(_fields(output, choice.text, choice.finish_reason), ensure_ascii=False))
        elif alone:
            print(choice.text)
        else:
            print(f"[{output.adapter or 'base'}] {output.prompt}\n{choice.text.strip()}\n")


def _fields(output: RequestOutput, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"prompt": output.prompt, "adapter": output.adapter, "text": text, "finish_reason": finish_reason}


EXPORT = Command("answer prompts without a server", add_arguments, run)
