"""An adapter's files against the base that is served: every problem at once, each naming the tensor or the field.

The same checks stand before an upload is stored and before bytes go into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import InvalidAdapter
from .config import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig
from .delta import AdaptableLinear
from .fingerprint import Fingerprint, contradiction, remark
from .header import header_problem
from .strangers import instead_of_weights
from .weights import OUTER, Pair, PairNames, TensorFile, check_shapes, pair_up, rank_of, read_pair

HEADS = ("lm_head", "embed_tokens")
MAX_SHAPES = 6  # tensors of a wrong shape that are told one by one: a wrong base or rank has them all wrong


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What an adapter may stand on: the served base, its modules (path -> in and out features), the serving dtype."""

    base: Fingerprint
    modules: Mapping[str, tuple[int, int]]
    dtype: torch.dtype

    @classmethod
    def of(cls, base: Fingerprint, linears: Mapping[str, AdaptableLinear], dtype: torch.dtype) -> TargetSpec:
        """The spec of a network's Linears."""
        modules = {part.name: (linear.in_features, part.size) for linear in linears.values() for part in linear.parts}
        return cls(base, modules, dtype)

    def kinds(self) -> list[str]:
        """The last path parts of the modules: q_proj, down_proj and so on."""
        return sorted({path.rsplit(".", 1)[-1] for path in self.modules})


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """What a valid adapter is. `notes` are things a person may want to know that do not forbid serving it."""

    rank: int  # the largest
    target_modules: tuple[str, ...]  # kinds of modules: q_proj, ...
    num_modules: int
    num_parameters: int
    size: int  # bytes in memory, in the serving dtype
    config: Mapping[str, object]  # adapter_config.json as it is
    other_base: str | None = None  # why it is an adapter of another base, where names tell; for an uploader to overrule
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """An opened adapter whose names and shapes are known; `problems` grows while its numbers are read."""

    file: TensorFile
    config: AdapterConfig
    pairs: Mapping[str, PairNames]  # by path in the served base
    targets: TargetSpec
    problems: list[str]

    def rank(self, path: str) -> int:
        """The rank at a module of the served base."""
        return self.config.rank(self.pairs[path].trained_at)

    def read(self, path: str) -> Pair:
        """The numbers of one module; what is wrong with them goes to `problems`."""
        names = self.pairs[path]
        return read_pair(self.file, names, self.config.scale(names.trained_at), self.targets.dtype, self.problems)


def validate(folder: Path, targets: TargetSpec) -> AdapterSummary:
    """Check the files of `folder` down to the last number; raises InvalidAdapter with all that is wrong."""
    with open_adapter(folder, targets) as adapter:
        for path in adapter.pairs:
            adapter.read(path)
        raise_problems(adapter.problems)
        return summary(adapter)


def inspect(folder: Path, targets: TargetSpec) -> AdapterSummary:
    """`validate` without the numbers, which takes a millisecond whatever the adapter's size."""
    with open_adapter(folder, targets) as adapter:
        raise_problems(adapter.problems)
        return summary(adapter)


@contextmanager
def open_adapter(folder: Path, targets: TargetSpec) -> Iterator[CheckedAdapter]:
    """Open an adapter and check everything but its numbers.

    Pairs that are wrong are left out of `pairs` and named in `problems`. Raises InvalidAdapter where the files cannot
    be read at all.
    """
    problems: list[str] = []
    config = _read_config(folder / CONFIG_FILE, problems)
    reason = _unreadable(folder)
    if config is None or reason is not None:
        raise_problems([*problems, *([reason] if reason else [])])
    assert config is not None
    try:
        opened = safe_open(folder / WEIGHTS_FILE, framework="pt")
    except SafetensorError as error:
        raise_problems([*problems, f"{WEIGHTS_FILE} is not a safetensors file: {error}"])
    with opened as file:
        pairs = _checked_pairs(file, config, targets, problems)
        yield CheckedAdapter(file, config, pairs, targets, problems)


def raise_problems(problems: list[str]) -> None:
    """Raise InvalidAdapter when there is anything to tell."""
    if not problems:
        return
    more = len(problems) - 1
    rest = f" (and {more} more problem{'s' * (more > 1)})" if more else ""
    raise InvalidAdapter(f"this adapter cannot be served: {problems[0]}{rest}", problems=problems)


def _read_config(path: Path, problems: list[str]) -> AdapterConfig | None:
    if not path.is_file():
        problems.append(f"{path.name} is missing")
        return None
    return AdapterConfig.from_json(path.read_bytes(), problems)


