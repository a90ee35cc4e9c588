"""How much there is to read in `src`: lines by room, and in how many places the jobs are done that one place should do.

python -m scripts.weight [--where]

Code is every line that is not blank, a comment, a docstring or an import. Python of the .proto files is left out.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parents[1] / "src"
KINDS: Final = ("code", "docstring", "import", "comment", "blank")


def calls(*names: str) -> Callable[[ast.AST], bool]:
    """Whether a node calls one of these: `poll` of anything, or `raw.poll`."""
    ends = tuple(f".{name}" for name in names)
    return lambda node: isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(ends)


def _is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _has_parameters(least: int) -> Callable[[ast.AST], bool]:
    def found(node: ast.AST) -> bool:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        return sum(one.arg not in ("self", "cls") for one in (*node.args.args, *node.args.kwonlyargs)) >= least

    return found


def _has_methods(least: int) -> Callable[[ast.AST], bool]:
    methods = (ast.FunctionDef, ast.AsyncFunctionDef)
    return lambda node: isinstance(node, ast.ClassDef) and sum(isinstance(x, methods) for x in node.body) >= least


JOBS: Final = {
    "Protocols": _is_protocol,
    "group commits": calls("GroupCommit"),
    "threads of their own": calls("Threads", "ThreadPoolExecutor"),
    "requests to another process": calls("requested", "local_http.ask"),
    "polls of a Kafka client": calls("raw.poll", "raw.consume"),
    "produces to Kafka": calls("raw.produce"),
    "begins of a Kafka transaction": calls("raw.begin_transaction"),
    "functions of 8 parameters or more": _has_parameters(8),
    "classes of 25 methods or more": _has_methods(25),
}


def kinds(text: str, tree: ast.Module) -> Counter[str]:
    """How many lines of each kind a file has."""
    kind = ["blank" if not line.strip() else "comment" if line.lstrip().startswith("#") else "code"
            for line in text.splitlines()]  # fmt: skip
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                kind[node.lineno - 1 : node.end_lineno] = ["import"] * (node.end_lineno - node.lineno + 1)
            case ast.Expr(value=ast.Constant(value=str())):
                kind[node.lineno - 1 : node.end_lineno] = ["docstring"] * (node.end_lineno - node.lineno + 1)
    return Counter(kind)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="name the places of each job")
    where = parser.parse_args().where
    rooms: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    places: dict[str, list[str]] = {job: [] for job in JOBS}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.stem.endswith(("_pb2", "_pb2_grpc")):
            continue
        package, *folders = path.relative_to(SOURCE).parent.parts
        text = path.read_text()
        tree = ast.parse(text)
        found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)]
        rooms[package, folders[0] if folders else "."] += kinds(text, tree) + Counter(files=1)
        for job, does in JOBS.items() if package == "headgate" else ():
            places[job] += [f"{path.relative_to(SOURCE)}:{node.lineno}" for node in found if does(node)]
    for package in sorted({package for package, _ in rooms}):
        inside = {room: count for (of, room), count in rooms.items() if of == package}
        print(f"{package:20} files  lines " + "".join(f"{kind:>10}" for kind in KINDS))
        total: Counter[str] = sum(inside.values(), Counter())
        for room, count in [*sorted(inside.items(), key=lambda item: -item[1]["code"]), ("in all", total)]:
            lines = sum(count[kind] for kind in KINDS)
            print(f"  {room:18} {count['files']:5} {lines:6} " + "".join(f"{count[kind]:10}" for kind in KINDS))
        print()
    for job, found in places.items():
        print(f"{len(found):5}  {job}")
        if where:
            print(*(f"         {place}" for place in found), sep="\n")


if __name__ == "__main__":
    main()
