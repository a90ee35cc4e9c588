"""The contract between the two distributions finds what it is there for; `make check` runs it on the real imports."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest
from hatch_build import SOURCE, client_files
from scripts.distribution_contract import DistributionContract

from tests.support import REPOSITORY


def faults(*imports: tuple[str, str]) -> list[str]:
    """What the contract says of these imports, where no module has any other."""
    graph = grimp.ImportGraph()
    for path in client_files(REPOSITORY):
        if path.suffix == ".py":
            graph.add_module(".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"))
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    contract = DistributionContract(name="", session_options={}, contract_options={"optional": ["pyarrow"]})
    found = contract.check(graph, verbose=False)
    assert found.kept == (not found.metadata["faults"])
    return found.metadata["faults"]  # type: ignore[no-any-return]


def test_an_import_of_what_is_not_there_is_a_fault() -> None:
    """What comes along may be imported, and the server may import what it likes."""
    absent = ("headgate.control.store", "headgate.server.front", "pyspark", "structlog")
    there = ("headgate.errors", "json", "grpc", "google", "typer", "yaml", "pyarrow")
    imports = [("headgate.client.aio", imported) for imported in (*absent, *there)]
    found = faults(*imports, ("headgate.server.front", "pyspark"))
    assert sorted(found) == [f"headgate.client.aio imports {imported}" for imported in absent]


def test_a_line_that_names_nothing_is_told(tmp_path: Path) -> None:
    listed = '[tool.hatch.build.targets.wheel]\nexclude = ["/src/headgate/gone.py"]\n'
    (tmp_path / "pyproject.toml").write_text(listed)
    with pytest.raises(FileNotFoundError, match=r"/src/headgate/gone\.py names no file"):
        list(client_files(tmp_path))
