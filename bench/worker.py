"""An engine in a process of its own, that does one job at a time: its memory is its own, and it idles while others run.

The jobs and answers are those of the programs in workers/.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = Path(__file__).parent / "workers"
LAST_WORDS = 3000  # characters of its log that are shown when it dies
PATIENCE = 900.0  # seconds for one job; one that takes longer hangs


class Worker:
    """One process, and those that it starts; a context manager.

    `first` is its answer to the job it was started with, `ready_s` the seconds from its start until that came.
    """

    def __init__(self, command: Sequence[str], job: Mapping[str, Any], env: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it is ready. Raises RuntimeError with its last words."""
        self._command = " ".join(command)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- it lives as long as the process
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(env or {})},
            text=True,
            start_new_session=True,  # so that `close` ends what it started too
        )
        try:
            self.first = self._exchange(job)
        except BaseException:
            self.close()
            raise
        self.ready_s = time.perf_counter() - began

    @classmethod
    def ours(cls, module: str, job: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Worker:
        """A program of workers/ that needs Aril, in this environment."""
        package = __package__ or ""
        return cls([sys.executable, "-m", f"{package}.workers.{module}"], job, env)

    @classmethod
    def foreign(
        cls, python: Path | str, program: str, job: Mapping[str, Any], env: Mapping[str, str] | None = None
    ) -> Worker:
        """A program of workers/ that needs no Aril, under another interpreter."""
        return cls([str(python), str(PROGRAMS / f"{program}.py")], job, env)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **fields: Any) -> Any:
        """Do one job. Raises RuntimeError with the worker's last words when it fails."""
        return self._exchange({"do": do, **fields})

    def tell(self, do: str, **fields: Any) -> None:
        """Begin a job; `answer` waits for its end."""
        self._send({"do": do, **fields})

    def answer(self) -> Any:
        """The answer to what was told."""
        assert self._process.stdout is not None
        hangs = threading.Timer(PATIENCE, self._process.kill)
        hangs.start()
        line = self._process.stdout.readline()
        hangs.cancel()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"the worker {self._command} died:\n{self._log.read()[-LAST_WORDS:]}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, job: Mapping[str, Any]) -> Any:
        self._send(job)
        return self.answer()

    def _send(self, job: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` tells why it died
