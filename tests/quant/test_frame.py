"""What the formats share: matrices of one kind become one product, others stand side by side, and nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from aril.kernels.ops.grouped import GroupedWeight, Groups, pack_rows
from aril.models.layers.embedding import Embedding
from aril.models.layers.linear import Linear, LinearSpec
from aril.models.parallel import OneRank
from aril.quant.activations import Static8, ToE4M3, ToIntegers
from aril.quant.base import LinearShape, Stored
from aril.quant.formats.gptq import Gptq
from aril.quant.matrix import GroupedMatrix, GroupedProduct, Int8Matrix, Matrix, PlainMatrix, SideBySide, product_of
from builders.quantised import Codes, Tensors, gptq_tensors, groups_of, some_codes
from torch import Tensor

CPU = torch.device("cpu")
K = 128
NAMES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def grouped(n: int = 32, seed: int = 0, *, bits: int = 4, group: int = 32, **more: object) -> GroupedMatrix:
    noise = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, (n, K), generator=noise, dtype=torch.uint8)
    scales = Groups(torch.rand(K // group, n, generator=noise).half())
    weight = GroupedWeight((codes,), "codes", n, K, bits, group, scales, 1 << (bits - 1))
    return GroupedMatrix(replace(weight, **more))  # type: ignore[arg-type]


def zeros(n: int = 32) -> Tensor:
    return torch.randint(16, (K // 32, n), dtype=torch.uint8)


def order(seed: int) -> Tensor:
    return torch.randperm(K, generator=torch.Generator().manual_seed(seed))


def int8(n: int = 16, *, symmetric: bool = True) -> Int8Matrix:
    return Int8Matrix(torch.randint(-127, 128, (n, K), dtype=torch.int8), torch.rand(n), None, symmetric)


ALIKE: dict[str, list[Matrix]] = {
    "one number for zero points": [grouped(32, 0), grouped(16, 1), grouped(16, 2)],
    "zero points": [grouped(32, 0, zeros=zeros(32)), grouped(16, 1, zeros=zeros(16))],
    "one act order": [grouped(32, 0, order=order(1)), grouped(16, 1, order=order(1))],
    "minima": [grouped(seed=at, zeros=0, mins=Groups(torch.rand(4, 32))) for at in range(2)],
    "plain": [PlainMatrix(torch.randn(8, K)), PlainMatrix(torch.randn(24, K))],
    "rows rounded alike": [replace(grouped(seed=at), rounding=ToIntegers(8)) for at in range(2)],
    "int8": [int8(), int8(8)],
}
UNLIKE: dict[str, list[Matrix]] = {
    "bits": [grouped(bits=4), grouped(bits=3)],
    "groups": [grouped(), grouped(group=64)],
    "zero points": [grouped(), grouped(zeros=7), grouped(zeros=zeros())],
    "act orders": [grouped(order=order(1)), grouped(order=order(2)), grouped()],
    "dtypes of scales": [grouped(), grouped(scales=Groups(torch.rand(4, 32)))],
    "formats": [grouped(), PlainMatrix(torch.randn(8, K)), int8()],
    "roundings": [grouped(), replace(grouped(), rounding=ToE4M3()), replace(grouped(), rounding=ToE4M3(32))],
    "roundings of int8": [int8(), int8(symmetric=False), replace(int8(), rows=Static8(0.1))],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_matrices_of_one_kind_become_one_product(kind: str) -> None:
    first, *others = ALIKE[kind]
    joined = first.joined(others)
    assert joined is not None
    assert torch.equal(joined.dense(), torch.cat([matrix.dense() for matrix in ALIKE[kind]]))
    product = product_of(ALIKE[kind], CPU)
    assert not isinstance(product, SideBySide)
    assert_multiplies_as(product, ALIKE[kind])


@pytest.mark.parametrize("kind", UNLIKE)
def test_matrices_of_other_kinds_stand_side_by_side(kind: str) -> None:
    product = product_of(UNLIKE[kind], CPU)
    assert isinstance(product, SideBySide)
    assert len(product.products) == len(UNLIKE[kind])
    assert_multiplies_as(product, UNLIKE[kind])


def test_only_neighbours_are_joined_so_that_outputs_stay_in_their_places() -> None:
    matrices: list[Matrix] = [grouped(16, 0), grouped(16, 1), PlainMatrix(torch.randn(8, K)), grouped(16, 2)]
    product = product_of(matrices, CPU)
    assert isinstance(product, SideBySide)
    assert len(product.products) == 3
    assert_multiplies_as(product, matrices)


def assert_multiplies_as(product: object, matrices: Sequence[Matrix]) -> None:
    """The outputs are those of each matrix by itself, one after the other; rows that are rounded show in both."""
    x = torch.randn(5, K)
    assert callable(product)
    apart = torch.cat([matrix.product(CPU)(x) for matrix in matrices], dim=1)
    torch.testing.assert_close(product(x), apart, rtol=1e-4, atol=1e-4)


def gptq(parts: dict[str, Codes], **config: object) -> tuple[Gptq, dict[str, Tensors]]:
    """A format over the header of `parts`, and their tensors."""
    tensors = {name: gptq_tensors(codes) for name, codes in parts.items()}
    stored = {
        f"{name}.{kind}": Stored(tuple(each.shape), each.dtype)
        for name, found in tensors.items()
        for kind, each in found.items()
    }
    plain = {"bits": 4, "group_size": 32, **config}
    found = Gptq.from_checkpoint(plain, stored)
    assert isinstance(found, Gptq)
    return found, tensors


def fused(parts: dict[str, Codes], **config: object) -> Linear:
    """A Linear of these parts, once all of their tensors have come, the last part's first."""
    format_, tensors = gptq(parts, **config)
    sizes = tuple((name, len(codes.values)) for name, codes in parts.items())
    linear = Linear(LinearSpec(K, sizes, torch.float32, CPU), format_, OneRank())
    for name, want in reversed(list(linear.wanted())):
        module, _, kind = name.rpartition(".")
        want.put(tensors[module][kind])
    return linear


