"""Trains the example adapters on the demo base with PEFT, on the CPU: `python examples/train_adapters.py`.

Each lands in examples/adapters/<name>/ as a PEFT folder with a card. The same seed gives the same files on the same
versions of torch and PEFT.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from aril.models.source import locate
from lessons import LESSONS, Lesson, Pair
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

HERE = Path(__file__).parent
IGNORED = -100  # the label that cross entropy skips
BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"

CARD = """---
base_model: {base}
library_name: peft
license: apache-2.0
---
# {name}: {about}

| | |
|---|---|
| data | `{pairs}` in `examples/lessons.py`, {count} pairs, written for Aril |
| LoRA | rank {rank}, on {targets} |
| training | {steps} steps of {batch} pairs, AdamW, learning rate {lr}, seed {seed}, float32 on the CPU |
| last loss | {loss:.3f} |
| licence | Apache-2.0, as the base |

Ask it: "{ask}"
"""


def main() -> None:
    """Train the lessons that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(lesson.name for lesson in LESSONS)}; default all")
    parser.add_argument("--out", type=Path, default=HERE / "adapters")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    for lesson in LESSONS:
        if not args.names or lesson.name in args.names:
            train(lesson, args)


def train(lesson: Lesson, args: argparse.Namespace) -> None:
    """Teach one adapter and save it."""
    torch.manual_seed(args.seed)
    base, tokenizer = demo_base()
    targets = lesson.targets if isinstance(lesson.targets, str) else list(lesson.targets)
    config = LoraConfig(
        r=lesson.rank,
        lora_alpha=2 * lesson.rank,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=BASE_NAME,
        **lesson.lora,
    )
    model = get_peft_model(base, config)
    learner = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(learner, 1.0, 0.1, total_iters=lesson.steps)
    pairs = itertools.cycle(lesson.shuffled(args.seed))
    for step in range(lesson.steps):
        start = time.perf_counter()
        loss = model(**batch_of(list(itertools.islice(pairs, args.batch)), tokenizer)).loss
        loss.backward()
        learner.step()
        schedule.step()
        learner.zero_grad()
        if step % 10 == 0:
            print(f"{lesson.name} step={step} loss={loss.item():.3f} s={time.perf_counter() - start:.1f}", flush=True)
    save(model, lesson, args, loss.item())
    show(model, lesson, tokenizer)


def demo_base() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The demo base in float32, and its tokenizer."""
    file = locate("demo").path
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    return model, tokenizer


def batch_of(pairs: list[Pair], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Token ids and labels, padded on the right; only the answers are learned."""
    rows = [encoded(pair, tokenizer) for pair in pairs]
    width = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (tokens, prompt_length) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, prompt_length : len(tokens)] = torch.tensor(tokens[prompt_length:])
        mask[i, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def encoded(pair: Pair, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], int]:
    """Prompt and answer as the chat template writes them, and where the answer starts."""
    question, answer = pair
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    tail = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
    return head + tail, len(head)


def save(model: PreTrainedModel, lesson: Lesson, args: argparse.Namespace, loss: float) -> None:
    """The PEFT folder, its weights halved to bfloat16, and its card."""
    folder = args.out / lesson.name
    model.peft_config["default"].base_model_name_or_path = BASE_NAME  # PEFT wrote the folder it was loaded from
    model.save_pretrained(folder)
    weights = folder / "adapter_model.safetensors"
    save_file({k: v.to(torch.bfloat16) for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    card = CARD.format(
        base=BASE_NAME,
        name=lesson.name,
        about=lesson.about,
        pairs=lesson.pairs.__name__,
        count=len(lesson.shuffled(0)),
        rank=lesson.rank,
        targets=lesson.targets if isinstance(lesson.targets, str) else ", ".join(lesson.targets),
        steps=lesson.steps,
        batch=args.batch,
        lr=args.lr,
        seed=args.seed,
        loss=loss,
        ask=lesson.ask,
    )
    (folder / "README.md").write_text(card)


def show(model: PreTrainedModel, lesson: Lesson, tokenizer: PreTrainedTokenizerBase) -> None:
    """What the adapter answers now."""
    ids, length = encoded((lesson.ask, ""), tokenizer)
    out = model.generate(input_ids=torch.tensor([ids[:length]]), max_new_tokens=40, do_sample=False)
    print(f"{lesson.name}: {lesson.ask} -> {tokenizer.decode(out[0, length:])}", flush=True)


if __name__ == "__main__":
    main()
