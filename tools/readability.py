"""Counts that show how dense the code is: `python tools/readability.py [PATH ...]`.

The worst places are listed too. The counts are symptoms. The goal is that a reader understands a
function the first time. `tests/test_readability.py` fails if a count gets worse.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
MAX_COMPLEXITY = 12
MAX_COLUMNS = 100
VAGUE_NAMES = frozenset(
    {
        "anew",
        "answer",
        "asked",
        "begun",
        "each",
        "few",
        "found",
        "given",
        "held",
        "here",
        "it",
        "kept",
        "known",
        "least",
        "left",
        "made",
        "many",
        "meant",
        "more",
        "most",
        "now",
        "one",
        "other",
        "own",
        "pays",
        "place",
        "rest",
        "said",
        "seen",
        "shown",
        "still",
        "then",
        "thing",
        "told",
        "wanted",
        "what",
        "wish",
        "words",
    }
)
NOT_COUNTED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Branch = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.Assert


@dataclass
class Counts:
    """Sums over the files that were read."""

    tokens: int = 0
    lines: int = 0
    code_lines: int = 0
    long_lines: int = 0
    statements: int = 0
    tuple_assignments: int = 0
    conditionals: int = 0
    nested_conditionals: int = 0
    comprehensions: int = 0
    walruses: int = 0
    functions: int = 0
    complex_functions: int = 0
    names: int = 0
    vague_names: int = 0
    format_skips: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts from another file."""
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)

    def rates(self) -> dict[str, float]:
        """Return the counts per line, per statement and per function."""
        thousand_statements = self.statements / 1000
        return {
            "tokens per line": self.tokens / self.lines,
            "statements per 100 code lines": 100 * self.statements / self.code_lines,
            "tuple assignments per 1000 statements": self.tuple_assignments / thousand_statements,
            "conditional expressions per 1000 statements": self.conditionals / thousand_statements,
            "nested conditional expressions": self.nested_conditionals,
            "comprehensions per 1000 statements": self.comprehensions / thousand_statements,
            "walrus per 1000 statements": self.walruses / thousand_statements,
            "lines over 100 columns, %": 100 * self.long_lines / self.lines,
            "functions of complexity over 12, %": 100 * self.complex_functions / self.functions,
            "vague names, %": 100 * self.vague_names / self.names,
            "fmt: skip": self.format_skips,
        }


def nodes_of(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes in a function, but not those in nested functions and classes."""
    waiting = [*ast.iter_child_nodes(function)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def complexity(function: Function) -> int:
    """Return the number of independent paths through a function."""
    paths = 1
    for node in nodes_of(function):
        if isinstance(node, Branch | ast.match_case):
            paths += 1
        elif isinstance(node, ast.BoolOp):
            paths += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            paths += 1 + len(node.ifs)
    return paths


def is_tuple_assignment(node: ast.AST) -> bool:
    """Return whether a statement assigns several expressions at once (`a, b = x, y`)."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return isinstance(node.targets[0], ast.Tuple)


def count(path: Path) -> Counts:
    """Count one file."""
    text = path.read_text(encoding="utf-8")
    counts = Counts()
    for line in text.splitlines():
        counts.lines += 1
        is_code = bool(line.strip()) and not line.strip().startswith("#")
        counts.code_lines += is_code
        counts.long_lines += len(line) > MAX_COLUMNS
        counts.format_skips += "fmt: skip" in line
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    counts.tokens = sum(token.type not in NOT_COUNTED for token in tokens)
    for node in ast.walk(ast.parse(text)):
        count_node(node, counts)
    return counts


def count_node(node: ast.AST, counts: Counts) -> None:
    """Add one node to the counts for its file."""
    counts.statements += isinstance(node, ast.stmt)
    counts.tuple_assignments += is_tuple_assignment(node)
    counts.comprehensions += isinstance(node, Comprehension)
    counts.walruses += isinstance(node, ast.NamedExpr)
    if isinstance(node, ast.IfExp):
        counts.conditionals += 1
        inner = ast.walk(node)
        next(inner)
        counts.nested_conditionals += any(isinstance(part, ast.IfExp) for part in inner)
    if isinstance(node, Function):
        counts.functions += 1
        counts.complex_functions += complexity(node) > MAX_COMPLEXITY
    if isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    else:
        return
    counts.names += 1
    counts.vague_names += name in VAGUE_NAMES


def worst_functions(paths: list[Path], most: int) -> list[tuple[int, str]]:
    """Return the most complex functions, each with its place."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                found.append((complexity(node), f"{path}:{node.lineno} {node.name}"))
    return sorted(found, reverse=True)[:most]


def python_files(places: list[Path]) -> list[Path]:
    """Return the Python files in these folders, and the files themselves."""
    files: list[Path] = []
    for place in places:
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return files


def total(paths: list[Path]) -> Counts:
    """Return the counts of all files together."""
    counts = Counts()
    for path in paths:
        counts.add(count(path))
    return counts


def main() -> None:
    """Print the counts and worst functions in the package, or in the named files and folders."""
    places = [Path(name) for name in sys.argv[1:]] or [REPOSITORY / "runbook"]
    paths = python_files(places)
    for name, rate in total(paths).rates().items():
        print(f"{name:45} {rate:8.1f}")
    for paths_through, place in worst_functions(paths, most=15):
        print(f"complexity {paths_through:3}  {place}")


if __name__ == "__main__":
    main()
