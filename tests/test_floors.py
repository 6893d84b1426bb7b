"""The floors of the house: imports only go down, strangers stay strangers, third parties live where they belong."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {  # folder or file at the root -> floor; the same table stands in docs/architecture.md
    "core": 0,
    "kernels": 1,
    "quant": 2,
    "lora": 2,
    "models": 3,
    "engine": 4,
    "admin_api": 5,
    "migrations": 5,
    "server": 5,
    "commands": 6,
    "cli.py": 6,
    "bench": 6,
}
NEIGHBOURS = {
    ("migrations", "admin_api"),
    ("admin_api", "migrations"),
    ("commands", "cli.py"),
    ("cli.py", "commands"),
    ("commands", "bench"),
}
HOMES = {  # third-party package -> the places that may import it
    "triton": ["kernels/triton"],
    "fastapi": ["server", "admin_api", "commands/serve.py"],
    "uvicorn": ["commands"],
    "sqlalchemy": ["admin_api", "migrations", "bench/many.py"],
    "psycopg": ["admin_api"],
    "alembic": ["admin_api", "migrations"],
    "transformers": ["models", "engine/text.py", "engine/templates.py", "bench"],
    "peft": ["bench"],
    "gguf": ["models"],
    "huggingface_hub": ["models", "admin_api/sources"],
    "httpcore": ["admin_api/sources"],
    "llguidance": ["engine/grammar/backends"],
    "xgrammar": ["engine/grammar/backends"],
    "obstore": ["lora/objects.py"],
    "opentelemetry": ["server/traces.py"],
}
CUDA_HOMES = ["core/platform.py", "engine/graphs.py", "models/parallel.py", "bench"]


def package_files() -> list[Path]:
    """Every Python file of the package."""
    found = [p for name in FLOORS for p in (ROOT / name).rglob("*.py")]
    return sorted([*found, ROOT / "__init__.py", ROOT / "cli.py"])


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, module) of every import in a file; a relative one keeps its level."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.level, node.module
            else:
                yield from ((node.level, alias.name) for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    """The root folders (or cli.py) of ours that a file imports."""
    here = path.relative_to(ROOT).parts[:-1]
    for level, module in imports(path):
        if level:
            target = [*here[: len(here) - (level - 1)], *module.split(".")]
            top = target[0]
            yield "cli.py" if top == "cli" else top


def place(path: Path) -> str:
    """The root folder or file that `path` belongs to."""
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_go_down(path: Path) -> None:
    here = place(path)
    if here == "__init__.py":
        return
    for other in own_imports(path):
        if other == here or other not in FLOORS or (here, other) in NEIGHBOURS:
            continue
        assert FLOORS[other] < FLOORS[here], f"{path.relative_to(ROOT)} imports {other}"


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_third_parties_stay_at_home(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    for level, module in imports(path):
        homes = HOMES.get(module.split(".")[0])
        if level == 0 and homes is not None:
            assert any(where == home or where.startswith(home + "/") for home in homes), f"{where} imports {module}"
    if "torch.cuda" in path.read_text():
        assert any(where == home or where.startswith(home + "/") for home in CUDA_HOMES), f"{where} uses torch.cuda"


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_of_ours_are_relative(path: Path) -> None:
    if place(path) == "migrations":
        return
    for level, module in imports(path):
        assert not (level == 0 and (module == "aril" or module.startswith("aril."))), f"{path.name}: {module}"


def test_the_packages_in_pyproject_are_the_folders_on_disk() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    on_disk = {"aril"} | {
        ".".join(["aril", *p.parent.relative_to(ROOT).parts]) for p in package_files() if p.parent != ROOT
    }
    assert listed == on_disk


def test_the_root_holds_no_other_python() -> None:
    assert {p.name for p in ROOT.glob("*.py")} == {"__init__.py", "cli.py"}


@pytest.mark.parametrize("path", package_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_one_idea(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300 or "long because" in text[:600].lower(), f"{path.name} is over 300 lines"
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path.name} does not say what it is"
