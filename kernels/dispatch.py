"""One op, many providers: the torch function is the declaration AND the reference, a folder lists what is faster.

    @op
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...        kernels/ops/norm.py

    @rms_norm.impl("triton", when=lambda x, weight, eps: x.is_cuda, needs="CUDA tensors")
    def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor: ... kernels/triton/norm.py

A provider is a package beside this file. It answers `refuses(platform) -> str | None` (why none of its kernels can run
here) and may set `AUTOMATIC = False` (only `force` picks it). Its file of an op's name is imported at the op's first
call; raising Unsupported there is a refusal with a reason. Of the providers that accept the arguments the first by name
runs: they are made for different devices and rarely compete. What the machine decides is decided once; `when` is asked
on every call, because it may look at anything, and a lambda (0.2 us) is cheaper than a cache key of the arguments.
What is forced is forced on one thread: engines of one process record their tapes whenever each of them has to.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from ..core.errors import Unsupported
from ..core.log import event, get_logger
from ..core.platform import detect
from .cases import CaseMaker, Tolerances

P = ParamSpec("P")
R = TypeVar("R")

REFERENCE = "reference"
_HOME = __name__.rpartition(".")[0]
_OPS: dict[str, Op[..., object]] = {}

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Impl(Generic[P, R]):
    """One way to compute an op."""

    provider: str
    run: Callable[P, R]
    when: Callable[P, bool] | None = None  # None = whatever the arguments are
    needs: str = ""  # what `when` asks for, in words


class Op(Generic[P, R]):
    """A numeric function with a reference and, where the machine has them, faster providers."""

    def __init__(self, reference: Callable[P, R]) -> None:
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self.file = reference.__module__.rpartition(".")[2]
        self.case_maker: CaseMaker | None = None
        self.tolerances = Tolerances()
        self._reference: Impl[P, R] = Impl(REFERENCE, reference)
        self.impls: dict[str, Impl[P, R]] = {}
        self._refused: dict[str, str] = {}
        self._order: tuple[Impl[P, R], ...] = ()  # what a call asks, first to last; empty = not looked for yet

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        forced = _forced.get().get(self)
        for impl in (self._order or self._look()) if forced is None else (forced,):
            if impl.when is None or impl.when(*args, **kwargs):
                return impl.run(*args, **kwargs)
        raise Unsupported(f"{self.name} is forced, but refuses these arguments: {explain(self, *args, **kwargs)}")

    def impl(
        self, provider: str, *, when: Callable[P, bool] | None = None, needs: str = ""
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register `provider`'s way; raises TypeError when its parameters are not the reference's."""

        def register(run: Callable[P, R]) -> Callable[P, R]:
            self._check_parameters(run)
            if provider in self.impls:
                raise TypeError(f"{self.name} has two implementations by {provider!r}")
            self.impls[provider] = Impl(provider, run, when, needs)
            return run

        return register

    def cases(self, tolerances: Tolerances) -> Callable[[CaseMaker], CaseMaker]:
        """Declare the inputs on which every provider must agree with the reference, and how closely."""

        def declare(maker: CaseMaker) -> CaseMaker:
            self.case_maker, self.tolerances = maker, tolerances
            return maker

        return declare

    @property
    def reference(self) -> Callable[P, R]:
        """The torch function itself."""
        return self._reference.run

    def providers(self) -> tuple[str, ...]:
        """Who can run here, the reference last."""
        self._look()
        return (*sorted(self.impls), REFERENCE)

    @contextmanager
    def force(self, provider: str) -> Iterator[None]:
        """Run `provider` and nothing else meanwhile, on this thread; arguments that it refuses raise Unsupported."""
        if provider not in self.providers():
            raise Unsupported(f"no provider {provider!r} of {self.name} here; {explain(self)}")
        with _forcing({self: self._reference if provider == REFERENCE else self.impls[provider]}):
            yield

    def refusals(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, str | None]:
        """Every provider and why it does not run these arguments (None = it could)."""
        self._look()
        reasons: dict[str, str | None] = dict(self._refused)
        for impl in self.impls.values():
            accepted = impl.when is None or impl.when(*args, **kwargs)
            reasons[impl.provider] = None if accepted else f"needs {impl.needs or 'other arguments'}"
        return reasons | {REFERENCE: None}

    def _look(self) -> tuple[Impl[P, R], ...]:
        if not self._order:
            for name in _provider_names():
                reason = self._load(name)
                if reason is not None:
                    self._refused[name] = reason
            chosen = [self.impls[name] for name in sorted(self.impls) if is_automatic(name)]
            self._order = (*chosen, self._reference)
        return self._order

    def _load(self, provider: str) -> str | None:
        """Import the provider's file of this op; the reason why it has nothing for us, if so."""
        reason = _refusal(provider)
        if reason is not None:
            return reason
        package = _package(provider)
        if self.file not in {module.name for module in pkgutil.iter_modules(package.__path__)}:
            return f"has no {self.file}.py"
        try:
            importlib.import_module(f"{package.__name__}.{self.file}")
        except Unsupported as error:
            log.warning(event("kernel_provider_refused", op=self.name, provider=provider, reason=error.message))
            return error.message
        return None if provider in self.impls else f"{self.file}.py does not implement it"

    def _check_parameters(self, run: Callable[P, R]) -> None:
        ours, theirs = _parameters(self.reference), _parameters(run)
        if ours != theirs:
            raise TypeError(f"{run.__qualname__} does not take the parameters of {self.name}: {theirs} is not {ours}")


