"""GGUF files with one thing broken: numbers in the header are overwritten where they lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf

from builders.broken import Broken, Change, cut

TENSOR = "blk.1.ffn_down.weight"
OTHER, AGAIN, UNKNOWN = "blk.1.ffn_up.weight", "blk.0.ffn_up.weight", "blk.1.ffn_dawn.weight"
DIMS, TYPE, OFFSET = 4, 20, 24  # bytes behind a matrix's name: after the number of dimensions, two of 8 bytes


def at(offset: int, layout: str, value: object) -> Change:
    """Another number at a place in the file."""

    def breaking(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        struct.pack_into(f"<{layout}", whole, offset, value)
        path.write_bytes(whole)

    return breaking


def behind(name: str, offset: int, layout: str, value: object) -> Change:
    """Another number so many bytes behind the first mention of `name`."""
    return lambda path: at(path.read_bytes().index(name.encode()) + len(name) + offset, layout, value)(path)


def renamed(name: str, new: str) -> Change:
    """Another name of the same length, everywhere."""
    assert len(name) == len(new)

    def breaking(path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(name.encode(), new.encode()))

    return breaking


def with_field(add: Callable[[gguf.GGUFWriter], object]) -> Change:
    """A header of one more field, and no tensors."""

    def breaking(path: Path) -> None:
        writer = gguf.GGUFWriter(path, "llama")
        add(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()

    return breaking


def whole(content: bytes) -> Change:
    """Another file altogether."""

    def breaking(path: Path) -> None:
        path.write_bytes(content)

    return breaking


def head(path: Path) -> None:
    """Nothing but the first 300 bytes."""
    path.write_bytes(path.read_bytes()[:300])


def endless(path: Path) -> None:
    """A field is an array of very many numbers."""
    with_field(lambda writer: writer.add_array("some.list", [1, 2, 3]))(path)
    behind("some.list", 8, "Q", 1 << 60)(path)


def nested(path: Path) -> None:
    """A field that is an array of an array of an array, without end."""
    key = b"general.deep"
    field = struct.pack("<Q", len(key)) + key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + field)


def a_scale_that_is_no_number(path: Path) -> None:
    """The first block of one matrix is scaled by NaN."""
    found = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == TENSOR)
    at(int(found.data_offset), "H", 0x7E00)(path)


def offset_of(name: str) -> Callable[[Path], int]:
    """Where the header says that a tensor begins."""

    def find(path: Path) -> int:
        whole = path.read_bytes()
        found: int = struct.unpack_from("<Q", whole, whole.index(name.encode()) + len(name) + OFFSET)[0]
        return found

    return find


def overlapping(path: Path) -> None:
    """A tensor begins where another one does."""
    behind(TENSOR, OFFSET, "Q", offset_of(OTHER)(path))(path)


GGUF = {
    "gguf: another magic": Broken("gguf", at(0, "4s", b"GGML"), ("GGML",)),
    "gguf: another version": Broken("gguf", at(4, "I", 99), ("version 99",)),
    "gguf: the other end first": Broken("gguf", at(4, "I", 3 << 24), ("version", "little-endian")),
    "gguf: no byte": Broken("gguf", whole(b""), ("not a whole GGUF file",)),
    "gguf: the magic alone": Broken("gguf", whole(b"GGUF"), ("ends within",)),
    "gguf: cut within the header": Broken("gguf", head, ("not a whole GGUF file",)),
    "gguf: cut within the tensors": Broken("gguf", cut(100), ("tensor", "cut short")),
    "gguf: countless tensors": Broken("gguf", at(8, "Q", 1 << 60), (f"{1 << 60} tensors",)),
    "gguf: countless fields": Broken("gguf", at(16, "Q", 1 << 60), (f"{1 << 60} metadata fields",)),
    "gguf: one tensor too many": Broken("gguf", at(8, "Q", 31), ("tensor",)),
    "gguf: a string without end": Broken("gguf", behind("general.name", 4, "Q", 1 << 62), ("general.name",)),
    "gguf: a field of no type": Broken("gguf", behind("general.name", 0, "I", 77), ("general.name", "77")),
    "gguf: an array without end": Broken("gguf", endless, ("some.list",)),
    "gguf: arrays in arrays in arrays": Broken("gguf", nested, ("general.deep",)),
    "gguf: a tensor of no type": Broken("gguf", behind(TENSOR, TYPE, "I", 199), (TENSOR, "199")),
    "gguf: a tensor without dimensions": Broken("gguf", behind(TENSOR, 0, "I", 0), (TENSOR, "0 dimensions")),
    "gguf: a tensor of countless dimensions": Broken("gguf", behind(TENSOR, 0, "I", 1 << 31), (TENSOR, "dimensions")),
    "gguf: a tensor without rows": Broken("gguf", behind(TENSOR, DIMS + 8, "Q", 0), (TENSOR,)),
    "gguf: a tensor of countless rows": Broken("gguf", behind(TENSOR, DIMS + 8, "Q", 1 << 62), ("tensor", "cut short")),
    "gguf: rows that no block divides": Broken("gguf", behind(TENSOR, DIMS, "Q", 161), (TENSOR, "161", "Q4_0")),
    "gguf: rows of another length": Broken("gguf", behind(TENSOR, DIMS, "Q", 128), ("model.layers.1.mlp.down_proj",)),
    "gguf: a tensor behind the end": Broken("gguf", behind(TENSOR, OFFSET, "Q", 1 << 40), (TENSOR, "cut short")),
    "gguf: a tensor that is not aligned": Broken("gguf", behind(TENSOR, OFFSET, "Q", 7), (TENSOR, "7")),
    "gguf: tensors that overlap": Broken("gguf", overlapping, ("tensor", "within")),
    "gguf: a tensor of that name again": Broken("gguf", renamed(OTHER, AGAIN), (AGAIN, "twice")),
    "gguf: a tensor of another name": Broken("gguf", renamed(TENSOR, UNKNOWN), (UNKNOWN,)),
    "gguf: no embedding": Broken("gguf", renamed("token_embd.weight", "token_emXX.weight"), ("token_embd.weight",)),
    "gguf: no architecture": Broken("gguf", renamed("general.architecture", "general.architectXXX"), ("architecture",)),
    "gguf: no number of layers": Broken("gguf", renamed("llama.block_count", "llama.block_cXXXX"), ("block_count",)),
    "gguf: an architecture that is a number": Broken(
        "gguf", with_field(lambda w: w.add_uint32("general.architecture", 7)), ("architecture",)
    ),
    "gguf: no heads": Broken("gguf", behind("llama.attention.head_count", 4, "I", 0), ("attention.head_count",)),
    "gguf: a size that is a fraction": Broken("gguf", behind("llama.block_count", 0, "I", 6), ("llama.block_count",)),
    "gguf: an alignment of nothing": Broken(
        "gguf", with_field(lambda w: w.add_uint32("general.alignment", 0)), ("general.alignment", "0")
    ),
    "gguf: a scale that is no number": Broken("gguf", a_scale_that_is_no_number, ("model.layers.1.mlp.down_proj",)),
}
