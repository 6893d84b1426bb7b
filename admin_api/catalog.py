"""Which names requests may use: a picture of the registry in memory, so that asking costs next to nothing.

A name is looked for among the caller's own adapters, then among the public ones of others. What it means: `name` goes
through the alias `default`, `name@prod` through another, `name@3` and `name@sha256:0f3a...` are one revision; each may
stand after `BASE:`. AdapterService alone changes the picture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..core.callers import Caller
from ..core.errors import ArilError, NotFound, Unavailable
from ..core.log import event, get_logger
from ..core.metrics import gauge
from ..lora.adapter import AdapterRef
from ..lora.catalog import CatalogEntry, Resolution, Sticky
from . import repo
from .listing import NUMBER, Listed
from .residency import Residency
from .tables import DEFAULT_ALIAS

log = get_logger(__name__)

ACTIVE = gauge("adapters_active", "Adapters that requests can name")
MAX_SHOWN = 300  # characters of a name that is told back


class AdapterCatalog:
    """The base and every adapter. Implements lora.catalog.Catalog."""

    def __init__(self, base: str, residency: Residency, judge: repo.Judge = repo.anywhere) -> None:
        """`judge`: why what was checked on another base is not served on this one."""
        self.base = base
        self.judge = judge
        self._residency = residency
        self._tenants: dict[str, dict[str, Listed]] = defaultdict(dict)
        self._public: dict[str, Listed] = {}
        self._lost: frozenset[str] = frozenset()
        self._on_failure: list[Callable[[Resolution], None]] = []

    def on_failure(self, callback: Callable[[Resolution], None]) -> None:
        """Call `callback` whenever what a request means cannot be loaded."""
        self._on_failure.append(callback)

    async def resolve(self, model: str, caller: Caller, sticky: Sticky) -> Resolution:
        """What `model` names, loaded; its shadow is not. Raises NotFound, never falls back to the base; Unavailable for
        an adapter that is there but cannot be served."""
        if model == self.base:
            return Resolution(ref=None, speaker=model)
        found = self._meant(model, caller, sticky)
        if found is None or found.ref is None:
            raise self._missing(model, caller)
        if not self._residency.holds(found.ref):
            await self._load(found, found.ref)
        return found

    async def list(self, caller: Caller) -> Sequence[CatalogEntry]:
        """The adapters whose bare name means something to `caller`, by name."""
        seen = {**self._public, **self._tenants.get(caller.tenant, {})}
        entries = (self._entry(listed) for name, listed in seen.items() if caller.may_use(name))
        return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.name)

    async def find(self, model: str, caller: Caller) -> CatalogEntry | None:
        """What `model` mostly means."""
        listed, selector = self._named(model, caller)
        ref = listed.selected(selector) if listed is not None else None
        if listed is None or ref is None or ref.digest in self._lost:
            return None
        return CatalogEntry(model, ref, listed.created[ref.revision])

    def put(self, tenant: str, name: str, listed: Listed | None) -> None:
        """From now on requests see `listed`, or nothing."""
        known = self._tenants[tenant].pop(name, None)
        if known is not None and self._public.get(name) is known:
            del self._public[name]
        if listed is not None:
            self._tenants[tenant][name] = listed
            if listed.public:
                self._public[name] = listed
        elif not self._tenants[tenant]:
            del self._tenants[tenant]
        self._count()

    def put_all(self, everything: Iterable[Listed]) -> None:
        """From now on requests see exactly this."""
        tenants: dict[str, dict[str, Listed]] = defaultdict(dict)
        for listed in everything:
            tenants[listed.tenant][listed.name] = listed
        self._tenants = tenants
        self._public = {each.name: each for each in self._all() if each.public}
        self._count()

    def lose(self, digests: Iterable[str]) -> None:
        """These bytes are not where they should be; each is told once."""
        lost = frozenset(digests)
        if news := lost - self._lost:
            hint = "their adapters are answered with 503; is --store the one that belongs to this database?"
            log.warning(event("adapter_bytes_missing", digests=len(news), first=min(news), hint=hint))
        self._lost = lost

    def found(self, digest: str) -> None:
        """These bytes are there."""
        self._lost -= {digest}

    def seen(self, tenant: str, name: str) -> Listed | None:
        """One adapter as it stands."""
        return self._tenants.get(tenant, {}).get(name)

    def fault(self, tenant: str, name: str) -> str | None:
        """Why an adapter, although active, does not answer."""
        listed = self.seen(tenant, name)
        if listed is not None and (why := listed.refusal(DEFAULT_ALIAS)) is not None:
            return why
        ref = listed.default if listed else None
        return f"no adapter bytes with digest {ref.digest!r}" if ref and ref.digest in self._lost else None

    def names(self, ref: AdapterRef, *, besides: str | None = None) -> bool:
        """Whether a READY revision of any tenant `besides` one is `ref`; two may have like ones under like names."""
        each = (adapters.get(ref.name) for tenant, adapters in self._tenants.items() if tenant != besides)
        return any(listed is not None and listed.revisions.get(ref.revision) == ref for listed in each)

    def digests(self) -> set[str]:
        """The bytes of every READY revision."""
        return {ref.digest for listed in self._all() for ref in listed.revisions.values()}

    def _named(self, model: str, caller: Caller) -> tuple[Listed | None, str]:
        """The adapter that `model` is about, and what stands behind its `@`. Another's and none cost the same work."""
        name, at, selector = model.removeprefix(f"{self.base}:").partition("@")
        own, public = self._tenants.get(caller.tenant, _NOTHING).get(name), self._public.get(name)
        listed = own or public
        return (listed if caller.may_use(name) else None), (selector if at else DEFAULT_ALIAS)

    def _meant(self, model: str, caller: Caller, sticky: Sticky) -> Resolution | None:
        listed, selector = self._named(model, caller)
        if listed is None:
            return None
        route = listed.routes.get(selector)
        if route is None:
            ref = listed.selected(selector)
            return None if ref is None else Resolution(ref=ref, speaker=_speaker(ref), owner=listed.tenant)
        value = sticky(route.sticky_header) if len(route.weights) > 1 else None
        ref = listed.revisions.get(route.choose(f"{listed.tenant}\0{listed.name}\0{selector}", value))
        shadow = route.choose_shadow()
        return (
            None
            if ref is None
            else Resolution(
                ref=ref,
                speaker=_speaker(ref),
                owner=listed.tenant,
                alias=selector,
                shadow=None if shadow is None else listed.revisions.get(shadow),
            )
        )

    def _missing(self, model: str, caller: Caller) -> NotFound:
        """What somebody is told who names what cannot be served; of what may be known to them, why."""
        listed, selector = self._named(model, caller)
        why = listed.refusal(selector) if listed is not None else None
        shown = repr(model[:MAX_SHOWN])
        said = f"the model {shown} is not served: {why}" if why else _nothing(shown, listed, selector, caller)
        return NotFound(said, param="model", code="model_not_found")

    async def _load(self, found: Resolution, ref: AdapterRef) -> None:
        try:
            await self._residency.load(ref)
        except ArilError as error:
            for tell in self._on_failure:
                tell(found)
            raise Unavailable(f"the adapter {ref.name!r} cannot be served: {error.message}", param="model") from error

    def _entry(self, listed: Listed) -> CatalogEntry | None:
        ref = listed.default
        if ref is None or ref.digest in self._lost:
            return None
        return CatalogEntry(listed.name, ref, listed.created[ref.revision])

    def _all(self) -> Iterator[Listed]:
        return (listed for tenant in self._tenants.values() for listed in tenant.values())

    def _count(self) -> None:
        ACTIVE.set(sum(listed.default is not None for listed in self._all()))


_NOTHING: Mapping[str, Listed] = {}


def _nothing(shown: str, listed: Listed | None, selector: str, caller: Caller) -> str:
    """That a name means nothing; of an adapter of the caller's own tenant, what does."""
    said = f"the model {shown} does not exist or is not active"
    if listed is None or listed.tenant != caller.tenant:
        return said
    never = " (a revision that is retired, rejected or not yet checked is not)" if NUMBER.fullmatch(selector) else ""
    return f"{said}{never}; of {listed.name!r} there are {listed.known_names()}"


def _speaker(ref: AdapterRef) -> str:
    return f"{ref.name}@{ref.revision}"
