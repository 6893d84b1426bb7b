"""Which files of a folder hold the weights: one whole file, or the shards that an index lists.

An index is somebody else's text: it may name nothing outside the folder, and what it says of each tensor must be so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import NotFound, Unsupported

# What transformers writes, and what AutoGPTQ does: gptq_model-4bit-128g.safetensors.
STEMS = {".safetensors": ("model", "gptq_model*"), ".bin": ("pytorch_model", "gptq_model*")}
INDEX = ".index.json"
SHOWN = 4  # names in an error


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Files, and which of them the index says holds which tensor; no index says nothing."""

    paths: tuple[Path, ...]
    index: Path | None = None
    places: Mapping[str, Path] = field(default_factory=dict)

    def placed(self, held: Mapping[Path, Iterable[str]]) -> dict[str, Path]:
        """The one file of each tensor that the files hold. Raises Unsupported for a twin, or a false index."""
        found: dict[str, Path] = {}
        for path, names in held.items():
            for name in names:
                twin = found.setdefault(name, path)
                if twin != path:
                    raise Unsupported(f"{path}: tensor {name} stands in {twin.name} too", param="model")
        wrong = [name for name, path in self.places.items() if found.get(name) != path]
        if wrong:
            told = ", ".join(f"{name} in {self.places[name].name}" for name in sorted(wrong)[:SHOWN])
            more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise Unsupported(f"{self.index} lists tensors that are not there: {told}{more}", param="model")
        return found


def listed_files(folder: Path, ending: str) -> WeightFiles | None:
    """The files in `folder` that hold weights in files of `ending` (.safetensors, .bin); None when there are none.

    Raises Unsupported for an index that cannot be followed, NotFound for a file that it lists and that is missing.
    """
    stems = sorted({stem for pattern in STEMS[ending] for stem in _stems(folder, pattern, ending)})
    if len(stems) > 1:
        names = ", ".join(f"{stem}{ending}" for stem in stems)
        raise Unsupported(f"{folder} holds several sets of weights: {names}; leave one", param="model")
    if not stems:
        return None
    whole = folder / f"{stems[0]}{ending}"
    index = folder / f"{whole.name}{INDEX}"
    return _indexed(index) if index.is_file() else WeightFiles((whole,))


def _stems(folder: Path, pattern: str, ending: str) -> Iterable[str]:
    """The names before the ending; of shards, that of their index."""
    for path in folder.glob(f"{pattern}{ending}"):
        yield path.name.removesuffix(ending)
    for path in folder.glob(f"{pattern}{ending}{INDEX}"):
        yield path.name.removesuffix(f"{ending}{INDEX}")


def _indexed(index: Path) -> WeightFiles:
    folder, places = index.parent, _weight_map(index)
    names = sorted(set(places.values()))
    outside = [name for name in names if os.path.basename(name) != name or name in ("", ".", "..")]
    if outside:
        raise Unsupported(
            f"{index}: weight_map names files outside its folder: {', '.join(outside[:SHOWN])}", param="model"
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise NotFound(f"{index} lists {', '.join(missing)}, which {folder} does not hold", param="model")
    return WeightFiles(
        tuple(folder / name for name in names), index, {name: folder / home for name, home in places.items()}
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{index} is not JSON: {error}", param="model") from error
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(home, str) for home in places.values()):
        raise Unsupported(f"{index}: weight_map is no list of tensors and their files", param="model")
    return places
