"""/admin/v1/keys: who may do what. For keys with the scope admin. A key is shown once, in the answer that makes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from ...core.bearer import new_key
from ...core.body import describes
from ...core.callers import Scope
from ...core.errors import InvalidRequest
from .. import keys
from ..bodies import reads
from ..db import Database
from ..etags import IfMatch, etag, tagged
from ..guard import PREFIX, Door, OperatorDep, SeenDep
from ..keyring import Keyring
from ..pages import ListView, PageDep
from ..replies import Answer, OnceDep
from ..tables import NAME_LENGTH, Key
from .tenants import Rates

Label = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=r"^[^\x00-\x1f\x7f]+$")]
MAX_ADAPTERS = 1000  # names in the list of one key


class KeyChange(Rates):
    """What can be changed of a key; what is left out stays as it is.

    `adapters` are the names that it may use beside the base, null for all; `expires` is in seconds since 1970.
    """

    name: Label = ""
    scopes: list[Scope] = Field(default=[Scope.INFER], min_length=1)
    adapters: list[str] | None = Field(default=None, max_length=MAX_ADAPTERS)
    expires: int | None = Field(default=None, ge=0, le=1 << 53)


class NewKey(KeyChange):
    """POST /keys. Without a tenant the key is one of `?tenant=`, or of the caller's own."""

    name: Label
    tenant: str | None = None


class KeyView(BaseModel):
    """A key, without the secret; `shown` is how that begins."""

    model_config = ConfigDict(from_attributes=True)

    object: Literal["key"] = "key"
    id: str
    name: str
    tenant: str
    shown: str
    scopes: list[Scope]
    adapters: list[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    created: int
    expires: int | None
    revoked: int | None
    etag: str

    @classmethod
    def of(cls, row: Key) -> KeyView:
        """The view of a row."""
        told = {name: getattr(row, name) for name in ("id", "shown", "created", "revoked", *keys.FIELDS)}
        return cls(**told, tenant=row.tenant.name, etag=etag(row.version))


class MadeKey(KeyView):
    """The answer that makes a key, which is in `key`; nothing shows it again, not even the same request again."""

    key: str | None


class KeyList(ListView):
    """Keys, in the order of their ids."""

    data: list[KeyView]


class KeyRoutes:
    """The routes, as `router`."""

    def __init__(self, door: Door, database: Database, keyring: Keyring) -> None:
        self._database = database
        self._keyring = keyring
        self.router = APIRouter(prefix=PREFIX, tags=["keys"], dependencies=door)
        add = self.router.add_api_route
        new, change = describes(NewKey), describes(KeyChange)
        add("/keys", self.create, methods=["POST"], status_code=201, response_model=MadeKey, openapi_extra=new)
        add("/keys", self.list, methods=["GET"])
        add("/keys/{id}", self.get, methods=["GET"])
        add("/keys/{id}", self.change, methods=["PATCH"], response_model=KeyView, openapi_extra=change)
        add("/keys/{id}/revoke", self.revoke, methods=["POST"], response_model=KeyView)

    async def create(
        self, caller: OperatorDep, seen: SeenDep, once: OnceDep, body: Annotated[NewKey, Depends(reads(NewKey))]
    ) -> Response:
        """A new key. The answer that is kept for its Idempotency-Key has no secret: sent again, `key` is null."""
        if body.tenant is not None and seen not in (None, body.tenant):
            raise InvalidRequest(f"tenant: {body.tenant!r} here and {seen!r} in the URL; send one", param="tenant")
        secret, owner = new_key(), body.tenant or caller.tenant
        fields = _fields(body.model_dump(exclude={"tenant"}))
        made: list[MadeKey] = []

        def work(session: Session) -> Answer:
            view = KeyView.of(keys.create(session, caller, owner, secret, fields))
            made.append(MadeKey(**view.model_dump(), key=None))
            return Answer.of(made[-1], 201)

        answer = await self._keyring.change(once.doing(work, body.model_dump_json()))
        if made and answer == Answer.of(made[-1], 201):  # else it was made before, by the first of these requests
            answer = Answer.of(made[-1].model_copy(update={"key": secret}), 201)
        return answer.response

    async def list(self, _caller: OperatorDep, seen: SeenDep, page: PageDep) -> KeyList:
        """The keys of all tenants, or of `?tenant=`; revoked ones too."""

        def work(session: Session) -> KeyList:
            rows = keys.keys(session, owner=seen, after=page.cursor, limit=page.limit + 1)
            data = [KeyView.of(row) for row in rows[: page.limit]]
            return KeyList(data=data, next_cursor=data[-1].id if len(rows) > page.limit else None)

        return await self._database.run(work)

    async def get(self, id: str, _caller: OperatorDep, response: Response) -> KeyView:
        """One key."""
        return tagged(response, await self._database.run(lambda session: KeyView.of(keys.key(session, id))))

    async def change(
        self,
        id: str,
        caller: OperatorDep,
        once: OnceDep,
        body: Annotated[KeyChange, Depends(reads(KeyChange))],
        match: IfMatch = None,
    ) -> Response:
        """Change what is sent."""
        fields = _fields(body.model_dump(exclude_unset=True))

        def work(session: Session) -> Answer:
            return Answer.of(KeyView.of(keys.change(session, caller, id, fields, match)))

        doing = once.doing(work, body.model_dump_json(exclude_unset=True))
        return (await self._keyring.change(doing)).response

    async def revoke(self, id: str, caller: OperatorDep, once: OnceDep, match: IfMatch = None) -> Response:
        """Let it open nothing any more, here at once and on other servers within two seconds."""

        def work(session: Session) -> Answer:
            return Answer.of(KeyView.of(keys.revoke(session, caller, id, match)))

        return (await self._keyring.change(once.doing(work))).response


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """As the row keeps them."""
    if "scopes" in given:
        given["scopes"] = sorted({str(scope) for scope in given["scopes"]})
    return given
