"""Training logs of any of the programs we know, read into one kind of record."""

from runbook.results.log_readers.exports import write_csv, write_json
from runbook.results.log_readers.read import LogReader, parse_files, parse_lines
from runbook.results.log_readers.record import ParsedLog, Record, Validation

__all__ = ["LogReader", "ParsedLog", "Record", "Validation", "parse_files", "parse_lines", "write_csv", "write_json"]