def _unreadable(folder: Path) -> str | None:
    weights = folder / WEIGHTS_FILE
    if weights.is_file():
        return header_problem(weights)
    return instead_of_weights([path.name for path in folder.iterdir()], WEIGHTS_FILE) or f"{WEIGHTS_FILE} is missing"


def _checked_pairs(
    file: TensorFile, config: AdapterConfig, targets: TargetSpec, problems: list[str]
) -> dict[str, PairNames]:
    if not list(file.keys()):
        problems.append(f"{WEIGHTS_FILE} holds no tensors")
    pairs = pair_up(file.keys(), targets.modules, problems)
    problems += _against_config(pairs, config, targets)
    wrong: dict[str, list[str]] = {}
    for path, names in pairs.items():
        wrong[path] = check_shapes(file, names, targets.modules[path], config.rank(names.trained_at))
    problems += _other_ranks(file, config, [pairs[path] for path in pairs if wrong[path]])
    problems += _bounded([reason for reasons in wrong.values() for reason in reasons])
    return {path: names for path, names in pairs.items() if not wrong[path]}


def _other_ranks(file: TensorFile, config: AdapterConfig, pairs: list[PairNames]) -> list[str]:
    """Where the configuration is wrong about the rank, by what it says and what the file has: once for all modules."""
    modules: dict[tuple[int, int], list[str]] = {}
    for names in pairs:
        said, found = config.rank(names.trained_at), rank_of(file, names)
        if found is not None and found != said:
            modules.setdefault((said, found), []).append(names.trained_at)
    return [
        f"{CONFIG_FILE} says r={said}, the file has rank {found}: {many[0]}"
        + (f" and {len(many) - 1} more modules" if len(many) > 1 else "")
        for (said, found), many in modules.items()
    ]


def _bounded(reasons: list[str]) -> list[str]:
    """The first of many reasons that are much alike, and how many there are more."""
    if len(reasons) <= MAX_SHAPES:
        return reasons
    return [*reasons[:MAX_SHAPES], f"{len(reasons) - MAX_SHAPES} more tensors have a wrong shape or dtype"]


def _against_config(pairs: dict[str, PairNames], config: AdapterConfig, targets: TargetSpec) -> list[str]:
    """What the configuration promises and the file lacks, and the other way round."""
    found = [
        f"module {names.trained_at}: the file has tensors for it, but target_modules does not name it"
        for names in pairs.values()
        if not config.adapts(names.trained_at)
    ]
    if config.targets is None:
        return found
    bare = any(names.trained_at != path for path, names in pairs.items())
    wanted = [p for p in targets.modules if config.adapts(p.removeprefix(OUTER) if bare else p)]
    found += [
        f"module {path}: target_modules names it, but the file has no pair for it"
        for path in wanted
        if path not in pairs
    ]
    found += [f"target_modules: LoRA on {name} is not supported" for name in HEADS if _names(config, name)]
    if not wanted:
        found.append(f"target_modules matches no module of {targets.base.name}; it has {', '.join(targets.kinds())}")
    return found


def _names(config: AdapterConfig, head: str) -> bool:
    return isinstance(config.targets, tuple) and any(name.rsplit(".", 1)[-1] == head for name in config.targets)


def summary(adapter: CheckedAdapter) -> AdapterSummary:
    """What an adapter without problems is."""
    targets, pairs = adapter.targets, adapter.pairs
    num_parameters = sum(adapter.rank(path) * sum(targets.modules[path]) for path in pairs)
    return AdapterSummary(
        rank=max(adapter.rank(path) for path in pairs),
        target_modules=tuple(sorted({path.rsplit(".", 1)[-1] for path in pairs})),
        num_modules=len(pairs),
        num_parameters=num_parameters,
        size=num_parameters * targets.dtype.itemsize,
        config=adapter.config.document,
        other_base=contradiction(adapter.config.base, targets.base),
        notes=tuple(_notes(adapter)),
    )


def _notes(adapter: CheckedAdapter) -> Iterator[str]:
    about_base = remark(adapter.config.base, adapter.targets.base)
    if about_base is not None:
        yield about_base
    if adapter.config.targets is None:
        yield "target_modules is not set: the modules that the file holds are adapted"
    kinds = {path.rsplit(".", 1)[-1] for path in adapter.targets.modules}
    names = adapter.config.targets if isinstance(adapter.config.targets, tuple) else ()
    for name in sorted({n.rsplit(".", 1)[-1] for n in names} - kinds):
        yield f"target_modules names {name}, which the base does not have"
