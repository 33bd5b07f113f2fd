"""Environments are built once, never used half built, and rebuilt when what they are made of changes.

A made-up engine whose only requirement is a wheel written here, so that no network is needed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters import environments, registry, requirements
from adapters.base import EngineSpec, Options
from vocabulary.engine import Mode
from vocabulary.errors import EngineUnavailable, UsageError

REPOSITORY = Path(__file__).parents[2]
Build = Callable[[], subprocess.Popen[str]]

BUILDER = """
import sys
from pathlib import Path
from adapters import environments, registry, requirements
registry.ADAPTERS["made-up"] = "adapters.made_up.adapter:MadeUp"
requirements.ROOT = Path(sys.argv[1])
requirements.default_version = lambda engine: "1.0"
environments.create("made-up", "1.0", "cpu", lambda line: print(line, file=sys.stderr, flush=True))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The made-up adapter's folder."""
    root = tmp_path / "adapters"
    folder = root / "made_up"
    folder.mkdir(parents=True)
    (folder / "environment.toml").write_text("[cpu]\ncomplete = true\n")
    (folder / "requirements-cpu.txt").write_text(f"# one wheel\n{wheel(tmp_path)}\n")
    monkeypatch.setitem(registry.ADAPTERS, "made-up", "adapters.made_up.adapter:MadeUp")
    monkeypatch.setattr(requirements, "ROOT", root)
    monkeypatch.setattr(requirements, "default_version", lambda engine: "1.0")
    monkeypatch.setenv("HITPARITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return folder


@pytest.fixture
def build(folder: Path) -> Build:
    """Starts a process that builds the made-up engine's environment."""
    command = [sys.executable, "-c", BUILDER, str(folder.parent)]
    return lambda: subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wheel(folder: Path) -> Path:
    path = folder / "made_up_engine-1.0-py3-none-any.whl"
    info = "made_up_engine-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made_up_engine.py", "NAME = 'made-up'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: made-up-engine\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


BACKEND = """
import os, zipfile
METADATA = "Metadata-Version: 2.1\\nName: made-up-native\\nVersion: 2.0\\n"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "made_up_native-2.0-py3-none-any.whl", "made_up_native-2.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("made_up_native.py", "CMAKE_ARGS = %r" % os.environ["CMAKE_ARGS"])
        archive.writestr(info + "/METADATA", METADATA)
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "/RECORD", "")
    return name
"""


def source_distribution(folder: Path) -> None:
    """A source package that is its own build backend, so that building it downloads nothing."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": "Metadata-Version: 2.1\nName: made-up-native\nVersion: 2.0\n",
        "backend.py": BACKEND,
    }
    with tarfile.open(folder / "made_up_native-2.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"made_up_native-2.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def spec(version: str = "1.0", *, device: str = "cpu", python: Path | None = None) -> EngineSpec:
    return EngineSpec(
        engine="made-up", version=version, mode=Mode.WORKER, device=device, options=Options(), python=python
    )


def silent(line: str) -> None: ...


def key() -> str:
    found = requirements.requirements_for("made-up", "1.0", "cpu")
    assert found is not None
    return found.key


@pytest.mark.fault("interpreter gone from a built environment", "environments", "does not run", 4)
@pytest.mark.fault("two builds of one environment at once", "environments", "waiting: another process holds", 0)
def test_two_processes_at_once_build_once(folder: Path, build: Build) -> None:
    with build() as first, build() as second:
        said = [first.communicate()[1], second.communicate()[1]]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert sum("building" in text for text in said) == 1
    assert sum("waiting: another process holds" in text for text in said) == 1
    python = environments.python_for(spec())
    subprocess.run([python, "-c", "import made_up_engine"], check=True, cwd="/")
    (only,) = environments.environments()
    assert only.complete
    assert only.size_bytes() > 1000
    python.unlink()
    with pytest.raises(EngineUnavailable, match=r"remove and build it again with `hitparity env create.* does not run"):
        environments.python_for(spec())


@pytest.mark.fault(
    "build killed half-way", "environments", "has no environment yet; build it with `hitparity env create", 4
)
def test_killed_half_way_is_never_used_and_is_rebuilt(folder: Path, build: Build, tmp_path: Path) -> None:
    with build() as victim:
        half = tmp_path / "cache" / "envs" / key()
        while not half.exists():
            time.sleep(0.01)
        victim.kill()
    assert [env.complete for env in environments.environments()] == [False]
    with pytest.raises(EngineUnavailable, match="has no environment yet; build it with `hitparity env create made-up"):
        environments.python_for(spec())
    (half / "left-over").touch()
    environments.create("made-up", "1.0", "cpu", silent)
    assert not (half / "left-over").exists()
    assert environments.python_for(spec()) == half / "bin" / "python"
    assert environments.remove("made-up", "1.0", silent) == [half]
    assert environments.environments() == []
    with pytest.raises(UsageError, match="no environment"):
        environments.remove("made-up", None, silent)


def test_source_build_is_compiled_once_and_kept_as_a_wheel(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "environment.toml").write_text(
        '[cpu]\ncomplete = true\nsource_builds = ["made-up-native"]\ncmake_args = "-DFAST=ON"\n'
    )
    (folder / "requirements-cpu.txt").write_text("made-up-native==2.0\n")
    source_distribution(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said: list[str] = []
    for compiled in (1, 0):
        said.clear()
        environments.create("made-up", "1.0", "cpu", said.append)
        python = environments.python_for(spec())
        seen = subprocess.run(
            [python, "-c", "import made_up_native as m; print(m.CMAKE_ARGS)"],
            capture_output=True,
            check=True,
            text=True,
        )
        assert seen.stdout == "-DFAST=ON\n"
        assert sum("compiling" in line for line in said) == compiled
        environments.remove("made-up", None, silent)


@pytest.mark.fault("half-downloaded wheel", "environments", "installing failed...torn-1.0", 4)
def test_failed_build_shows_the_end_of_pips_output(folder: Path) -> None:
    torn = folder / "torn-1.0-py3-none-any.whl"
    torn.write_bytes(wheel(folder).read_bytes()[:200])
    (folder / "requirements-cpu.txt").write_text(f"{torn}\n")
    with pytest.raises(EngineUnavailable, match=r"(?s)installing failed.*torn-1\.0"):
        environments.create("made-up", "1.0", "cpu", silent)
    assert not any(env.complete for env in environments.environments())


def test_key_follows_pins_and_recipe_but_not_comments(folder: Path) -> None:
    file, before = folder / "requirements-cpu.txt", key()
    file.write_text("# another comment\n" + file.read_text())
    assert key() == before
    file.write_text(file.read_text() + "other==2\n")
    assert key() != before
    before = key()
    (folder / "environment.toml").write_text("[cpu]\n")
    assert key() != before


def test_unpinned_version_and_device_name_what_is_pinned(folder: Path) -> None:
    for unpinned in (spec("2.0"), spec(device="cuda")):
        with pytest.raises(EngineUnavailable, match=r"no pinned requirements .*cpu.*python = "):
            environments.python_for(unpinned)
    (folder / "requirements-cpu-2.0.txt").write_text("other==2\n")
    with pytest.raises(EngineUnavailable, match=r"env create made-up --version 2\.0"):
        environments.python_for(spec("2.0"))


def test_unsupported_python_is_named(folder: Path) -> None:
    (folder / "environment.toml").write_text('[cpu]\npython = "3.1"\n')
    with pytest.raises(EngineUnavailable, match=r"pinned for Python 3\.1;"):
        environments.create("made-up", "1.0", "cpu", silent)


def test_missing_compiler_is_named_before_building(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "environment.toml").write_text('[cpu]\nsource_builds = ["other"]\ncmake_args = "-DX=ON"\n')
    (folder / "requirements-cpu.txt").write_text("other==2\n")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EngineUnavailable, match=r"C\+\+ compiler"):
        environments.create("made-up", "1.0", "cpu", silent)
    assert environments.environments() == []


def test_given_python_is_used_or_named(tmp_path: Path) -> None:
    assert environments.python_for(spec(python=Path(sys.executable))) == Path(sys.executable)
    with pytest.raises(EngineUnavailable, match="absent"):
        environments.python_for(spec(python=tmp_path / "absent"))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp", "llama_cpp_python"])
def test_shipped_requirements_pin_everything_and_name_no_index(engine: str) -> None:
    files = sorted((REPOSITORY / "adapters" / engine).glob("requirements-*.txt"))
    assert files
    for file in files:
        for line in file.read_text().splitlines():
            pin = line.split("#")[0].strip()
            assert not pin or pin.count("==") == 1, f"{file}: {line}"
            assert "://" not in line
            assert not pin.startswith("-")
