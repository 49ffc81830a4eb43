"""Reads a file that grows while it is being read."""

from __future__ import annotations

from pathlib import Path

from runbook.core.files import Tail, read_lines


def test_each_line_is_read_once_and_a_half_line_waits_for_its_end(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"iteration": 1}\n{"itera')
    assert tail.read() == [{"iteration": 1}]
    assert tail.read() == [{"iteration": 1}]
    with path.open("a") as stream:
        stream.write('tion": 2}\n')
    assert tail.read() == [{"iteration": 1}, {"iteration": 2}]


def test_a_file_that_was_cut_is_read_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    tail = Tail(path)
    assert len(tail.read()) == 2
    path.write_text('{"iteration": 1}\n')
    assert tail.read() == [{"iteration": 1}]


def test_a_line_that_was_cut_in_the_middle_is_passed_over(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n{"itera\n\xff\n\n{"iteration": 3}\n')
    assert Tail(path).read() == [{"iteration": 1}, {"iteration": 3}]


def test_a_letter_of_several_bytes_on_the_border_of_two_reads_is_whole(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    whole = '{"text": "ä"}\n'.encode()
    tail = Tail(path)
    path.write_bytes(whole[:11])
    assert tail.read() == []
    path.write_bytes(whole)
    assert tail.read() == [{"text": "ä"}]


def test_what_only_some_take_for_a_line_end_does_not_part_a_line(tmp_path: Path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"text": "one\u2028still"}\n', encoding="utf-8")
    assert read_lines(path) == [{"text": "one\u2028still"}]


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path):
    assert read_lines(tmp_path / "none.jsonl") == []
