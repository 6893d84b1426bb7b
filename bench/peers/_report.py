"""What was found, for people and for programs: medians, and the ratio of Aril to each with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..race import Case, Lap, laps_of, ratios
from ._peer import ARIL
from ._session import Found, Start
from ._stages import PREFILL


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the rounds: median, least and most."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        return cls(statistics.median(values), min(values), max(values)) if values else None

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


def speed_of(case: Case) -> Callable[[Lap], float]:
    """What counts in a case: tokens of output a second, of a prefill those of the prompt."""
    return (lambda lap: lap.prompt_tokens_per_s) if case == PREFILL else (lambda lap: lap.tokens_per_s)


def rows(found: Found) -> Iterator[dict[str, Any]]:
    """One for each contender and case of a race."""
    for case in found.stage.cases:
        speed = speed_of(case)
        for name in dict.fromkeys(lap.contender for lap in found.laps if lap.case == case):
            own, aril = laps_of(found.laps, name, case), laps_of(found.laps, ARIL, case)
            verdict = found.verdicts.get((name, case))
            yield {
                "stage": found.stage.name,
                "case": "prefill" if case == PREFILL else str(case),
                "contender": name,
                "rounds": len(own),
                "tokens_per_s": statistics.median(map(speed, own)),
                "first_token_ms": 1e3 * statistics.median(lap.first_token_s for lap in own),
                "between_tokens_ms": 1e3 * statistics.median(lap.between_tokens_s for lap in own),
                "longest_pause_ms": 1e3 * statistics.median(lap.longest_pause_s for lap in own),
                "aril_is_times": Spread.of(ratios(aril, own, speed)) if name != ARIL else None,
                "agrees": verdict,
            }


def table(found: Found) -> str:
    """A race as text."""
    lines = [
        f"{'case':24} {'contender':26} {'tok/s':>8} {'TTFT ms':>8} {'ITL ms':>7} {'longest':>7}  "
        f"{'Aril is x':18} {'rounds':>6}  same tokens as float32"
    ]
    for row in rows(found):
        times = f"{row['first_token_ms']:8.0f} {row['between_tokens_ms']:7.1f} {row['longest_pause_ms']:7.1f}"
        ratio = "" if row["aril_is_times"] is None else str(row["aril_is_times"])
        lines.append(
            f"{row['case']:24} {row['contender']:26} {row['tokens_per_s']:8.1f} {times}  "
            f"{ratio:18} {row['rounds']:6}  {row['agrees'] or 'not judged'}"
        )
    lines += [
        f"base rows of {name}: alone {found.alone[name]}; beside rows of adapters {beside}"
        for name, beside in found.beside.items()
    ]
    return "\n".join(lines)


def above(start: Start, weight_bytes: int, kv_bytes: int) -> int:
    """Bytes after a lap beyond the weights and the KV: all of the KV that was asked for where the process had it in
    memory before it was used, else what the lap has filled, or what large pages hold of both, as these are filled whole
    and fetched ahead.
    """
    if start.idle_bytes >= weight_bytes + kv_bytes:
        return start.used_bytes - weight_bytes - kv_bytes
    return start.used_bytes - max(weight_bytes + min(kv_bytes, start.filled_bytes), start.large_bytes)


def start_rows(found: Found, weight_bytes: int, kv_bytes: int) -> Iterator[dict[str, Any]]:
    """One for each contender that was started."""
    for name in dict.fromkeys(start.contender for start in found.starts):
        own = [start for start in found.starts if start.contender == name]
        yield {
            "contender": name,
            "starts": len(own),
            "ready_s": Spread.of([start.ready_s for start in own]),
            "first_token_s": statistics.median(start.first_token_s for start in own),
            "idle_mb": statistics.median(start.idle_bytes for start in own) / 1e6,
            "used_mb": statistics.median(start.used_bytes for start in own) / 1e6,
            "above_mb": statistics.median(above(start, weight_bytes, kv_bytes) for start in own) / 1e6,
        }


def start_table(found: Found, weight_bytes: int, kv_bytes: int) -> str:
    """The starts as text."""
    lines = [f"{'contender':26} {'ready s':22} {'first s':>8} {'idle MB':>8} {'used MB':>8} {'above':>8}"]
    for row in start_rows(found, weight_bytes, kv_bytes):
        sizes = f"{row['idle_mb']:8.0f} {row['used_mb']:8.0f} {row['above_mb']:8.0f}"
        lines.append(f"{row['contender']:26} {row['ready_s']!s:22} {row['first_token_s']:8.2f} {sizes}")
    return "\n".join(lines)


def as_json(found: Found) -> dict[str, Any]:
    """Everything, laps included."""
    return {
        "stage": found.stage.name,
        "rows": [{key: _plain(value) for key, value in row.items()} for row in rows(found)],
        "base_rows_alone": {name: asdict(each) for name, each in found.alone.items()},
        "base_rows_beside_adapters": {name: asdict(each) for name, each in found.beside.items()},
        "failures": found.failures,
        "starts": [asdict(each) for each in found.starts],
        "laps": [asdict(each) for each in found.laps],
    }


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
