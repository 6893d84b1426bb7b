"""Who computes an op: chosen by the machine and the arguments, forced by name, explained in words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from aril.core.errors import Unsupported
from aril.kernels import dispatch
from torch import Tensor


@pytest.fixture
def double() -> dispatch.Op[[Tensor], Tensor]:
    """An op whose native provider takes only vectors, and says whom it is by its sign."""

    def double(x: Tensor) -> Tensor:
        return 2 * x

    op = dispatch.Op(double)
    op.impl("native", when=lambda x: x.dim() == 1, needs="a vector")(lambda x: -2 * x)
    return op


def test_the_provider_that_accepts_the_arguments_runs(double: dispatch.Op[[Tensor], Tensor]) -> None:
    assert double(torch.ones(3)).tolist() == [-2, -2, -2]


def test_the_reference_runs_what_no_provider_accepts(double: dispatch.Op[[Tensor], Tensor]) -> None:
    assert double(torch.ones(1, 2)).tolist() == [[2, 2]]


def test_a_forced_provider_runs_until_the_end_of_the_block(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with double.force("reference"):
        forced = double(torch.ones(1))
    assert (forced.item(), double(torch.ones(1)).item()) == (2, -2)


def test_a_forced_provider_is_not_replaced_where_it_refuses(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with double.force("native"), pytest.raises(Unsupported, match="needs a vector"):
        double(torch.ones(1, 2))


def test_a_provider_is_forced_on_its_own_thread_alone(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with double.force("reference"), ThreadPoolExecutor(1) as other:
        assert other.submit(double, torch.ones(1)).result().tolist() == [-2]


def test_an_op_is_as_it_was_after_two_threads_that_forced_it_at_once(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        blocks = [(thread, double.force("reference")) for thread in (first, second)]
        for thread, block in blocks:
            thread.submit(block.__enter__).result()
        for thread, block in blocks:
            thread.submit(block.__exit__, None, None, None).result()
    assert double(torch.ones(1)).tolist() == [-2]


def test_an_unknown_provider_is_answered_with_the_choices(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with pytest.raises(Unsupported, match=r"no provider 'vulkan' of double .*native: runs.*reference: runs"):
        double.force("vulkan").__enter__()


def test_other_parameters_are_a_type_error_at_registration(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="does not take the parameters of double"):
        double.impl("triton")(lambda y: y)


def test_a_second_implementation_by_one_provider_is_a_type_error(double: dispatch.Op[[Tensor], Tensor]) -> None:
    with pytest.raises(TypeError, match="two implementations by 'native'"):
        double.impl("native")(lambda x: x)


def test_explain_says_who_runs_the_arguments_and_why_the_others_do_not(double: dispatch.Op[[Tensor], Tensor]) -> None:
    told = dispatch.explain(double, torch.ones(1, 2))
    assert "native: needs a vector" in told
    assert "triton: has no test_dispatch.py" in told
    assert told.endswith("reference: runs")


def test_explain_takes_the_name_of_an_op() -> None:
    assert "reference: runs" in dispatch.explain("rms_norm", torch.ones(1, 2), torch.ones(2), 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no device")
def test_an_interpreted_kernel_is_never_chosen_unforced() -> None:
    assert "triton: runs when forced" in dispatch.explain("silu_mul", torch.ones(1, 2))
