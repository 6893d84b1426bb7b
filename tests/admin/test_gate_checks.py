"""Each check of the gate on its own: files on a tiny base, and runs on a real engine that knows of no registry."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.admin_api.gate import golden as golden_module
from aril.admin_api.gate import golden_of
from aril.admin_api.gate.asking import Asker
from aril.admin_api.gate.files import Claims, check_files
from aril.admin_api.gate.golden import run_golden
from aril.admin_api.gate.report import MAX_PROBLEMS, Check, Report
from aril.admin_api.gate.smoke import Smoke
from aril.core.errors import InvalidRequest
from aril.engine.aio import AsyncEngine
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.lora.adapter import AdapterRef
from aril.lora.fingerprint import Fingerprint
from aril.lora.image import load_image
from aril.lora.validate import TargetSpec
from builders.adapters import load_base, with_adapter
from builders.engines import make_config
from builders.registry import alive
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
NOTHING_CLAIMED = Claims()
ROOMY = 1 << 30


@pytest.fixture(scope="module")
def home(base: Path) -> Engine:
    """An engine whose targets are asked for; it runs nothing."""
    return Engine(make_config(base))


@pytest.fixture
def targets(home: Engine) -> TargetSpec:
    return home.targets


@pytest.fixture
def folder(folders: list[Path], tmp_path: Path) -> Path:
    """A copy of an adapter, to spoil."""
    return Path(shutil.copytree(folders[0], tmp_path / "adapter"))


def edit(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    weights = folder / "adapter_model.safetensors"
    save_file(change({name: tensor.clone() for name, tensor in load_file(weights).items()}), weights)


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def checked(
    folder: Path, targets: TargetSpec, claims: Claims = NOTHING_CLAIMED, *, memory: int = ROOMY
) -> dict[str, Any]:
    """The report of the files."""
    report = Report()
    check_files(report, folder, targets, claims, adapter_memory=memory)
    return report.said(targets.base.said(), attempts=1)


def outcomes(said: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in said["checks"]}


def numbers(said: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in said["checks"] if check["name"] == name)


def test_sound_files_pass_and_tell_what_they_are(folder: Path, targets: TargetSpec) -> None:
    said = checked(folder, targets, Claims(licence="apache-2.0"))
    assert said["problems"] == []
    assert set(outcomes(said).values()) == {"passed", "skipped"}
    assert numbers(said, "structure")["modules"] == 4
    assert numbers(said, "licence")["licence"] == "apache-2.0"
    assert numbers(said, "numbers")["largest"] >= numbers(said, "numbers")["median"] > 0
    assert said["base"] == targets.base.said()
    json.dumps(said, allow_nan=False)


def test_bytes_are_those_that_the_adapter_will_take(folder: Path, targets: TargetSpec) -> None:
    taken = load_image(folder, targets, list(targets.modules)).data.nbytes
    assert numbers(checked(folder, targets), "memory")["bytes"] == taken


def test_an_adapter_too_large_for_the_memory_is_told_bytes_and_flag(folder: Path, targets: TargetSpec) -> None:
    needed = numbers(checked(folder, targets), "memory")["bytes"]
    assert checked(folder, targets, memory=needed)["problems"] == []
    (told,) = checked(folder, targets, memory=needed - 1)["problems"]
    assert [word in told for word in (str(needed), str(needed - 1), "--adapter-memory")] == [True] * 3


def test_numbers_that_are_not_finite_are_named(folder: Path, targets: TargetSpec) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    edit(folder, lambda tensors: {**tensors, name: tensors[name].fill_(float("nan"))})
    said = checked(folder, targets)
    assert said["problems"] == [f"tensor {name}: holds NaN or Inf"]
    assert outcomes(said)["numbers"] == "failed"


@pytest.mark.parametrize("half", ["lora_A", "lora_B"])
def test_an_adapter_of_zeros_is_refused(half: str, folder: Path, targets: TargetSpec) -> None:
    edit(folder, lambda tensors: {n: t.zero_() if half in n else t for n, t in tensors.items()})
    (told,) = checked(folder, targets)["problems"]
    assert "the adapter changes nothing" in told


def test_modules_of_zeros_beside_others_are_counted(folder: Path, targets: TargetSpec) -> None:
    edit(folder, lambda tensors: {n: t.zero_() if "layers.0" in n else t for n, t in tensors.items()})
    said = checked(folder, targets)
    assert (said["problems"], numbers(said, "numbers")["without_effect"]) == ([], 2)


def test_an_adapter_of_another_base_is_refused_unless_it_is_forced(folder: Path, targets: TargetSpec) -> None:
    claims = Claims(base="meta-llama/Llama-3.2-1B")
    named = replace(targets, base=Fingerprint("tiny", ("HuggingFaceTB/SmolLM2-135M",)))
    (told,) = checked(folder, named, claims)["problems"]
    assert [name in told for name in ("meta-llama/Llama-3.2-1B", "HuggingFaceTB/SmolLM2-135M")] == [True] * 2
    both, how = told.split("; ")
    assert [word in how for word in ("--force", "force=true")] == [True] * 2
    forced = checked(folder, named, replace(claims, forced=True))
    assert (forced["problems"], forced["notes"]) == ([], [f"forced: {both}"])


def test_what_does_not_fit_is_told_and_the_rest_skipped(folder: Path, targets: TargetSpec) -> None:
    edit_config(folder, use_dora=True)
    edit(folder, lambda tensors: {f"x.{name}": tensor for name, tensor in tensors.items()})
    said = checked(folder, targets)
    assert "DoRA" in said["problems"][0]
    assert len(said["problems"]) > 8
    assert outcomes(said) == {**dict.fromkeys(outcomes(said), "skipped"), "structure": "failed"}


def test_a_report_tells_the_first_problems_and_counts_the_rest() -> None:
    report = Report()
    with report.check("structure") as check:
        check.problems += [f"problem {at}" for at in range(MAX_PROBLEMS + 7)]
    problems = report.said({}, attempts=1)["problems"]
    assert (len(problems), problems[-1]) == (MAX_PROBLEMS + 1, "and 7 more problems")


@asynccontextmanager
async def engine_with(base: Path, folder: Path, **flags: object) -> AsyncIterator[tuple[Asker, AdapterRef]]:
    ref = AdapterRef("mine", -1, "0" * 64)
    engine = AsyncEngine(Engine(make_config(base, **flags), adapter_folder=lambda _ref: folder))
    try:
        await engine.load_adapter(ref)
        yield Asker(engine), ref
    finally:
        await engine.close()


async def smoked(base: Path, folder: Path, **flags: object) -> Check:
    async with engine_with(base, folder, **flags) as (asker, ref):
        check = Check("smoke")
        await Smoke(asker).run(check, ref)
        return check


@alive
async def test_the_distance_to_the_base_is_that_of_peft(base: Path, folder: Path) -> None:
    async with engine_with(base, folder) as (asker, ref):
        check, smoke = Check("smoke"), Smoke(asker)
        await smoke.run(check, ref)
        ids = torch.tensor([smoke.tokens()])
    with torch.no_grad():
        ours = with_adapter(base, folder)(ids).logits[0, :-1].log_softmax(-1)
        theirs = load_base(base)(ids).logits[0, :-1].log_softmax(-1)
    expected = float((ours.exp() * (ours - theirs)).sum(-1).mean())
    assert check.problems == []
    assert check.numbers["mean_kl"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert check.numbers["max_kl"] >= check.numbers["mean_kl"] > 0


@alive
async def test_an_effect_that_the_precision_swallows_is_refused(base: Path, folder: Path) -> None:
    edit(folder, lambda tensors: {n: t * 1e-12 if "lora_B" in n else t for n, t in tensors.items()})
    (told,) = (await smoked(base, folder)).problems
    assert "every logit is that of the base" in told


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_a_quantised_base_is_run_like_any_other(
    quantization: str, base: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path / "cache"))
    flags = {"quantization": quantization, "dtype": "bfloat16"}
    check = asyncio.run(smoked(base, folder, **flags))
    assert check.problems == []
    assert check.numbers["mean_kl"] > 0
    edit(folder, lambda tensors: {n: t * 1e-30 if "lora_B" in n else t for n, t in tensors.items()})
    assert "changes nothing" in asyncio.run(smoked(base, folder, **flags)).problems[0]


@alive
async def test_a_running_answer_is_not_changed_by_a_check_beside_it(base: Path, folder: Path) -> None:
    async with engine_with(base, folder) as (asker, ref):
        smoke = Smoke(asker)
        alone = await _stream(asker.engine, "alone")
        beside, check = asyncio.create_task(_stream(asker.engine, "beside")), Check("smoke")
        await smoke.run(check, ref)
        assert await beside == alone
        assert check.problems == []


async def _stream(engine: Any, name: str) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    return [token async for chunk in engine.generate(name, [5, 6, 7], params) for token in chunk.token_ids]


@alive
async def test_logits_that_overflow_are_refused(base: Path, folder: Path) -> None:
    edit(folder, lambda tensors: {n: t * 1e25 for n, t in tensors.items()})
    (told,) = (await smoked(base, folder)).problems
    assert "NaN or Inf" in told


@alive
async def test_the_base_is_asked_once(base: Path, folder: Path) -> None:
    async with engine_with(base, folder) as (asker, ref):
        smoke = Smoke(asker)
        first, second = Check("smoke"), Check("smoke")
        await asyncio.gather(smoke.run(first, ref), smoke.run(second, ref))
        asked = []
        asker.ask = lambda *given: asked.append(given) or Asker.ask(asker, *given)  # type: ignore[method-assign,func-returns-value]
        await smoke.run(Check("smoke"), ref)
        assert [given[2] for given in asked] == [ref]
        assert first.numbers["mean_kl"] == pytest.approx(second.numbers["mean_kl"], rel=1e-3)


@alive
async def test_a_check_that_never_gets_its_turn_becomes_a_request_like_others(base: Path, folder: Path) -> None:
    async with engine_with(base, folder, max_num_seqs=1) as (asker, _):
        busy = asyncio.create_task(_keep_busy(asker.engine))
        patient = Asker(asker.engine, patience=0.2)
        params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        first = await patient.ask([5, 6, 7], params, None)
        patient._patience = 600.0  # who has seen the crowd does not wait again
        second = await patient.ask([5, 6, 7], params, None)
        busy.cancel()
        assert first.text == second.text != ""


async def _keep_busy(engine: Any) -> None:
    """Two endless streams of requests, of which one always waits."""

    async def stream(name: str) -> None:
        at = 0
        while True:
            at += 1
            params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
            async for _ in engine.generate(f"{name}-{at}", [5, 6, 7], params):
                pass

    await asyncio.gather(stream("one"), stream("two"))


MESSAGE = [{"role": "user", "content": "Hello"}]
WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "golden"),
    "no list": ('{"prompt": "a", "expect": "b"}', "golden"),
    "six": (json.dumps([{"prompt": "a", "expect": "b"}] * 6), "at most 5"),
    "both inputs": (json.dumps([{"prompt": "a", "messages": MESSAGE, "expect": "b"}]), "prompt or messages"),
    "no input": (json.dumps([{"expect": "b"}]), "prompt or messages"),
    "nothing expected": (json.dumps([{"prompt": "a"}]), "expect or regex"),
    "an unknown field": (json.dumps([{"prompt": "a", "expect": "b", "temperature": 1}]), "golden[0].temperature"),
    "no expression": (json.dumps([{"prompt": "a", "regex": "("}]), "not a regular expression"),
    "an expression without end": (json.dumps([{"prompt": "a", "regex": "(?:(?:a{900}){900}){900}"}]), "too much"),
    "too many tokens": (json.dumps([{"prompt": "a", "expect": "b", "max_tokens": 100_000}]), "golden[0].max_tokens"),
    "an empty text": (json.dumps([{"prompt": "a", "expect": ""}]), "golden[0].expect"),
}


@pytest.mark.parametrize(("raw", "said"), WRONG.values(), ids=WRONG.keys())
def test_golden_prompts_that_cannot_be_run_are_refused_at_once(raw: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        golden_of(raw)
    assert said in caught.value.message
    assert "Value error" not in caught.value.message  # pydantic's own word
    assert caught.value.param == "golden"


async def golden(base: Path, folder: Path, *prompts: dict[str, Any]) -> Check:
    async with engine_with(base, folder) as (asker, ref):
        check = Check("golden")
        await run_golden(check, golden_of(json.dumps(prompts)), asker, ref)
        return check


@alive
async def test_golden_prompts_are_answered_greedily_by_the_adapter(base: Path, folder: Path) -> None:
    async with engine_with(base, folder) as (asker, ref):
        tokens = asker.engine.text.encode("hello there")
        said = (await asker.ask(tokens, SamplingParams(temperature=0.0, max_tokens=8), ref)).text
    asked = {"prompt": "hello there", "max_tokens": 8}
    check = await golden(base, folder, {**asked, "expect": said[2:9]}, {**asked, "regex": r"(?s)\A.+\Z"})
    assert check.problems == []
    assert [prompt["answer"] for prompt in check.numbers["prompts"]] == [said, said]


@alive
async def test_an_answer_that_is_not_as_expected_is_shown(base: Path, folder: Path) -> None:
    check = await golden(base, folder, {"prompt": "hello", "expect": "never said"}, {"prompt": "hello", "regex": "^$"})
    answer = check.numbers["prompts"][0]["answer"]
    assert [repr(answer) in problem for problem in check.problems] == [True, True]
    assert "golden prompt 1" in check.problems[0]
    assert "'never said'" in check.problems[0]


@alive
async def test_an_expression_without_end_is_cut_off(base: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_module, "MATCH_SECONDS", 0.05)
    endless = {"prompt": "hello", "max_tokens": 64, "regex": r"(?s)^(.|\s|\S)*(?<!.)$."}
    (told,) = (await golden(base, folder, endless)).problems
    assert "takes too long" in told


@alive
async def test_a_prompt_that_does_not_fit_the_context_is_the_uploaders_fault(base: Path, folder: Path) -> None:
    (told,) = (await golden(base, folder, {"prompt": "hello " * 2000, "expect": "x"})).problems
    assert "golden prompt 1" in told
