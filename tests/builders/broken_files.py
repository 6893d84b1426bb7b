"""Files that are no whole files, lists that lie, configs that cannot be: broken whatever the format of the weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builders.broken import (
    INDEX,
    MODULE,
    WEIGHTS,
    Broken,
    config,
    cut,
    facts,
    file,
    first_shard,
    header,
    header_bytes,
    index,
    read_all,
    tensors,
    twice,
)

WEIGHT = f"{MODULE}.weight"
BIN = "pytorch_model.bin"
NAME = "model.norm.weight"


def _moved(found: dict[str, Any]) -> None:
    """A tensor begins within the one before it."""
    name = max(found, key=lambda key: found[key].get("data_offsets", [-1])[0])
    found[name]["data_offsets"] = [at - 4 for at in found[name]["data_offsets"]]


def _strayed(folder: Path) -> None:
    """The list says that a tensor is in another shard than it is."""
    name = next(iter(read_all(first_shard(folder))))
    last = sorted(folder.glob("model-*.safetensors"))[-1].name
    index(lambda places: places.update({name: last}))(folder)


def _pickle_named_safetensors(folder: Path) -> None:
    torch.save(read_all(folder / WEIGHTS), folder / WEIGHTS)


def _halved(folder: Path) -> None:
    whole = (folder / BIN).read_bytes()
    (folder / BIN).write_bytes(whole[: len(whole) // 2])


def _more_than_tensors(folder: Path) -> None:
    state = torch.load(folder / BIN, weights_only=True)
    torch.save({**state, "epoch": 3}, folder / BIN)


def _empty_norm(folder: Path) -> None:
    tensors(lambda found: found.update({NAME: torch.zeros(0)}))(folder)


def _gone(folder: Path) -> None:
    first_shard(folder).unlink()


def _outside(folder: Path) -> None:
    """A shard lies beside the folder, where a list must not reach."""
    save_file({NAME: torch.ones(64)}, folder.parent / "evil.safetensors")
    index(lambda places: places.update({NAME: "../evil.safetensors"}))(folder)


SAFETENSORS = {
    "a header of 2^62 bytes": Broken("plain", file(WEIGHTS, header_bytes(b"{}", 1 << 62)), (WEIGHTS, str(1 << 62))),
    "a header longer than the file": Broken("plain", file(WEIGHTS, header_bytes(b"{}", 5000)), (WEIGHTS, "5000")),
    "no byte": Broken("plain", file(WEIGHTS, b""), (WEIGHTS, "0 bytes")),
    "three bytes": Broken("plain", file(WEIGHTS, b"abc"), (WEIGHTS, "3 bytes")),
    "a header that is not JSON": Broken("plain", file(WEIGHTS, header_bytes(b"{nothing")), (WEIGHTS, "not JSON")),
    "a header that is not UTF-8": Broken("plain", file(WEIGHTS, header_bytes(b'{"\xff": 1}')), (WEIGHTS, "not JSON")),
    "a header that is a list": Broken("plain", file(WEIGHTS, header_bytes(b"[1]")), (WEIGHTS, "list")),
    "a header nested without end": Broken("plain", file(WEIGHTS, header_bytes(b"[" * 100_000)), (WEIGHTS, "not JSON")),
    "a type that does not exist": Broken("plain", facts(WEIGHT, dtype="F99"), (WEIGHTS, WEIGHT, "F99")),
    "no data_offsets": Broken(
        "plain", header(lambda h: h[WEIGHT].pop("data_offsets")), (WEIGHTS, WEIGHT, "data_offsets")
    ),
    "a shape below zero": Broken("plain", facts(WEIGHT, shape=[-64, 160]), (WEIGHTS, WEIGHT)),
    "a shape without end": Broken("plain", facts(WEIGHT, shape=[1 << 40, 1 << 40]), (WEIGHTS, WEIGHT)),
    "a shape of other bytes": Broken("plain", facts(WEIGHT, shape=[64, 161]), (WEIGHTS, WEIGHT, "161")),
    "tensors that overlap": Broken("plain", header(_moved), (WEIGHTS, NAME)),
    "a file cut short": Broken("plain", cut(100), (WEIGHTS, NAME, "cut short")),
    "a file with an end of its own": Broken("plain", cut(-100), (WEIGHTS, "end at byte")),
    "a pickle by that name": Broken("plain", _pickle_named_safetensors, (WEIGHTS,)),
    "a tensor without numbers": Broken("plain", _empty_norm, (NAME, "(0,)")),
    "a missing tensor": Broken("plain", tensors(lambda found: found.pop(NAME)), ("missing", NAME)),
    "integers for a weight": Broken(
        "plain", tensors(lambda found: found.update({WEIGHT: found[WEIGHT].to(torch.int32)})), (WEIGHT, "int32")
    ),
    "no weights": Broken("plain", lambda folder: (folder / WEIGHTS).unlink(), (WEIGHTS, BIN)),
}
PICKLES = {
    "a pickle that would run code": Broken("bin", file(BIN, pickle.dumps({"weight": Path})), (BIN,)),
    "a pickle that is no pickle": Broken("bin", file(BIN, b"hello"), (BIN,)),
    "half a pickle": Broken("bin", _halved, (BIN,)),
    "a pickle of more than tensors": Broken("bin", _more_than_tensors, (BIN, "epoch")),
    "a pickle of a list": Broken("bin", lambda folder: torch.save([1], folder / BIN), (BIN, "list")),
}
SHARDS = {
    "a shard that is gone": Broken("sharded", _gone, (INDEX, "model-00001")),
    "a list that reaches outside": Broken("sharded", _outside, (INDEX, "../evil.safetensors")),
    "a list with an absolute path": Broken(
        "sharded", index(lambda places: places.update({NAME: "/etc/passwd"})), (INDEX, "/etc/passwd")
    ),
    "a list that is not JSON": Broken("sharded", file(INDEX, "{"), (INDEX, "not JSON")),
    "a list without weight_map": Broken("sharded", file(INDEX, json.dumps({"metadata": {}})), (INDEX, "weight_map")),
    "a weight_map of numbers": Broken("sharded", index(lambda places: places.update({NAME: 7})), (INDEX, "weight_map")),
    "a list that names the wrong shard": Broken("sharded", _strayed, (INDEX, "model-000")),
    "a list of a tensor that is nowhere": Broken(
        "sharded", index(lambda places: places.update(ghost=next(iter(places.values())))), (INDEX, "ghost")
    ),
    "a tensor in two shards": Broken("sharded", twice, ("model-000", "tensor")),
}
CONFIGS = {
    "a config that is not JSON": Broken("plain", file("config.json", "{"), ("config.json", "not JSON")),
    "a config that is a list": Broken("plain", file("config.json", "[]"), ("config.json", "list")),
    "a config of nothing": Broken("plain", file("config.json", "{}"), ("config.json", "architectures")),
    "layers that are no number": Broken("plain", config(num_hidden_layers="three"), ("num_hidden_layers",)),
    "more layers than are stored": Broken("plain", config(num_hidden_layers=4), ("model.layers.3",)),
    "no layers": Broken("plain", config(num_hidden_layers=0), ("model.layers.0",)),
    "no heads": Broken("plain", config(num_attention_heads=0), ("config.json",)),
    "another width": Broken("plain", config(hidden_size=128), ("lm_head.weight", "128")),
    "another vocabulary": Broken("plain", config(vocab_size=100), ("model.embed_tokens.weight", "512")),
    "a quantisation that is a list": Broken(
        "plain", config(quantization_config=[4]), ("config.json", "quantization_config")
    ),
    "a quantisation without a name": Broken("plain", config(quantization_config={"bits": 4}), ("unnamed",)),
}
FILES = {**SAFETENSORS, **PICKLES, **SHARDS, **CONFIGS}
