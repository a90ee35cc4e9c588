from __future__ import annotations

import pytest

from headgate_api.event.names import full_name


@pytest.mark.parametrize(
    ("name", "namespace", "full"),
    [("orders", "default", "default/orders"), ("orders", "shop", "shop/orders"), ("shop/orders", "x", "shop/orders")],
)
def test_a_broker_is_named_with_or_without_its_namespace(name: str, namespace: str, full: str) -> None:
    assert full_name(name, namespace) == full
