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


@pytest.mark.parametrize("imported", ["headgate.server.front", "headgate.control.store", "pyspark", "structlog"])
def test_an_import_of_what_is_not_there_is_a_fault(imported: str) -> None:
    assert faults(("headgate.client.aio", imported)) == [f"headgate.client.aio imports {imported}"]


@pytest.mark.parametrize("imported", ["headgate.errors", "json", "grpc", "google", "typer", "yaml", "pyarrow"])
def test_what_comes_along_may_be_imported(imported: str) -> None:
    assert faults(("headgate.client.aio", imported)) == []


def test_the_server_may_import_what_it_likes() -> None:
    assert faults(("headgate.server.front", "pyspark")) == []


def test_a_line_that_names_nothing_is_told(tmp_path: Path) -> None:
    listed = '[tool.hatch.build.targets.wheel]\nexclude = ["/src/headgate/gone.py"]\n'
    (tmp_path / "pyproject.toml").write_text(listed)
    with pytest.raises(FileNotFoundError, match=r"/src/headgate/gone\.py names no file"):
        list(client_files(tmp_path))
