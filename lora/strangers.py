"""Files that people upload in place of a PEFT adapter's, each in words of its own: what it is, what to do instead.

Bytes and documents in, a sentence or None out. It judges nothing that it does not know for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

FIRST_BYTES = 64  # of a file: enough for `what_is`
LFS_POINTER = b"version https://git-lfs"
PAGES = (b"<!doctype html", b"<html", b"<?xml")
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch.save, today's and that of old
# Fields of MLX-LM's adapter_config.json, of which older and newer ones share none.
MLX = {"lora_parameters", "fine_tune_type", "lora_layers", "num_layers", "adapter_path"}
ADAPTERHUB = {"config", "model_class", "model_name", "config_id", "leave_out"}
TASKS = {
    "SEQ_2_SEQ_LM": "an encoder-decoder model",
    "SEQ_CLS": "a model that classifies texts, whose head an adapter like this one brings along",
    "TOKEN_CLS": "a model that labels tokens, whose head an adapter like this one brings along",
    "QUESTION_ANS": "a model that marks answers in a text, whose head an adapter like this one brings along",
    "FEATURE_EXTRACTION": "a model that gives embeddings, not text",
    "IMAGE_CLASSIFICATION": "a vision model",
    "IMAGE_TEXT_TO_TEXT": "a vision-language model",
    "VISION": "a vision model",
}
CLASSES = {  # endings of class names
    "ForConditionalGeneration": "an encoder-decoder or vision-language model",
    "ForSeq2SeqLM": "an encoder-decoder model",
    "ForVision2Seq": "a vision-language model",
    "ForImageTextToText": "a vision-language model",
    "ForImageClassification": "a vision model",
    "ForSequenceClassification": "a model that classifies texts",
    "ForTokenClassification": "a model that labels tokens",
    "ForQuestionAnswering": "a model that marks answers in a text",
    "ForMaskedLM": "an encoder",
}
OTHER_WEIGHTS = {
    "MLX-LM's weights, whose matrices stand transposed": re.compile(r"^(\d+_)?adapters\.safetensors$"),
    "AdapterHub's weights": re.compile(r"^pytorch_adapter\.bin$"),
    "a LoRA of an image model": re.compile(r"^pytorch_lora_weights\."),
    "a pickle, which can run code": re.compile(r"\.(bin|pt|pth|ckpt|pkl|pickle)$"),
    "weights of a whole model": re.compile(r"^model(-\d+-of-\d+)?\.safetensors$"),
    "an adapter in llama.cpp's format": re.compile(r"\.gguf$"),
    "under another name": re.compile(r"\.safetensors$"),
}
# What other tools, and people who write the file by hand, call PEFT's fields.
RENAMED = {
    "alpha": "lora_alpha",
    "lora_r": "r",
    "rank": "r",
    "lora_rank": "r",
    "dropout": "lora_dropout",
    "targets": "target_modules",
    "lora_target_modules": "target_modules",
    "base_model": "base_model_name_or_path",
}


def instead_of_weights(names: Iterable[str], wanted: str) -> str | None:
    """What the files are that came without `wanted`, the first that is known by its name."""
    found = ((name, kind) for kind, known in OTHER_WEIGHTS.items() for name in sorted(names) if known.search(name))
    return next((f"{name} is {kind}; save the adapter as {wanted}" for name, kind in found), None)


def what_is(start: bytes, file: str) -> str | None:
    """What a file that begins with `start` is, when it is certainly not what its name `file` says."""
    if start.startswith(LFS_POINTER):
        return f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` and upload again"
    if start.lstrip().lower().startswith(PAGES):
        return f"{file} is a web page, not the file itself: a download ended at a log-in or error page"
    if start.startswith(PICKLES):
        return f"{file} is a pickle (torch.save), which can run code, under another name; save it with save_pretrained"
    return None


def no_lora(document: Mapping[str, object]) -> str | None:
    """Why a configuration describes no LoRA of PEFT at all."""
    kind = document.get("peft_type")
    if kind == "LORA":
        return None
    if kind is not None:
        return f"peft_type: {str(kind)[:80]} is not supported; Aril serves LORA"
    if "architectures" in document:
        return (
            "this is the config.json of a whole model, not an adapter's (it names architectures); merged adapters are "
            "served as a base"
        )
    if MLX & document.keys():
        return (
            "this is an adapter of MLX-LM, not of PEFT (no peft_type, but "
            f"{', '.join(sorted(MLX & document.keys()))}); convert it: transpose lora_a and lora_b into lora_A.weight "
            "and lora_B.weight, and write lora_alpha = scale * rank"
        )
    if len(ADAPTERHUB & document.keys()) > 1:
        return (
            "this is an adapter of AdapterHub's `adapters` library, not of PEFT (no peft_type, but "
            f"{', '.join(sorted(ADAPTERHUB & document.keys()))}); train it with PEFT, or convert its weights"
        )
    return "peft_type is missing; Aril serves LoRA adapters saved by PEFT (peft_type LORA)"


def trained_for(task: str) -> str | None:
    """What a task type that is not served says about the model."""
    return TASKS.get(task)


def trained_on(model_class: str) -> str | None:
    """What a class that is no causal language model is."""
    return next((kind for ending, kind in CLASSES.items() if model_class.endswith(ending)), None)
