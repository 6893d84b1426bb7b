"""The choices of `aril quantize`: what each method can do, and one line for what it cannot. Light to import."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import InvalidRequest, Unsupported

CHANNEL = -1  # the group size that means one scale for a whole row
AWQ_OUTPUTS = 64  # GPTQModel 7.7 searches for clips in that many outputs at a time
SHOWN = 6  # layers in an error


@dataclass(frozen=True, slots=True)
class Method:
    """One value of --method; the first bits, group size and symmetry are the ones taken when none are given."""

    tool: str
    about: str
    bits: tuple[int, ...]
    groups: tuple[int, ...]
    symmetries: tuple[bool, ...]
    act_order: bool
    learns: bool  # reads calibration text
    why: Mapping[str, str]  # option -> why it is fixed


INT_GROUPS = (128, 64, 32, 256, CHANNEL)
METHODS: dict[str, Method] = {
    "gptq": Method(
        "gptqmodel",
        "GPTQ: weights of 2, 3, 4 or 8 bits, each rounded so that the next make up for its error",
        bits=(4, 2, 3, 8),
        groups=(128, 16, 32, 64, 256, CHANNEL),
        symmetries=(True, False),
        act_order=True,
        learns=True,
        why={},
    ),
    "awq": Method(
        "gptqmodel",
        "AWQ: 4-bit weights, after scaling the inputs that matter most",
        bits=(4,),
        groups=(128, 32, 64),
        symmetries=(False, True),
        act_order=False,
        learns=True,
        why={"bits": "its files hold 4-bit codes", "desc_act": "it has no order of activations"},
    ),
    "fp8": Method(
        "llmcompressor",
        "FP8: e4m3 weights with a scale for each row, activations rounded to e4m3 row by row as they come",
        bits=(8,),
        groups=(CHANNEL,),
        symmetries=(True,),
        act_order=False,
        learns=False,
        why={"sym": "e4m3 has no zero point", "group_size": "each row has one scale"},
    ),
    "int8": Method(
        "llmcompressor",
        "INT8 (W8A8): int8 weights with a scale for each row, activations rounded to int8 row by row as they come",
        bits=(8,),
        groups=(CHANNEL,),
        symmetries=(True,),
        act_order=False,
        learns=False,
        why={"sym": "integer products want no zero points", "group_size": "each row has one scale"},
    ),
    "int4-rtn": Method(
        "llmcompressor",
        "INT4 (W4A16): 4-bit weights, rounded to nearest",
        bits=(4,),
        groups=(32, 64, 128, 256, CHANNEL),
        symmetries=(True, False),
        act_order=False,
        learns=False,
        why={"desc_act": "rounding to nearest has no order"},
    ),
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """What is to be made, checked."""

    method: str
    bits: int
    group_size: int
    sym: bool
    desc_act: bool

    @property
    def rule(self) -> Method:
        return METHODS[self.method]

    def describe(self) -> str:
        """`gptq, 4 bits, groups of 128, symmetric`."""
        group = "one scale for each row" if self.group_size == CHANNEL else f"groups of {self.group_size}"
        order = ", act order" if self.desc_act else ""
        return f"{self.method}, {self.bits} bits, {group}, {'symmetric' if self.sym else 'asymmetric'}{order}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    method: str, *, bits: int | None, group_size: int | None, sym: bool | None, desc_act: bool, calibrated: bool
) -> Scheme:
    """The scheme of the flags, None = as the method has it. Raises InvalidRequest with what the method can do."""
    rule = METHODS[method]
    bits = rule.bits[0] if bits is None else bits
    group_size = rule.groups[0] if group_size is None else group_size
    sym = rule.symmetries[0] if sym is None else sym
    _one_of("bits", bits, rule.bits, method)
    _one_of("group_size", group_size, rule.groups, method)
    if sym not in rule.symmetries:
        raise _refused("sym" if sym else "asym", method, _why(rule, "sym"))
    if desc_act and not rule.act_order:
        raise _refused("desc_act", method, _why(rule, "desc_act"))
    if calibrated and not rule.learns:
        raise _refused("calibration", method, "it rounds without looking at data")
    return Scheme(method, bits, group_size, sym, desc_act)


def check_shapes(scheme: Scheme, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Raise Unsupported for matrices [outputs, inputs] that the scheme cannot cut, with the group sizes that can."""
    _check_groups(scheme, shapes)
    if scheme.rule.tool != "gptqmodel":
        return
    step = AWQ_OUTPUTS if scheme.method == "awq" else 32 // math.gcd(32, scheme.bits)
    ragged = {
        name: shape
        for name, shape in shapes.items()
        if shape[0] % step or (scheme.method == "gptq" and shape[1] % step)
    }
    if ragged:
        what = "clips outputs" if scheme.method == "awq" else f"packs codes of {scheme.bits} bits"
        raise Unsupported(
            f"{scheme.method} {what} {step} at a time, which does not divide {_listed(ragged)}", param="method"
        )


def _check_groups(scheme: Scheme, shapes: Mapping[str, tuple[int, int]]) -> None:
    size = scheme.group_size
    if size == CHANNEL:
        return
    ragged = {name: shape for name, shape in shapes.items() if shape[1] % size}
    if not ragged:
        return
    fitting = [g for g in scheme.rule.groups if g == CHANNEL or not any(shape[1] % g for shape in shapes.values())]
    advice = f"--group-size {_choices(sorted(fitting))} would do" if fitting else "no group size of this method would"
    raise Unsupported(
        f"--group-size {size} does not divide the inputs of {_listed(ragged)}; {advice}", param="group_size"
    )


def _one_of(option: str, value: int, choices: tuple[int, ...], method: str) -> None:
    if value in choices:
        return
    why = METHODS[method].why.get(option)
    can = f"{method} takes {_flag(option)} {_choices(sorted(choices))}"
    raise InvalidRequest(f"{_flag(option)} {value}: {can}" + (f" ({why})" if why else ""), param=option)


def _refused(option: str, method: str, why: str) -> InvalidRequest:
    able = [name for name, rule in METHODS.items() if _allows(rule, option)]
    return InvalidRequest(
        f"{_flag(option)} does not go with --method {method}: {why}; it goes with {_choices(able)}", param=option
    )


def _allows(rule: Method, option: str) -> bool:
    answers = {
        "sym": True in rule.symmetries,
        "asym": False in rule.symmetries,
        "desc_act": rule.act_order,
        "calibration": rule.learns,
    }
    return answers[option]


def _why(rule: Method, option: str) -> str:
    return rule.why.get(option, "there is no such thing in it")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _choices(values: Iterable[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _listed(shapes: Mapping[str, tuple[int, int]]) -> str:
    """The kinds of matrices at fault: those of one layer stand for the same ones of others."""
    first = {name.rpartition("layers.")[2].partition(".")[2] or name: name for name in reversed(list(shapes))}
    shown = [f"{name} ({shapes[name][1]} inputs, {shapes[name][0]} outputs)" for name in list(first.values())[:SHOWN]]
    rest = len(shapes) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
