"""Long lists in few words: layer numbers as ranges, module paths as `q,k,v of layers 0-29`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

IN_LAYER = re.compile(r"(?:.*\.)?(?:layers|blocks|block|blk|h)\.(\d+)\.(.+)")


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,7,9-10`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def modules(paths: Iterable[str]) -> tuple[str, ...]:
    """Module paths in a few phrases: those of layers together, by the layers they stand in, then the others."""
    return tuple(_phrases(list(paths)))


def _phrases(paths: list[str]) -> Iterator[str]:
    layers: dict[str, list[int]] = {}  # path within a layer -> layers
    others = []
    for path in paths:
        match = IN_LAYER.fullmatch(path)
        if match:
            layers.setdefault(match[2], []).append(int(match[1]))
        else:
            others.append(path)
    together: dict[str, list[str]] = {}  # layers in words -> short names
    for within, numbers in layers.items():
        together.setdefault(ranges(numbers), []).append(_short(within, layers))
    for numbers_in_words, names in together.items():
        word = "layers" if re.search("[-,]", numbers_in_words) else "layer"
        yield f"{','.join(names)} of {word} {numbers_in_words}"
    if others:
        yield ",".join(path.rpartition(".")[2] for path in others)


def _short(within: str, all_paths: Iterable[str]) -> str:
    """self_attn.q_proj -> q, unless that would mean another one too."""
    leaf = within.rpartition(".")[2]
    is_alone = sum(path.rpartition(".")[2] == leaf for path in all_paths) == 1
    return leaf.removesuffix("_proj") if is_alone else within
