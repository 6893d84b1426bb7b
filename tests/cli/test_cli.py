"""The command line: light when it can be, one line when it fails, and a client of a running server."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aril import __version__
from aril.admin_api.db import Database
from aril.cli import main
from aril.commands._examples import examples
from aril.commands._process import READY, Server
from aril.commands.chat import HELP, TEMPERATURE, _params
from builders.commands import SMALL, Files

COMMANDS = {
    "adapters", "audit", "bench", "chat", "db", "demo", "generate", "inspect", "keys", "quantize", "run-batch", "serve",
    "tenants", "usage", "version",
}  # fmt: skip


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("words", [["version"], ["--help"], ["serve", "--help"], ["generate", "--help"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    heavy = "torch transformers fastapi sqlalchemy httpx numpy"
    script = (
        "import sys\nfrom aril.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy!r}.split() if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def test_the_folder_is_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert set(re.findall(r"^    ([a-z-]+)\s", shown, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["serve", "/nowhere"], 1, "no file or folder '/nowhere'"),
        (["serve", "x", "--dtype", "int3"], 2, "--dtype int3"),
        (["serve", "x", "--quantization", ""], 2, "--quantization '': it names nothing"),
        (["serve", "x", "--kv-cache-memory", "lots"], 2, "--kv-cache-memory lots"),
        (["serve", "x", "--lora-modules", "a=/nowhere"], 2, "--lora-modules: a: no folder '/nowhere'"),
        (["serve", "x", "--lora-modules", "a=/tmp", "a=/"], 2, "--lora-modules: a: given twice"),
        (["serve", "x", "--lora-modules", "a"], 2, "neither name=path nor JSON"),
        (["serve", "x", "--lora-modules", '{"name": "a"}'], 2, "no object with name, path"),
        (["serve", "x", "--lora-modules", '{"name": "a", "path": 1}'], 2, "every value is a string"),
        (["serve", "x", "--metrics-adapters", "-1"], 2, "--metrics-adapters -1"),
        (["serve", "x", "--port", "99999"], 2, "port 99999"),
        (["serve", "x", "--port", "0", "--state-dir", "/dev/null"], 2, "--state-dir /dev/null"),
        (["generate", "x", "--prompt", "a", "--adapter", "/nowhere"], 2, "no folder /nowhere"),
        (["adapters", "list", "--admin-key", "k", "--url", "http://127.0.0.1:1"], 1, "is `aril serve` running there"),
        (["adapters", "upload", "a", "/nowhere", "--admin-key", "k"], 2, "/nowhere does not exist; give a folder with"),
        (["adapters", "upload", "a", "/", "--admin-key", "k"], 2, "/ has no adapter_config.json and no adapter_model."),
        (["adapters", "upload", "a", "/nowhere", "--admin-key", ""], 2, "--admin-key is empty"),
        (["serve", "x", "--admin-key", " "], 2, "--admin-key is empty"),
        (
            ["serve", "x", "--api-key", "k", "--api-key", ""],
            2,
            "--api-key is empty; give a key, or neither it nor ARIL_API",
        ),
        (["serve", "x", "--metrics-key", ""], 2, "--metrics-key is empty"),
        (["chat", "--api-key", ""], 2, "--api-key is empty"),
        (["bench", "serve", "--api-key", ""], 2, "--api-key is empty"),
        (["bench", "serve", "--url", "http://127.0.0.1:1"], 1, "no server answers"),
        (["bench", "serve", "--url", "ftp://x"], 2, "http://HOST:PORT"),
        (["bench", "serve", "--rate", "0"], 2, "--rate 0"),
        (["db", "upgrade", "--database-url", "mysql://x/y"], 2, "no 'mysql' here"),
        (["chat", "--url", "http://127.0.0.1:1"], 1, "no answer"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_a_failure_is_one_line_and_an_exit_code(
    words: list[str],
    code: int,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ARIL_STATE_DIR", str(tmp_path))
    assert main(words) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("aril: ")
    assert complaint in lines[0]


def test_a_folder_with_one_of_its_files_is_told_the_other(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(files.adapter / "adapter_config.json", tmp_path)
    assert main(["adapters", "upload", "a", str(tmp_path), "--admin-key", "k"]) == 2
    assert f"{tmp_path} has no adapter_model.safetensors; give a folder with" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["activate", "retire", "wait"])
def test_a_word_too_many_is_told_how_a_revision_is_written(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["adapters", action, "my-sql", "2"])
    told = capsys.readouterr().err
    assert caught.value.code == 2
    assert told.startswith(f"aril adapters {action}: '2' is a word too many; a revision is written with its adapter, ")
    assert told.endswith(f"as my-sql@2 (see aril adapters {action} --help)\n")


def test_wrong_usage_exits_with_two() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "serve", "--rate", "1", "--concurrency", "1"])
    assert caught.value.code == 2


def test_every_adapter_in_a_batch_answers_each_prompt(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        str(files.model),
        "--prompt",
        "the dog",
        "--prompt",
        "a seed",
        "--adapter",
        f"x={files.adapter}",
    ]
    assert main([*words, "--base", "--max-tokens", "5", "--temperature", "0", "--json", *SMALL]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked = [(row["prompt"], row["adapter"]) for row in rows]
    assert asked == [("the dog", None), ("the dog", "x"), ("a seed", None), ("a seed", "x")]
    assert rows[0]["text"] != rows[1]["text"]


@pytest.mark.parametrize(
    "words", [["MODEL", "the dog", "--max-tokens", "3"], ["MODEL", "--max-tokens", "3", "the dog"]]
)
def test_a_prompt_may_follow_the_model(files: Files, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    given = [str(files.model) if word == "MODEL" else word for word in words]
    assert main(["generate", *given, "--prompt", "a seed", "--json", *SMALL]) == 0
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == ["the dog", "a seed"]


def test_the_life_of_an_adapter(server: Server, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", server.url, "--admin-key", server.admin_key]

    def said(*words: str) -> str:
        assert main(["adapters", *words, *where]) == 0
        return capsys.readouterr().out

    assert "mine@1: ready" in said("upload", "mine", str(files.adapter), "--description", "about it")
    assert "about it" in said("list")
    assert "mine: not active" in said("deactivate", "mine")
    assert "mine: active" in said("activate", "mine", "--revision", "1")
    assert main(["adapters", "activate", "mine@1", "--revision", "2", *where]) == 2
    assert "mine@1 or --revision 2?" in capsys.readouterr().err
    assert "mine: active" in said("activate", "mine@1")
    assert "sha256" in said("show", "mine")
    assert "deleted mine" in said("delete", "mine")
    assert "mine" not in said("list")


def test_what_the_server_refuses_is_told_in_its_words(
    server: Server, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapters", "upload", "bad name", str(files.adapter), "--url", server.url]
    assert main([*words, "--admin-key", server.admin_key]) == 1
    assert "bad name" in capsys.readouterr().err
    assert main([*words, "--admin-key", "wrong"]) == 1
    assert "incorrect API key" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["/quit", "/exit"])
def test_a_talk_changes_adapters_and_survives_mistakes(
    server: Server, files: Files, end: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["adapters", "upload", "seed", str(files.adapter), "--url", server.url, "--admin-key", server.admin_key])
    lines = iter(["hello", "/adapters", "/adapter seed", "hello", "/adapter nobody", "/reset", "/help", "/what", end])
    prompts: list[str] = []

    def typed(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    monkeypatch.setattr("builtins.input", typed)
    assert main(["chat", "--url", server.url, "--max-tokens", "5", "--temperature", "0"]) == 0
    shown = capsys.readouterr().out
    assert prompts[0] == "tiny> "
    assert prompts[-1] == "seed> "
    assert "no adapter 'nobody'; there are seed" in shown
    assert f"\n{HELP}\n! no command /what; there are {HELP}\n" in shown


def test_a_talk_is_held_at_the_temperature_that_was_asked_for_or_the_models_or_a_low_one() -> None:
    def params(asked: float | None, **defaults: float) -> dict[str, object]:
        return _params(argparse.Namespace(temperature=asked, max_tokens=None), {"sampling_defaults": defaults})

    assert params(None) == {"temperature": TEMPERATURE}
    assert params(None, temperature=0.6) == {}  # the server's to fill in
    assert params(1.0, temperature=0.6) == params(1.0) == {"temperature": 1.0}


@pytest.mark.parametrize("loop", [["--concurrency", "3"], ["--rate", "50", "--hang-up", "0.5"]])
def test_the_bench_writes_its_numbers(
    server: Server, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], loop: list[str]
) -> None:
    main(["adapters", "upload", "seed", str(files.adapter), "--url", server.url, "--admin-key", server.admin_key])
    out = tmp_path / "numbers.json"
    words = ["bench", "serve", "--url", server.url, "--num-requests", "12", "--input-len", "8", "--output-len", "6"]
    assert main([*words, *loop, "--adapters", "all", "--mix", "zipf", "--json", str(out)]) == 0
    numbers = json.loads(out.read_text())
    assert numbers["errors"] == 0
    assert numbers["completed"] + numbers["hung_up"] == 12
    assert numbers["output_tokens"] == 6 * numbers["completed"]
    assert numbers["output_tokens_per_s"] > 0
    assert numbers["requests_per_s"] > 0
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert 0 < numbers[name]["p50"] <= numbers[name]["p90"] <= numbers[name]["p99"]
    shown = capsys.readouterr()
    assert "12 answers" in shown.out or numbers["hung_up"]
    asked, load = shown.err.splitlines()[-2:]
    assert re.fullmatch(r"asking (.+, )?seed(, .+)?, zipf 1.1", asked)
    assert re.match(r"\d+ requests to warm up, then 12 requests (by 3 clients|at 50 a second), 8 tokens in", load)


def test_the_database_is_upgraded_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "upgrade", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("schema ")
    database = Database(f"sqlite:///{tmp_path}/registry.sqlite3")
    with database.engine.connect() as connection:
        tables = connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars().all()
    database.close()
    assert "adapters" in tables


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "/nowhere", "--port", port, "--state-dir", str(tmp_path)]) == 1
    assert f"port {port} on 127.0.0.1 is in use" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["/nowhere", "EMPTY"])
def test_a_model_that_is_not_there_leaves_no_folder_behind(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARIL_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "EMPTY").mkdir()
    assert main(["serve", str(tmp_path / model), "--port", "0"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["EMPTY"]


def test_ctrl_c_ends_a_server_cleanly(files: Files, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aril.cli", "serve", str(files.model), "--port", "0", *SMALL]
    environment = {**os.environ, "ARIL_STATE_DIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert READY.match(process.stdout.readline().strip())
        assert str(tmp_path / "admin.key") in "".join(process.stdout.readline() for _ in range(3))
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        complaints = [line for line in process.stderr if " INFO " not in line]
        assert process.wait() == 0
    assert time.monotonic() - begin < 10
    assert complaints == []


def test_examples_know_what_they_do_and_what_to_ask() -> None:
    found = examples()
    assert len(found) >= 5
    assert all(example.about and example.ask.strip() for example in found)
