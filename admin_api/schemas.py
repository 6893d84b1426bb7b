"""What the admin API takes and answers about adapters, revisions and aliases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..core.body import ExactBody
from ..core.errors import InvalidRequest
from .canaries import Bounds
from .catalog import AdapterCatalog
from .etags import etag
from .pages import ListView
from .tables import Adapter, Alias, Revision, State

PLAIN = r"^[^\x00]*$"  # NUL is nothing that PostgreSQL keeps
Text = Annotated[str, Field(max_length=4096, pattern=PLAIN)]
Number = Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
Weight = Annotated[int, Field(ge=1, le=1_000_000)]
Digits = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}$")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]


class RevisionView(BaseModel):
    """One immutable set of bytes. `size` is in bytes; `rank` is the largest."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    digest: str
    state: State
    report: dict[str, Any] | None  # of the gate
    size: int
    rank: int
    target_modules: list[str]
    notes: list[str]
    config: dict[str, Any]
    author: str
    note: str
    tags: list[str]
    source: str
    base: dict[str, Any]
    golden: list[dict[str, Any]]
    forced: bool
    fault: str | None = None  # why it is not served here although it is ready
    created: int
    changed: int

    @classmethod
    def of(cls, revision: Revision, catalog: AdapterCatalog) -> RevisionView:
        """The view of a row."""
        view = cls.model_validate(revision)
        if revision.state is State.READY:
            view.fault = catalog.judge(revision.base)
        return view


class Shadow(ExactBody):
    """A revision that gets a copy of a share of an alias's requests."""

    revision: Number
    share: Annotated[float, Field(gt=0, le=1)]


class AliasView(BaseModel):
    """An alias. `revision` is the one that it leads to when there is one; `history` is where it led before."""

    object: Literal["alias"] = "alias"
    adapter: str
    name: str
    revision: int | None
    weights: dict[str, int]
    sticky_header: str | None
    shadow: Shadow | None
    bounds: dict[str, Any] | None
    history: list[dict[str, int]]
    created: int
    changed: int
    etag: str

    @classmethod
    def of(cls, alias: Alias) -> AliasView:
        """The view of a row."""
        return cls(
            adapter=alias.adapter.name,
            name=alias.name,
            revision=alias.heaviest if len(alias.weights) == 1 else None,
            weights=alias.weights,
            sticky_header=alias.sticky_header,
            shadow=Shadow(**alias.shadow) if alias.shadow else None,
            bounds=alias.bounds,
            history=alias.history,
            created=alias.created,
            changed=alias.changed,
            etag=etag(alias.version),
        )


class Seen(BaseModel):
    """What one server has seen of an alias since it started.

    `watched`: by revision, the requests of the window of its bounds, how many failed, and the p95 of the others;
    `shadow`: its answers, and how many greedy tokens came out equal before the first difference.
    """

    watched: dict[str, dict[str, Any]]
    shadow: dict[str, Any] | None


class SeenAlias(AliasView):
    """An alias, and what the server that answers has seen of it."""

    seen: Seen


class AliasChange(ExactBody):
    """PUT of an alias: one `revision`, or several by weight. What is left out stays as it is; null takes it away."""

    revision: Number | None = None
    weights: Annotated[dict[Digits, Weight], Field(min_length=1, max_length=32)] | None = None
    sticky_header: HeaderName | None = None
    shadow: Shadow | None = None
    bounds: dict[str, Any] | None = None

    def said(self) -> dict[str, Any]:
        """The columns that it changes; raises InvalidRequest."""
        if self.revision is not None and self.weights is not None:
            raise InvalidRequest("give revision or weights, not both", param="weights")
        found = self.model_dump(include=self.model_fields_set & {"sticky_header", "shadow", "bounds"})
        if found.get("bounds") is not None:
            Bounds.of(found["bounds"])
        if self.weights is not None:
            found["weights"] = dict(self.weights)
        elif self.revision is not None:
            found["weights"] = {str(self.revision): 100}
        return found


class AdapterView(BaseModel):
    """One adapter. `revision` is the one that its bare name means, mostly; `fault` says why that does not answer."""

    object: Literal["adapter"] = "adapter"
    name: str
    tenant: str
    description: str
    public: bool
    active: bool
    revision: int | None
    digest: str | None
    fault: str | None
    created: int
    revisions: list[RevisionView]
    aliases: list[AliasView]
    etag: str

    @classmethod
    def of(cls, adapter: Adapter, catalog: AdapterCatalog) -> AdapterView:
        """The view of a row."""
        active = adapter.active
        return cls(
            name=adapter.name,
            tenant=adapter.tenant.name,
            description=adapter.description,
            public=adapter.public,
            active=active is not None,
            revision=active.number if active else None,
            digest=active.digest if active else None,
            fault=catalog.fault(adapter.tenant.name, adapter.name),
            created=adapter.created,
            revisions=[RevisionView.of(revision, catalog) for revision in adapter.revisions],
            aliases=[AliasView.of(alias) for alias in adapter.aliases],
            etag=etag(adapter.version),
        )


class AdapterChange(ExactBody):
    """PATCH of an adapter; what is left out stays as it is. `public` is for the scope admin."""

    description: Text = ""
    public: bool = False


class UploadView(BaseModel):
    """What has become of an upload so far; `status_url` tells what becomes of it later."""

    object: Literal["adapter.revision"] = "adapter.revision"
    name: str
    revision: int
    digest: str
    state: State
    status_url: str
    report: dict[str, Any] | None
    adapter: AdapterView

    @classmethod
    def of(cls, revision: Revision, catalog: AdapterCatalog, path: str) -> UploadView:
        """The view of a row; `path` is that of its adapter."""
        return cls(
            name=revision.adapter.name,
            revision=revision.number,
            digest=revision.digest,
            state=revision.state,
            status_url=f"{path}/revisions/{revision.number}",
            report=revision.report,
            adapter=AdapterView.of(revision.adapter, catalog),
        )


class AdapterList(ListView):
    """Adapters, by name."""

    data: list[AdapterView]


class RevisionList(ListView):
    """The revisions of an adapter, oldest first."""

    data: list[RevisionView]


class AliasList(ListView):
    """The aliases of an adapter, by name."""

    data: list[AliasView]


class Deleted(BaseModel):
    """The answer to DELETE."""

    object: Literal["adapter", "alias", "tenant"] = "adapter"
    name: str
    deleted: Literal[True] = True
