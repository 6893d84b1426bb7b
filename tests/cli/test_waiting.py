"""What a command says while its server comes up."""

from __future__ import annotations

import threading
from pathlib import Path

from aril.commands._waiting import WORDS, telling


def test_events_of_the_log_are_told_in_words_and_silence_is_not_left_alone(tmp_path: Path) -> None:
    heard: list[str] = []
    patient = threading.Event()

    def tell(line: str) -> None:
        heard.append(line.strip())
        if line.strip().startswith("still starting"):
            patient.set()

    with (tmp_path / "log").open("w+") as log:
        log.write("12:00:00 INFO aril.models.demo demo_download package=x megabytes=93\nhalf a li")
        log.flush()
        with telling(log.fileno(), tell, quiet=0.01):
            assert patient.wait(20)
    assert heard[0] == WORDS["demo_download"]
    assert heard.count(WORDS["demo_download"]) == 1
