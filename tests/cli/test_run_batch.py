"""`aril run-batch`: a file of requests is answered without a server, and never twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aril.cli import main
from builders.batches import request, requests, written
from builders.commands import SMALL, Files


class Batch:
    """The two files, and the command on them."""

    def __init__(self, files: Files, folder: Path) -> None:
        self.given, self.got = folder / "in.jsonl", folder / "out.jsonl"
        self._flags = [str(files.model), *SMALL, "--served-model-name", "tiny"]

    def run(self, *flags: str) -> int:
        """The exit code."""
        return main(["run-batch", "-i", str(self.given), "-o", str(self.got), *self._flags, *flags])

    def answers(self) -> dict[str, dict[str, Any]]:
        """By the ids of their requests."""
        lines = [json.loads(line) for line in self.got.read_text().splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines)
        return {line["custom_id"]: line for line in lines}


@pytest.fixture
def batch(files: Files, tmp_path: Path) -> Batch:
    """In a folder of its own."""
    return Batch(files, tmp_path)


def test_every_request_is_answered_and_those_with_errors_are_counted(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    lines = [
        request("text"),
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "vector", "method": "POST", "url": "/v1/embeddings", "body": {"model": "tiny", "input": "a"}},
        request("wrong", temperature=-1),
        request("nobody", model="nobody"),
    ]
    batch.given.write_bytes(written(lines))
    assert batch.run() == 0
    said = {custom_id: line["response"]["status_code"] for custom_id, line in batch.answers().items()}
    assert said == {"text": 200, "chat": 200, "vector": 200, "wrong": 400, "nobody": 404}
    assert "5 requests answered, 2 of them with an error" in capsys.readouterr().out


def test_what_is_answered_already_is_passed_over_and_a_torn_line_is_not(
    batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch.given.write_bytes(requests(3))
    assert batch.run() == 0
    whole = batch.got.read_bytes().splitlines(keepends=True)
    batch.got.write_bytes(whole[0] + whole[1][:-20])
    assert batch.run() == 0
    assert f"{batch.got} has 1 of 3 answers already" in capsys.readouterr().out
    assert batch.got.read_bytes().startswith(whole[0])
    assert set(batch.answers()) == {"r0", "r1", "r2"}
    assert batch.run() == 0
    assert "0 requests answered" in capsys.readouterr().out


def test_adapters_are_named_as_for_a_server(batch: Batch, files: Files) -> None:
    batch.given.write_bytes(written([request("base"), request("adapted", model="red")]))
    assert batch.run("--lora-modules", f"red={files.adapter}") == 0
    answers = batch.answers()
    assert answers["adapted"]["response"]["body"]["system_fingerprint"] == "red@1"
    assert answers["base"]["response"]["body"]["system_fingerprint"] == "tiny"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (requests(2) + b"{oops\n", "line 3: this is not valid JSON"),
        (requests(1) + requests(1), "line 2: custom_id: 'r0' is that of line 1 too"),
        (written([{**request("a"), "url": "/v1/models"}]), "line 1: url: '/v1/models'"),
        (b"\n", "the file has no lines"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_line(
    batch: Batch, data: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    batch.given.write_bytes(data)
    assert batch.run() == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("held", [b'{"custom_id": "another"}\n', b'{"custom_id": "r0"}', b'{"id": "mine", "x": 1}'])
def test_a_file_of_anything_else_is_left_as_it_is(
    batch: Batch, held: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    batch.given.write_bytes(requests(1))
    batch.got.write_bytes(held)
    assert batch.run() == 2
    assert f"{batch.got}: line 1 is no answer to a request of the input" in capsys.readouterr().err
    assert batch.got.read_bytes() == held


@pytest.mark.parametrize("end", [b"\n", b""])
def test_answers_are_not_written_into_the_requests(
    batch: Batch, end: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    batch.given.write_bytes(requests(1).strip() + end)
    batch.got.hardlink_to(batch.given)
    assert batch.run() == 2
    assert f"-o {batch.got}: this is the input" in capsys.readouterr().err
    assert batch.given.read_bytes() == requests(1).strip() + end


def test_the_model_may_come_as_a_flag_and_must_come(files: Files, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(requests(1))
    words = ["run-batch", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *SMALL]
    assert main([*words, "--model", str(files.model), "--served-model-name", "tiny"]) == 0
    assert json.loads((tmp_path / "out").read_text())["response"]["status_code"] == 200
    assert main(words) == 2