def parts_of(*orders: int | None, bits: tuple[int, ...] = (4, 4, 4)) -> dict[str, Codes]:
    """q, k and v, each in act order by its seed, or in none."""
    indices = [groups_of(K, 32, seed is not None, seed or 0) for seed in orders]
    return {
        name: some_codes(n, bits[at], indices[at], symmetric=False, seed=at)
        for at, (name, n) in enumerate(zip(NAMES, (64, 32, 32), strict=True))
    }


@pytest.mark.parametrize(
    ("parts", "config", "num_products"),
    [
        (parts_of(3, 3, 3), {"desc_act": True}, 1),
        (parts_of(3, 3, 4), {"desc_act": True}, 2),
        (parts_of(None, 5, None), {"desc_act": True}, 3),
        (parts_of(None, None, None, bits=(4, 8, 4)), {"dynamic": {".*k_proj": {"bits": 8}}}, 3),
    ],
    ids=["one order", "two orders", "an order in the middle", "bits that differ"],
)
def test_a_fused_linear_is_as_few_products_as_its_parts_allow(
    parts: dict[str, Codes], config: dict[str, object], num_products: int
) -> None:
    linear = fused(parts, **config)
    assert linear.product is not None
    products = linear.product.products if isinstance(linear.product, SideBySide) else (linear.product,)
    assert len(products) == num_products
    assert all(isinstance(product, GroupedProduct) for product in products)
    x = torch.randn(7, K)
    dense = torch.cat([codes.dense() for codes in parts.values()])
    torch.testing.assert_close(linear.product(x), x @ dense.t(), rtol=1e-4, atol=1e-4)


def test_the_parts_of_a_fused_linear_lie_where_adapters_look_for_them() -> None:
    linear = fused(parts_of(1, 2, 3), desc_act=True)
    assert [part.name for part in linear.parts] == list(NAMES)
    assert [part.start for part in linear.parts] == [0, *accumulate(part.size for part in linear.parts)][:-1]


def test_an_embedding_in_codes_gives_the_rows_of_its_matrix() -> None:
    codes = some_codes(96, 4, groups_of(K, 32, act_order=True), symmetric=False)
    format_, tensors = gptq({"embed": codes}, desc_act=True)
    table = Embedding("embed", LinearShape(K, 96, torch.float32), format_, CPU)
    for name, want in table.wanted():
        want.put(tensors["embed"][name.rpartition(".")[2]])
    tokens = torch.tensor([3, 95, 0, 3])
    torch.testing.assert_close(table(tokens), codes.dense()[tokens], rtol=0, atol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("act_order", [True, False])
def test_a_method_knows_the_bytes_of_the_packed_matrix_beforehand(bits: int, act_order: bool) -> None:
    codes = some_codes(64, bits, groups_of(K, 32, act_order), symmetric=False)
    format_, tensors = gptq({"m": codes}, bits=bits, desc_act=act_order, sym=False)
    shape = LinearShape(K, 64, torch.float32)
    method = format_.linear("m", shape)
    matrix = method.read(tensors["m"], shape)
    assert isinstance(matrix, GroupedMatrix)
    assert method.weight_bytes(shape) == pack_rows(matrix.weight).nbytes
