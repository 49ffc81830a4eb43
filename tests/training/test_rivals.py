"""The plain programs used to judge the trainer's speed, and the results table."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks import training_profile, training_vs_plain  # noqa: E402
from benchmarks.plain_training import Plain, Shape  # noqa: E402


@pytest.fixture
def one_thread():
    """Use a single thread.

    If other processes use the cores, threads that wait for each other take seconds for a tiny
    product.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("precision", "gap"), [("fp32", 0.0), ("bf16", 0.02)])
def test_the_even_rival_learns_as_the_plain_one(precision, gap, one_thread):
    shape = Shape(layers=1, hidden=32, heads=4, sequence=16, vocabulary=64)
    ids = torch.randint(0, 64, (2, 2, 16), generator=torch.Generator().manual_seed(1))
    batches = [(part, part) for part in ids]
    losses = {}
    programs = {}
    for even in (False, True):
        torch.manual_seed(1)
        programs[even] = Plain(shape, precision, compiled=False, even=even)
        losses[even] = [programs[even].step(batches) for _ in range(4)]
    assert losses[True][-1] < losses[True][0]
    assert losses[True] == pytest.approx(losses[False], rel=gap, abs=0.0)
    kept = {weight.dtype for weight in programs[True].model.parameters()}
    assert kept == {torch.bfloat16 if precision == "bf16" else torch.float32}
    for main, copy in zip(programs[True].parameters, programs[True].copies, strict=False):
        assert main.dtype == torch.float32 and torch.equal(copy, main.bfloat16())


def rows(**speeds):
    common = {"shape": "smoke", "precision": "bf16", "rounds": 5, "memory_bytes": 2**30}
    return [
        common | {"program": name, "tokens_per_second": speed} for name, speed in speeds.items()
    ]


def test_the_table_takes_the_place_of_the_last_one(tmp_path):
    page = tmp_path / "page.md"
    marks = training_vs_plain.PAGE_MARKS
    page.write_text(f"before\n{marks[0]}old\n{marks[1]}after\n")
    given = rows(ours=660.0, plain=440.0, even=600.0)
    table = training_vs_plain.page_table(given, "2026-11-23", "commit abc1234, a machine")
    training_vs_plain.write_page(page, table)
    training_vs_plain.write_page(page, table)
    assert page.read_text() == (
        f"before\n{marks[0]}\n"
        "2026-11-23, commit abc1234, a machine; medians of the rounds, tokens per second of wall time:\n\n"
        "| shape | number format | rounds | ours | plain | even | ours / plain | ours / even | peak memory |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| smoke | bf16 | 5 | 660 | 440 | 600 | 1.50 | 1.10 | 1.00 / 1.00 / 1.00 GiB |\n\n{marks[1]}after\n"
    )


def cells_of(line):
    """Return the cells of a Markdown row."""
    assert line.startswith("| ") and line.endswith(" |"), line
    return line[2:-2].split(" | ")


def test_a_program_that_ended_is_not_run_in_the_table():
    given = [
        *rows(ours=660.0),
        {"shape": "smoke", "precision": "bf16", "rounds": 5, "program": "plain", "failed": "x"},
    ]
    table = training_vs_plain.page_table(given, "2026-11-23", "commit abc1234, a machine")
    assert cells_of(table.splitlines()[-1]) == [
        *("smoke", "bf16", "5", "660"),
        *("not run", "not run"),
        " / ".join(["1.00", "not run"]) + " GiB",
    ]


def test_an_operator_counts_where_it_serves():
    part_of = training_profile.part_of
    assert part_of(["aten::mm", "MmBackward0"]) == "matrix products"
    assert part_of(["aten::bmm", "_BlockedAttentionBackward"]) == "attention"
    assert part_of(["aten::copy_", "_CrossEntropy"]) == "loss"
    assert part_of(["aten::_foreach_mul_", "Optimizer.step#AdamW.step"]) == "optimizer"
    assert part_of(["graph_0_cpp_fused_native_layer_norm_3", "CompiledFunction"]) == "norm, GELU"
    assert part_of(["aten::copy_", "aten::to"]) == "rest"


def test_the_profile_says_each_part_in_seconds_and_shares():
    given = {
        "program": "ours",
        "cpu_seconds": 4.1,
        "parts": {"attention": 1.0, "loss": 3.0},
        "operators": {},
    }
    lines = training_profile.page_table([given], "2026-11-23", "a machine").splitlines()
    head = cells_of(lines[-3])
    assert head[:3] == ["program", "a step", "matrix products"]
    row = dict(zip(head, cells_of(lines[-1]), strict=True))
    assert (row.pop("program"), row.pop("a step")) == ("ours", "4.00 s")
    measured = {name: cell.split(", ") for name, cell in row.items() if cell != "-"}
    assert list(measured.values()) == [["1.00 s", "25 %"], ["3.00 s", "75 %"]]
    assert list(measured) == ["attention", "loss"]


def test_the_utilization_in_8_bits_is_of_the_peak_in_fp8(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    half, eighth = (
        training_vs_plain.mfu("1.3b", precision, 5.0) for precision in ("bf16", "fp8-delayed")
    )
    assert eighth == pytest.approx(half * 989.4 / 1978.9)


def test_an_8_bit_row_trains_in_bf16_with_the_recipe_of_the_trainer():
    shape = training_vs_plain.SHAPES["smoke"]
    precision = training_vs_plain._spec(shape, "fp8-blockwise")["precision"]
    assert (precision["format"], precision["fp8"]) == ("bf16", "blockwise")
    assert (
        precision | {"fp8": "none"}
        == {"fp8": "none"} | training_vs_plain._spec(shape, "bf16")["precision"]
    )
