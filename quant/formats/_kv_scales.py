"""Where tools put the scales of an FP8 KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from ..base import Stored

# Behind an attention's module path, newest first: compressed-tensors; vLLM's own; ModelOpt; AutoFP8 and older
# compressed-tensors, as the scale of a projection's output.
PLACES = ("{}_scale", "attn.{}_scale", "{}_proj.{}_scale", "{}_proj.output_scale")
FOR_BOTH = "kv_scale"  # AutoFP8's first


def kv_scales_in(stored: Mapping[str, Stored], path: str) -> dict[str, str]:
    """The scales of `k` and `v` that a checkpoint holds for the attention at `path`; empty when it has none."""
    for place in PLACES:
        names = {which: f"{path}.{place.replace('{}', which)}" for which in "kv"}
        if any(name in stored for name in names.values()):
            return names
    both = f"{path}.{FOR_BOTH}"
    return {"k": both, "v": both} if both in stored else {}
