"""Archives unpacked by programs that print many errors."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from runbook.packed_environment.archive import UNCOMPRESSED, ZSTD, ProgramFailed, checksum, extract

ENTRIES = 3000


def write_failing_archive(path: Path) -> None:
    """Write an archive with only one entry that tar can unpack. The others are in a folder that is
    a file.
    """
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("folder"), io.BytesIO())
        for number in range(ENTRIES):
            archive.addfile(tarfile.TarInfo(f"folder/{'long' * 10}{number}"), io.BytesIO())
        # The errors are followed by more text than fits into a pipe
        large = tarfile.TarInfo("large")
        large.size = 2**20
        archive.addfile(large, io.BytesIO(bytes(large.size)))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("compression", [UNCOMPRESSED, ZSTD])
def test_three_thousand_errors_end_in_a_few_lines(tmp_path, compression):
    path = tmp_path / "failing.tar"
    write_failing_archive(path)
    if compression == ZSTD:
        if shutil.which("zstd") is None:
            pytest.skip("no zstd here")
        subprocess.run(["zstd", "-q", str(path)], check=True)
        path = tmp_path / "failing.tar.zst"
    folder = tmp_path / "unpacked"
    folder.mkdir()
    with pytest.raises(ProgramFailed) as caught:
        extract(path, folder, compression)
    assert os.strerror(errno.ENOTDIR) in str(caught.value)
    assert caught.value.sha256 == checksum(path)
    assert str(caught.value).count(" / ") == 2
    assert (folder / "large").stat().st_size == 2**20