_Forced = Mapping[Op[..., Any], Impl[..., Any]]
_forced: ContextVar[_Forced] = ContextVar("forced", default=MappingProxyType({}))  # on this thread


def op(reference: Callable[P, R]) -> Op[P, R]:
    """Declare an op by its torch reference."""
    made: Op[P, R] = Op(reference)
    _OPS[made.name] = made  # type: ignore[assignment]  # the table forgets the signature
    return made


@contextmanager
def only(provider: str) -> Iterator[None]:
    """Run `provider` and nothing else meanwhile, in every op on this thread; what it does not do raises Unsupported."""
    declared = list(_OPS.values())  # a look imports files, which may declare more
    for op in declared:
        op._look()
    with _forcing({op: op.impls.get(provider, _nobody(provider)) for op in declared}):
        yield


@contextmanager
def _forcing(impls: _Forced) -> Iterator[None]:
    before = _forced.set({**_forced.get(), **impls})
    try:
        yield
    finally:
        _forced.reset(before)


def _nobody(provider: str) -> Impl[..., object]:
    return Impl(provider, _never, lambda *_, **__: False, "an op that it has")


def _never(*_: object, **__: object) -> object:
    raise AssertionError("refused all arguments")


def ops() -> dict[str, Op[..., object]]:
    """Every op of kernels/ops, by name."""
    package = _package("ops")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_OPS.items()))


def explain(target: Op[..., R] | str, *args: object, **kwargs: object) -> str:
    """Who runs `target`, and why the others do not: `native: runs; triton: no CUDA device; reference: runs`.

    Without arguments only the machine is asked. `target` is an op or its name.
    """
    found = ops()[target] if isinstance(target, str) else target
    if args or kwargs:
        reasons = found.refusals(*args, **kwargs)
    else:
        reasons = {**found._refused, **dict.fromkeys(found.providers())}
    return "; ".join(f"{name}: {_told(name, reason)}" for name, reason in reasons.items())


def _told(provider: str, reason: str | None) -> str:
    if reason is not None:
        return reason
    return "runs" if provider == REFERENCE or is_automatic(provider) else "runs when forced"


def _parameters(run: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(run).parameters.values()
    return [f"{p.kind.description} {p.replace(annotation=inspect.Parameter.empty)}" for p in parameters]


def _package(name: str) -> ModuleType:
    return importlib.import_module(f"{_HOME}.{name}")


@functools.cache
def _provider_names() -> tuple[str, ...]:
    modules = pkgutil.iter_modules(importlib.import_module(_HOME).__path__)
    return tuple(sorted(module.name for module in modules if module.ispkg and module.name != "ops"))


@functools.cache
def _refusal(provider: str) -> str | None:
    return cast(str | None, _package(provider).refuses(detect()))


@functools.cache
def is_automatic(provider: str) -> bool:
    """Whether the provider is chosen without being forced."""
    return bool(getattr(_package(provider), "AUTOMATIC", True))
