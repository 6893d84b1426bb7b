"""A command line that cannot be read: one line, the command it is about, and what was probably meant."""

from __future__ import annotations

import re

import pytest
from aril.cli import _parser, main
from aril.commands._elsewhere import OF_ENGINES, OF_SERVERS

SERVE = ["serve", "demo"]
BATCH = ["run-batch", "demo", "-i", "in.jsonl", "-o", "out.jsonl"]


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of wrong usage, all of it."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*SERVE, "--prot", "8001"], "aril serve: no flag --prot; did you mean --port? (see aril serve --help)"),
        ([*SERVE, "--prot=8001"], "aril serve: no flag --prot; did you mean --port? (see aril serve --help)"),
        ([*SERVE, "--max_model_len", "9"], "no flag --max_model_len; did you mean --max-model-len?"),
        ([*SERVE, "--zzz"], "aril serve: no flag --zzz (see aril serve --help)"),
        ([*SERVE, "twice"], "aril serve: 'twice' is a word too many (see aril serve --help)"),
        (["sreve", "demo"], "aril: no command 'sreve'; did you mean serve? (see aril --help)"),
        (["xyz"], "aril: no command 'xyz'; there are adapters, audit, bench,"),
        (["adapters", "uplod"], "aril adapters: no action 'uplod'; did you mean upload? (see aril adapters --help)"),
        (["bench", "serve", "--warm-up", "3"], "aril bench serve: no flag --warm-up; did you mean --warmup?"),
        ([*SERVE, "--log-level", "inof"], "aril serve: --log-level: no 'inof'; did you mean info?"),
        ([*SERVE, "--port", "abc"], "aril serve: --port: it takes a whole number, not 'abc'"),
        ([*SERVE, "--response-bytes", "lots"], "aril serve: --response-bytes: 'lots' is no size"),
        (["generate", "demo", "--temperature", "hot"], "aril generate: --temperature: it takes a number, not 'hot'"),
        (["serve"], "aril serve: the following arguments are required: MODEL (see aril serve --help)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_one_line_that_says_what_was_meant(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(words, capsys)
    assert line in shown
    assert len(shown.splitlines()) == 1


def test_a_flag_of_vllms_without_effect_is_refused_with_what_there_is_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = _parser()
    asked = [(BATCH, OF_ENGINES), (SERVE, OF_ENGINES | OF_SERVERS)]
    for words, flag, hint in ((words, *each) for words, hints in asked for each in hints.items()):
        with pytest.raises(SystemExit):
            parser.parse_known_args([*words, flag, "1"])
        assert capsys.readouterr().err.startswith(f"aril {words[0]}: {flag}: {hint} (see")


@pytest.mark.parametrize(("words", "hints"), [(SERVE, OF_ENGINES | OF_SERVERS), (BATCH, OF_ENGINES)])
def test_what_is_said_to_flags_of_vllms_names_flags_that_there_are(words: list[str], hints: dict[str, str]) -> None:
    named = set(re.findall(r"--[a-z-]+", " ".join(hints.values())))
    assert named
    assert named <= set(_parser().parse_args(words).parser._option_string_actions) - set(hints)
