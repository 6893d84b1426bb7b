"""What `aril quantize` takes and refuses, before anything is installed, read or written."""

from __future__ import annotations

from typing import Any

import pytest
from aril.commands._quantize.scheme import METHODS, Scheme, check_shapes, choose
from aril.core.errors import ArilError

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
SHAPES = {Q: (576, 576), DOWN: (576, 1536)}


def scheme_of(method: str, **given: Any) -> Scheme:
    """A scheme of flags, most of them left out."""
    flags = {"bits": None, "group_size": None, "sym": None, "desc_act": False, "calibrated": False}
    return choose(method, **{**flags, **given})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_scheme_when_nothing_else_is_said(method: str) -> None:
    assert scheme_of(method).method == method


@pytest.mark.parametrize(
    ("method", "given", "complaint"),
    [
        ("gptq", {"bits": 5}, "--bits 5: gptq takes --bits 2, 3, 4 or 8"),
        ("gptq", {"group_size": 100}, "--group-size 100: gptq takes"),
        ("awq", {"desc_act": True}, "--desc-act does not go with --method awq"),
        ("awq", {"bits": 8}, "--bits 8: awq takes --bits 4"),
        ("fp8", {"bits": 4}, "--bits 4: fp8 takes --bits 8"),
        ("fp8", {"sym": False}, "--asym does not go with --method fp8: e4m3 has no zero point"),
        ("fp8", {"group_size": 128}, "each row has one scale"),
        ("fp8", {"calibrated": True}, "--calibration does not go with --method fp8"),
        ("int8", {"desc_act": True}, "it goes with gptq"),
        ("int4-rtn", {"bits": 3}, "--bits 3: int4-rtn takes --bits 4"),
    ],
)
def test_what_a_method_cannot_do_is_refused_by_the_flag(method: str, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArilError, match=r"^--") as refused:
        scheme_of(method, **given)
    assert complaint in refused.value.message
    assert "\n" not in refused.value.message


def test_a_group_size_that_divides_not_is_refused_with_the_layer_and_the_sizes_that_do() -> None:
    with pytest.raises(ArilError) as refused:
        check_shapes(scheme_of("gptq"), SHAPES)
    message = refused.value.message
    assert f"--group-size 128 does not divide the inputs of {Q} (576 inputs, 576 outputs)" in message
    assert "--group-size -1, 16, 32 or 64 would do" in message
    assert DOWN not in message


def test_a_whole_row_divides_everything() -> None:
    check_shapes(scheme_of("int4-rtn", group_size=-1), {Q: (7, 13)})


def test_layers_that_are_alike_are_named_once() -> None:
    shapes = {Q.replace("0", str(layer)): (576, 576) for layer in range(30)}
    with pytest.raises(ArilError) as refused:
        check_shapes(scheme_of("awq"), shapes)
    assert "q_proj (576 inputs, 576 outputs) and 29 more" in refused.value.message


@pytest.mark.parametrize(("bits", "fits"), [(2, False), (3, False), (4, True), (8, True)])
def test_codes_that_fill_no_word_are_refused(bits: int, fits: bool) -> None:
    shapes = {Q: (40, 64)}
    scheme = scheme_of("gptq", bits=bits, group_size=-1)
    if fits:
        check_shapes(scheme, shapes)
    else:
        with pytest.raises(ArilError, match=f"codes of {bits} bits"):
            check_shapes(scheme, shapes)


def test_awq_refuses_outputs_that_its_tool_cannot_clip() -> None:
    with pytest.raises(ArilError, match="clips outputs 64 at a time"):
        check_shapes(scheme_of("awq", group_size=32), {Q: (96, 128)})
