"""Every provider of every op agrees with the op's torch reference on every case that the op declares."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from aril.core.platform import detect
from aril.kernels import dispatch
from aril.kernels.cases import Case, Inputs
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # in Triton's interpreter
DEVICE = detect().device
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = [
    (name, provider)
    for name, op in dispatch.ops().items()
    for provider in op.providers()
    if provider != dispatch.REFERENCE
]


def cases_of(name: str, provider: str, dtype: torch.dtype) -> list[Case]:
    """The cases whose arguments the provider accepts; large ones only where nothing is interpreted."""
    op = dispatch.ops()[name]
    assert op.case_maker is not None, f"{name} declares no cases"
    made = [case for case in op.case_maker(Inputs(DEVICE, dtype)) if provider_is_quick(provider) or not case.large]
    return [case for case in made if op.refusals(*case.args, **case.kwargs)[provider] is None]


def provider_is_quick(provider: str) -> bool:
    """Interpreted kernels are the ones that are never chosen automatically."""
    return dispatch.is_automatic(provider)


def outcome(op: dispatch.Op[..., object], provider: str, case: Case) -> dict[str, Tensor]:
    """What the call returned, and each tensor among its arguments afterwards, on copies."""
    args = [value.clone() if isinstance(value, Tensor) else value for value in case.args]
    with op.force(provider):
        returned: Any = op(*args, **case.kwargs)
    found = {f"argument {i}": value for i, value in enumerate(args) if isinstance(value, Tensor)}
    return found | parts_of(returned)


def parts_of(returned: Any) -> dict[str, Tensor]:
    """The tensors of a result: itself, or the fields of a record."""
    if not dataclasses.is_dataclass(returned):
        return {} if returned is None else {"result": returned}
    fields = {field.name: getattr(returned, field.name) for field in dataclasses.fields(returned)}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "provider"), PAIRS)
def test_a_provider_agrees_with_the_reference(name: str, provider: str, dtype: torch.dtype) -> None:
    op = dispatch.ops()[name]
    cases = cases_of(name, provider, dtype)
    if not cases:
        assert dtype is torch.float16, f"{provider} must take {dtype}"
        pytest.skip(f"{provider} takes no {dtype} here")
    for case in cases:
        expected, found = outcome(op, dispatch.REFERENCE, case), outcome(op, provider, case)
        assert found.keys() == expected.keys(), case.label
        for part, tensor in found.items():
            tolerance = op.tolerances.of(tensor.dtype)
            torch.testing.assert_close(
                tensor,
                expected[part],
                rtol=tolerance,
                atol=tolerance,
                msg=lambda message, label=f"{case.label}, {part}": f"{label}: {message}",
            )
        for row in case.untouched:
            assert torch.equal(found["argument 0"][row], case.args[0][row]), case.label


@pytest.mark.parametrize(("name", "provider"), PAIRS)
def test_a_provider_accepts_some_case(name: str, provider: str) -> None:
    assert any(cases_of(name, provider, dtype) for dtype in DTYPES)


@pytest.mark.parametrize("name", dispatch.ops())
def test_an_op_declares_its_cases(name: str) -> None:
    assert dispatch.ops()[name].case_maker is not None
