"""The contract of import-linter between the two distributions: what headgate-client imports comes with it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

from grimp import ImportGraph
from hatch_build import SOURCE, client_files
from importlinter import Contract, ContractCheck, fields, output

REPOSITORY: Final = Path(__file__).resolve().parents[1]


class DistributionContract(Contract):
    """No module of headgate-client imports, at its top or in a function, one that headgate-client does not bring.

    Attributes:
        optional: Packages that a module tries to import, and does without.
    """

    type_name = "distribution"

    optional = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Looks at every import of every module of the list."""
        own = {_module(path) for path in client_files(REPOSITORY) if path.suffix == ".py"}
        brought = {*_dependencies(), *self.optional}  # type: ignore[misc]
        faults = []
        for module in sorted(own):
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                top = imported.partition(".")[0]
                is_there = imported in own if top == "headgate" else top in brought
                if not is_there and top not in sys.stdlib_module_names:
                    faults.append(f"{module} imports {imported}")
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints each import that is not allowed."""
        for fault in check.metadata["faults"]:
            output.print_error(fault)
        output.new_line()
        output.print_error(
            "Leave the import out, or give headgate-client the module or the dependency (pyproject.toml)."
        )


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _dependencies() -> Iterator[str]:
    """The top packages of what headgate-client depends on."""
    with (REPOSITORY / "packaging" / "client" / "pyproject.toml").open("rb") as file:
        names = {re.split(r"[<>=!~ ]", line)[0] for line in tomllib.load(file)["project"]["dependencies"]}
    for package, distributions in packages_distributions().items():
        if names & {distribution.lower() for distribution in distributions}:
            yield package
