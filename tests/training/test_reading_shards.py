"""A rank loads its part of a stored tensor with few copies; with a GPU, threads verify files."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from types import SimpleNamespace  # noqa: E402

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from runbook.training.checkpoints import folders, torch_dist  # noqa: E402
from runbook.training.checkpoints.torch_dist import Box  # noqa: E402
from runbook.training.messages import TrainingMessage  # noqa: E402


class CopiesToDevice(TorchDispatchMode):
    """A mode that keeps what is copied to the "meta" device, which stands for a GPU."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[0].is_meta:
            self.copies.append(args[1].clone())
        return func(*args, **(kwargs or {}))


PARTS = {
    "half of each row": Box(12, 8, 70, 16),
    "whole rows": Box(12, 0, 70, 32),
    "one row": Box(99, 3, 1, 5),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("piece_rows", [1000, 30])
def test_a_part_of_each_row_takes_no_more_copies_than_whole_rows(
    part, piece_rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch_dist, "PIECE_BYTES", piece_rows * part.width * 4)
    stored = torch.rand(100, 32)
    path = tmp_path / "shard"
    path.write_bytes(b"header!!" + stored.numpy().tobytes())
    wanted = stored[part.top : part.top + part.height, part.left : part.left + part.width]
    chunk = Box(0, 0, 100, 32)
    target = torch.zeros(part.height, part.width)
    on_device = torch.empty(part.height, part.width, device="meta")
    with path.open("rb") as stream:
        torch_dist._copy(stream, 8, chunk, part, torch.float32, target)
        with CopiesToDevice() as device:
            torch_dist._copy(stream, 8, chunk, part, torch.float32, on_device)
    assert torch.equal(target, wanted)
    assert torch.equal(torch.cat(device.copies), wanted)
    assert len(device.copies) == -(-part.height // piece_rows)


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_find_the_first_changed_file(threads, tmp_path):
    names = [f"{number}.distcp" for number in range(6)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    sums = {name: folders.sha256(tmp_path / name) for name in names}
    checkpoint = SimpleNamespace(folder=tmp_path, metadata={"files": sums})
    assert folders.checksum_fault(checkpoint, names, threads) == ""
    (tmp_path / names[2]).write_bytes(b"other")
    (tmp_path / names[4]).unlink()
    fault = folders.checksum_fault(checkpoint, names, threads)
    assert fault == TrainingMessage.FILE_CHANGED.fill(
        path=tmp_path / names[2],
        actual=folders.sha256(tmp_path / names[2])[:16],
        expected=sums[names[2]][:16],
        size=len(b"other"),
    )
