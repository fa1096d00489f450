"""A package imports only from its own layer or from one above it in the architecture's list."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "palio"
LAYERS = tuple(
    "records world judging suites broker sandbox agents rollout arena validator "  # noqa: SIM905
    "corpus train evaluate chain web cli".split()
)


def imported_layers(path: Path) -> set[tuple[str, int]]:
    """(layer, line) of every palio import of a file, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module or ""]
            if node.module == "palio":
                names = [f"palio.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "palio" and len(parts) > 1 and parts[1] != "__version__":
                found.add((parts[1], node.lineno))
    return found


def violations(package: str, path: Path) -> list[str]:
    rank = LAYERS.index(package)
    return [
        f"{path.relative_to(SOURCE)}:{line}: {package} must not import {other}"
        for other, line in sorted(imported_layers(path))
        if other not in LAYERS or LAYERS.index(other) > rank
    ]


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_upwards(package: str) -> None:
    wrong = [v for path in (SOURCE / package).rglob("*.py") for v in violations(package, path)]
    assert not wrong, "\n".join(wrong)


def test_every_package_is_a_layer() -> None:
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(
        LAYERS
    )


def test_a_wrong_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "world" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("def f():\n    from palio.agents import policy\n", encoding="utf-8")
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    assert violations("world", bad) == ["world/bad.py:2: world must not import agents"]


def known_modules(source: Path) -> dict[str, set[str]]:
    """Module -> the modules that it imports, in functions and for type hints alone, too."""
    modules = {
        ".".join(("palio", *path.relative_to(source).with_suffix("").parts)): path
        for path in source.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    knows: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        places = ((node.module or "", alias.name) for node in named for alias in node.names)
        found = {f"{at}.{name}" if f"{at}.{name}" in modules else at for at, name in places}
        knows[module] = found & modules.keys() - {module}
    return knows


def test_no_module_knows_one_that_knows_it() -> None:
    """Whoever reads one module of a circle would have to read all of it."""
    knows = known_modules(SOURCE)
    assert {"exam", "student"} <= {
        name.rpartition(".")[2] for name in knows["palio.evaluate.experiment.lab"]
    }
    assert tuple(TopologicalSorter(knows).static_order())


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "train" / "a.py").write_text("from palio.train import b\n", encoding="utf-8")
    text = "if 0:\n    from palio.train.a import thing\n"
    (tmp_path / "train" / "b.py").write_text(text, encoding="utf-8")
    with pytest.raises(CycleError, match="cycle"):
        TopologicalSorter(known_modules(tmp_path)).prepare()


def test_only_cli_and_web_touch_environment_and_terminal() -> None:
    wrong = []
    for package in set(LAYERS) - {"cli", "web"}:
        for path in (SOURCE / package).rglob("*.py"):
            if "guest" in path.parts:
                continue  # runs inside the sandbox, not in the host
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}:
                    wrong.append(f"{path}:{node.lineno}: reads the environment")
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in {"print", "input"}
                ):
                    wrong.append(f"{path}:{node.lineno}: touches the terminal")
    assert not wrong, "\n".join(wrong)
