"""The side of a worker process: JSON jobs come in on standard input, answers go out on standard output, a line each.

Imports nothing of Aril and nothing but the standard library, since the workers of other engines run in environments of
their own. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Job = Mapping[str, Any]
Answers = Mapping[str, Callable[[Job], Any]]  # by what a job asks for under "do"


def work(start: Callable[[Job], tuple[Any, Answers]]) -> None:
    """Call `start` with the first job, tell its first answer, then do every other job until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    first, answers = start(json.loads(sys.stdin.readline()))
    tell(first)
    for line in sys.stdin:
        job = json.loads(line)
        tell(answers[job["do"]](job))
    out.flush()
    os._exit(0)  # engines leave threads and child processes behind; nothing here needs a tidy end
