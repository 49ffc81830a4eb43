"""A site's own versions: the right Python, real packages installed by real pip, and no repeated
work.
"""

import base64
import hashlib
import sys
import zipfile

import pytest
from suite.messages import refuses

from runbook.core import shell
from runbook.core.errors import ProgramError, RunbookError
from runbook.params.schema.site import Versions
from runbook.tools.try_upstream import site_versions
from runbook.tools.try_upstream.messages import UpstreamMessage

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(folder, name, version):
    """Write a package with one module, as a registry would offer it."""
    code = f"VERSION = {version!r}\n"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        rows.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Write two packages to a folder that is pip's only index, and use a separate cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "torch", "0.0.7")
    wheel(folder, "deepspeed", "0.1.2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_versions_are_installed_once_and_used_from_then_on(registry, monkeypatch):
    versions = Versions(python=HERE, packages=["torch==0.0.7", "deepspeed==0.1.2"])
    said = []
    python = site_versions.install(versions, said.append)
    code = "import deepspeed, torch; print(torch.VERSION, deepspeed.VERSION)"
    assert shell.run([str(python), "-I", "-c", code]).out == "0.0.7 0.1.2\n"
    assert len(said) == 1 and "torch==0.0.7, deepspeed==0.1.2" in said[0]
    monkeypatch.setattr(site_versions.shell, "run", pytest.fail)
    assert site_versions.install(versions, pytest.fail) == python


def test_an_installation_that_failed_is_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    versions = Versions(python=HERE, packages=["torch==1.0"])
    tried = []

    refusal = ProgramError("No matching distribution found")

    def fail(command, **options):
        tried.append(command)
        if "pip" in command and options.get("check", True):
            raise refusal
        return shell.Finished(tuple(command), 1 if "pip" in command else 0, "", "")

    monkeypatch.setattr(site_versions.shell, "run", fail)
    for _ in range(2):
        with pytest.raises(ProgramError) as caught:
            site_versions.install(versions, str)
        assert caught.value is refusal
    # Each time: the environment, torch's CPU wheel from its own index, and torch from the
    # configured index.
    assert [site_versions.TORCH_CPU_INDEX in command for command in tried] == [
        False,
        True,
        False,
    ] * 2


def test_a_python_of_pyenv_is_found_the_newest_of_its_minor_version(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for build in ("3.9.7", "3.9.18", "3.10.13"):
        program = tmp_path / "versions" / build / "bin" / f"python{build.rpartition('.')[0]}"
        program.parent.mkdir(parents=True)
        program.touch()
    found = site_versions.interpreter(Versions(python="3.9", packages=[]))
    assert found == str(tmp_path / "versions" / "3.9.18" / "bin" / "python3.9")
    with refuses(RunbookError, UpstreamMessage.PYTHON_MISSING, name="python3.8"):
        site_versions.interpreter(Versions(python="3.8", packages=[]))
