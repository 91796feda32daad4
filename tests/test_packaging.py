"""What is installed: one list of requirements in two files, every folder and data file, a licence."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import mirage_nb

ROOT = Path(__file__).resolve().parents[1]
DATA_SUFFIXES = {".cuh", ".css", ".h", ".js", ".json", ".mirage"}


def read_project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(project: dict[str, Any]) -> set[str]:
    """Every requirement of `[project]`, those of all extras included, extras that name extras left out."""
    extras = project.get("optional-dependencies", {})
    for name in (name for extra in extras.values() for line in extra for name in own_extras(project, line)):
        assert name in extras, f"an extra asks for {project['name']}[{name}], which does not exist"
    every = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    return {line for line in every if not own_extras(project, line)}


def own_extras(project: dict[str, Any], line: str) -> list[str]:
    """The extras of this project that a requirement such as `mirage-nb[a,b]` names."""
    match = re.fullmatch(re.escape(project["name"]) + r"\[([\w,-]+)\]", line)
    return match[1].split(",") if match else []


def differences(project: dict[str, Any], environment: dict[str, Any]) -> list[str]:
    """What the conda environment lacks or has too much, one line each."""
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip: list[str] = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    wanted = requirements(project) | {"-e ."}
    found = [f"environment.yml lacks {line}" for line in sorted(wanted - set(pip))]
    found += [f"environment.yml alone has {line}" for line in sorted(set(pip) - wanted)]
    found += [f"environment.yml repeats {line}" for line in sorted(set(pip)) if pip.count(line) > 1]
    python = "python" + project["requires-python"]
    return found + [f"environment.yml lacks {line}" for line in (python, "pip") if line not in conda]


def test_environment_repeats_the_requirements() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert differences(read_project()["project"], environment) == []


@pytest.mark.parametrize(
    ("pip", "conda", "expected"),
    [
        (["numpy>=1", "torch", "-e ."], ["python>=3.11", "pip"], []),
        (["numpy>=1", "-e ."], ["python>=3.11", "pip"], ["environment.yml lacks torch"]),
        (["numpy>=2", "torch", "-e ."], ["python>=3.11", "pip"],
         ["environment.yml lacks numpy>=1", "environment.yml alone has numpy>=2"]),
        (["numpy>=1", "torch", "torch"], ["python>=3.11", "pip"],
         ["environment.yml lacks -e .", "environment.yml repeats torch"]),
        (["numpy>=1", "torch", "-e ."], ["python>=3.10"],
         ["environment.yml lacks python>=3.11", "environment.yml lacks pip"]),
    ],
)  # fmt: skip
def test_differences_are_named(pip: list[str], conda: list[str], expected: list[str]) -> None:
    project = {
        "name": "x",
        "requires-python": ">=3.11",
        "dependencies": ["numpy>=1"],
        "optional-dependencies": {"gpu": ["torch"], "all": ["x[gpu]"]},
    }
    assert differences(project, {"dependencies": [*conda, {"pip": pip}]}) == expected


def test_every_package_is_listed() -> None:
    setuptools = read_project()["tool"]["setuptools"]
    found = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in setuptools["package-dir"].items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == found


def test_every_module_is_in_a_package() -> None:
    for folder in read_project()["tool"]["setuptools"]["package-dir"].values():
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_every_data_file_is_installed() -> None:
    """A file that is neither Python nor matched by package-data would be lost on installation."""
    setuptools = read_project()["tool"]["setuptools"]
    data = setuptools["package-data"]
    for package, folder in setuptools["package-dir"].items():
        root = ROOT / folder
        matched = {path for pattern in data.get(package, []) for path in root.glob(pattern)}
        for path in tracked(folder):
            assert path.suffix == ".py" or path in matched, f"{path.relative_to(ROOT)} is not in package-data"
    assert {f"**/*{suffix}" for suffix in DATA_SUFFIXES} <= set(data["mirage_nb"])


@pytest.mark.slow
def test_the_wheel_holds_every_file(tmp_path: Path) -> None:
    """What pip builds is what the folders hold, `magics` under its installed name."""
    source = tmp_path / "source"
    for path in tracked("."):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    folders = read_project()["tool"]["setuptools"]["package-dir"].items()
    assert held == {
        (Path(package) / path.relative_to(ROOT / folder)).as_posix()
        for package, folder in folders
        for path in tracked(folder)
    }


def tracked(folder: str) -> list[Path]:
    """The files of a folder that belong to the project, settings of editors and formatters left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder]
    if not (ROOT / ".git").exists():
        pytest.fail("this test reads the list of files from git; run it in a clone")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.exists() and not path.name.startswith(".")]


def test_the_version_is_said_once_more_in_the_package() -> None:
    assert mirage_nb.__version__ == read_project()["project"]["version"]


def test_the_version_is_in_the_changelog_or_unreleased() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\]", changelog, flags=re.MULTILINE)
    assert sections and {"Unreleased", read_project()["project"]["version"]} & set(sections)


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert read_project()["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
