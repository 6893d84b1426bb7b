"""https:// sources: what the operator allowed is fetched, and no redirect, name or resolver leads elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from aril.admin_api.origins import Allowed, Order, Origin
from aril.admin_api.sources.https import HttpsSource, Patience
from aril.core.errors import Forbidden, InvalidRequest, NotFound, TooLarge, Unavailable
from builders.web import Answer, Authority, Site, closing, endless, redirect, site

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PAGES: dict[str, bytes | Answer] = {
    f"/pirate/{CONFIG}": b"{}",
    f"/pirate/{WEIGHTS}": b"weights",
    "/a.tar.gz": b"packed",
}
HOST = "adapters.test"
LIMIT = 1 << 20
PATIENT = Patience()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Net:
    """Sites by name, and a resolver that knows them."""

    def __init__(self, authority: Authority, folder: Path, stack: ExitStack) -> None:
        self._authority, self._folder, self._stack = authority, folder, stack
        self.names: dict[str, Callable[[], list[str]]] = {}

    def add(self, pages: Mapping[str, bytes | Answer] = PAGES, name: str = HOST, at: str = "127.0.0.1") -> Site:
        """One more site."""
        self.names[name] = lambda: [at]
        return self._stack.enter_context(site(self._authority, name, pages, at=at))

    def fetch(
        self, url: str, *allowed: str, addresses: tuple[str, ...] = ("127.0.0.1",), patience: Patience = PATIENT
    ) -> str:
        """Fetch `url`; by default loopback is what the operator allows, and the whole host of the URL."""
        source = HttpsSource(lambda host, _port: self.names.get(host, lambda: [host])(), patience)
        origin = Origin.of(url)
        order = Order(self._folder, LIMIT, Allowed.of((), allowed or (f"https://{origin.host}/*",), addresses))
        return source.fetch(origin, order)

    @property
    def files(self) -> dict[str, bytes]:
        """What has been fetched."""
        return {file.name: file.read_bytes() for file in self._folder.iterdir()}


@pytest.fixture
def net(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with ExitStack() as stack:
        (tmp_path / "fetched").mkdir()
        yield Net(authority, tmp_path / "fetched", stack)


@pytest.mark.parametrize("path", ["/pirate", "/pirate/", f"/pirate/{WEIGHTS}"])
def test_a_folder_is_its_two_files(net: Net, path: str) -> None:
    here = net.add()
    net.fetch(f"https://{HOST}:{here.port}{path}")
    assert net.files == {CONFIG: b"{}", WEIGHTS: b"weights"}
    assert here.num_connections == 1


def test_an_archive_is_one_file(net: Net) -> None:
    here = net.add()
    url = f"https://{HOST}:{here.port}/a.tar.gz"
    fetched = net.fetch(url)
    assert (net.files, fetched) == ({"a.tar.gz": b"packed"}, url)


def test_nothing_is_allowed_by_default(net: Net) -> None:
    here = net.add()
    with pytest.raises(Forbidden, match="--allow-source"):
        net.fetch(f"https://{HOST}:{here.port}/pirate", "https://elsewhere.test/*")
    assert here.num_connections == 0


def test_a_redirect_to_what_is_not_allowed_is_not_followed(net: Net) -> None:
    secret = net.add({"/latest/meta-data": b"secret"}, "metadata.test")
    here = net.add({f"/pirate/{CONFIG}": redirect(f"https://metadata.test:{secret.port}/latest/meta-data")})
    with pytest.raises(Forbidden, match=r"metadata\.test.*--allow-source"):
        net.fetch(f"https://{HOST}:{here.port}/pirate")
    assert secret.num_connections == 0


def test_a_redirect_out_of_the_allowed_folder_is_not_followed(net: Net) -> None:
    here = net.add({f"/pirate/{CONFIG}": redirect("../private/secret.json"), "/private/secret.json": b"secret"})
    with pytest.raises(Forbidden, match="/private/secret"):
        net.fetch(f"https://{HOST}:{here.port}/pirate", f"https://{HOST}:{here.port}/pirate")
    assert here.seen == [f"/pirate/{CONFIG}"]


def test_a_redirect_to_what_is_allowed_is_followed_with_its_query(net: Net) -> None:
    there = net.add({"/blob?signature=x": b"packed"}, "cdn.test")
    here = net.add({"/a.zip": redirect(f"https://cdn.test:{there.port}/blob?signature=x")})
    allowed = (f"https://{HOST}:{here.port}/*", f"https://cdn.test:{there.port}/*")
    fetched = net.fetch(f"https://{HOST}:{here.port}/a.zip", *allowed)
    assert net.files == {"a.zip": b"packed"}
    assert "signature" not in fetched


@pytest.mark.parametrize("target", ["http://{}/a", "file:///etc/passwd", "gopher://{}/a", "https://user@{}/a", "//[/"])
def test_a_redirect_to_something_else_than_https_is_refused(net: Net, target: str) -> None:
    here = net.add()
    here.pages["/a.zip"] = redirect(target.format(f"{HOST}:{here.port}"))
    with pytest.raises((InvalidRequest, Unavailable)):
        net.fetch(f"https://{HOST}:{here.port}/a.zip")
    assert here.seen == ["/a.zip"]


def test_redirects_in_a_circle_end(net: Net) -> None:
    here = net.add({"/a.zip": redirect("/a.zip")})
    with pytest.raises(Unavailable, match="redirected more than 3 times"):
        net.fetch(f"https://{HOST}:{here.port}/a.zip")


def test_a_name_that_means_an_address_inside_is_not_connected_to(net: Net) -> None:
    here = net.add()
    with pytest.raises(Forbidden, match=r"127\.0\.0\.1, which is not a public address.*--allow-address"):
        net.fetch(f"https://{HOST}:{here.port}/pirate", addresses=())
    assert here.num_connections == 0


def test_a_name_that_changes_its_meaning_between_two_files_is_caught(net: Net) -> None:
    inside = net.add({f"/pirate/{WEIGHTS}": b"secret"}, at="127.0.0.2")
    here = net.add({**PAGES, f"/pirate/{CONFIG}": closing(b"{}")})
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    net.names[HOST] = lambda: next(answers)
    with pytest.raises(Forbidden, match=r"127\.0\.0\.2"):
        net.fetch(f"https://{HOST}:{here.port}/pirate")
    assert (here.num_connections, inside.num_connections) == (1, 0)


def test_each_connection_asks_the_resolver_once(net: Net) -> None:
    here, asked = net.add(), 0

    def answer() -> list[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["127.0.0.2"]

    net.names[HOST] = answer
    net.fetch(f"https://{HOST}:{here.port}/pirate")
    assert asked == 1


def test_an_inner_address_among_good_ones_spoils_them(net: Net) -> None:
    here = net.add()
    net.names[HOST] = lambda: ["127.0.0.1", "169.254.169.254"]
    with pytest.raises(Forbidden, match=r"169\.254\.169\.254"):
        net.fetch(f"https://{HOST}:{here.port}/pirate")
    assert here.num_connections == 0


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe",
     "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "2001:db8::1", "::7f00:1",
     "64:ff9b:1::7f00:1", "::ffff:0:7f00:1", "fec0::1"],
)  # fmt: skip
def test_what_is_not_public_is_no_address_to_fetch_from(address: str) -> None:
    with pytest.raises(Forbidden, match="--allow-address"):
        Allowed().check_address("some.host", address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14"])
def test_public_addresses_are(address: str) -> None:
    Allowed().check_address("some.host", address)


def test_a_network_that_the_operator_names_is_allowed() -> None:
    allowed = Allowed.of((), (), ("10.1.0.0/16",))
    allowed.check_address("some.host", "10.1.2.3")
    with pytest.raises(Forbidden):
        allowed.check_address("some.host", "10.2.0.1")


def test_an_endless_answer_is_cut_at_the_limit(net: Net) -> None:
    here = net.add({"/a.zip": endless})
    with pytest.raises(TooLarge, match=str(LIMIT)):
        net.fetch(f"https://{HOST}:{here.port}/a.zip")


def test_a_server_that_falls_silent_is_given_up(net: Net) -> None:
    over = threading.Event()

    def silent(handler: BaseHTTPRequestHandler) -> None:
        over.wait(20)

    here = net.add({"/a.zip": silent})
    with pytest.raises(Unavailable, match="ReadTimeout"):
        net.fetch(f"https://{HOST}:{here.port}/a.zip", patience=Patience(silence=0.1))
    over.set()


def test_a_server_that_drips_is_given_up(net: Net) -> None:
    here = net.add({"/a.zip": endless})
    with pytest.raises(Unavailable, match="took over 0 s"):
        net.fetch(f"https://{HOST}:{here.port}/a.zip", patience=Patience(whole=0))


def test_a_certificate_of_another_name_is_refused(net: Net) -> None:
    here = net.add()
    net.names["other.test"] = net.names[HOST]
    with pytest.raises(Unavailable, match="ConnectError"):
        net.fetch(f"https://other.test:{here.port}/pirate")


def test_what_is_not_there_is_not_found(net: Net) -> None:
    here = net.add()
    with pytest.raises(NotFound, match="/parrot"):
        net.fetch(f"https://{HOST}:{here.port}/parrot")
