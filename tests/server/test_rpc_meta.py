"""Health and reflection as their standard clients see them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from headgate.server import rpc
from headgate.server.parts import Role, of_server
from headgate.server.ready import PartReport
from headgate.settings import Settings
from headgate_api import limits
from headgate_api.rpc import headgate_pb2 as pb
from tests.server.test_rpc import NOBODY, run

OURS = {"headgate.v1.Publisher", "headgate.v1.Reader", "headgate.v1.Subscriptions"}
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def with_channel(work: Callable[[grpc.Channel, Settings], None]) -> None:
    """Runs a client that blocks, in a thread, against a front."""

    def client(settings: Settings) -> None:
        with grpc.insecure_channel(settings.grpc) as channel:
            work(channel, settings)

    async def serve(settings: Settings) -> None:
        async with rpc.front(settings, NOBODY):
            with ThreadPoolExecutor(1) as pool:
                await asyncio.get_running_loop().run_in_executor(pool, client, settings)

    run(serve)


def mark(settings: Settings, *roles: str) -> None:
    for part in of_server(settings):
        PartReport(settings.run_directory, part.name).ready(part.role in roles)


def test_each_service_is_as_well_as_the_parts_that_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_api.limits.HEALTH_POLL_S", 0.0)

    def work(channel: grpc.Channel, settings: Settings) -> None:
        stub = HealthStub(channel)

        def status(service: str) -> Any:
            return stub.Check(HealthCheckRequest(service=service), timeout=30).status

        assert {status(name) for name in ("", *OURS)} == {NOT_SERVING}
        mark(settings, "front", "reader")
        assert [status(f"headgate.v1.{name}") for name in ("Publisher", "Reader", "Subscriptions")] == [1, 1, 2]
        assert status("") == NOT_SERVING
        mark(settings, *Role)
        assert {status(name) for name in ("", *OURS)} == {SERVING}
        with pytest.raises(grpc.RpcError) as unknown:
            status("headgate.v1.Nobody")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND

    with_channel(work)


def test_who_watches_hears_of_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate_api.limits.HEALTH_POLL_S", 0.01)

    def work(channel: grpc.Channel, settings: Settings) -> None:
        watched = HealthStub(channel).Watch(HealthCheckRequest(service="headgate.v1.Reader"), timeout=60)
        assert next(watched).status == NOT_SERVING
        mark(settings, "front", "reader")
        assert next(watched).status == SERVING
        mark(settings, "front")
        assert next(watched).status == NOT_SERVING
        watched.cancel()
        unknown = HealthStub(channel).Watch(HealthCheckRequest(service="x"), timeout=60)
        assert next(unknown).status == HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()

    with_channel(work)


def test_many_who_ask_cost_one_look() -> None:
    looks: list[int] = []

    async def ask(settings: Settings) -> None:
        health = rpc.HealthService(lambda: looks.append(os.getpid()) or dict.fromkeys(of_server(settings), True))  # type: ignore[func-returns-value]
        async with rpc.serving([health.service()], settings.grpc), grpc.aio.insecure_channel(settings.grpc) as channel:
            stub = HealthStub(channel)
            answers = await asyncio.gather(*[stub.Check(HealthCheckRequest()) for _ in range(50)])
            assert {answer.status for answer in answers} == {SERVING}

    run(ask)
    assert len(looks) <= 1 + 60 / limits.HEALTH_POLL_S / 10, "by time, not by question"


def test_reflection_tells_of_all_services_and_their_messages() -> None:
    def work(channel: grpc.Channel, settings: Settings) -> None:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) >= {*OURS, "grpc.health.v1.Health"}
        pool = DescriptorPool(database)
        for name in OURS:
            found = pool.FindServiceByName(name)
            known = pb.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
            assert [method.name for method in found.methods] == [method.name for method in known.methods]
        assert "events" in pool.FindMessageTypeByName("headgate.v1.PublishRequest").fields_by_name
        assert pool.FindMessageTypeByName("io.cloudevents.v1.CloudEvent").full_name

    with_channel(work)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_has_its_old_and_its_new_name(version: str) -> None:
    def asked() -> Iterator[ServerReflectionRequest]:
        yield ServerReflectionRequest(list_services="")
        yield ServerReflectionRequest(file_containing_symbol="no.such.Symbol")
        yield ServerReflectionRequest()

    def work(channel: grpc.Channel, settings: Settings) -> None:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            ServerReflectionRequest.SerializeToString,
            ServerReflectionResponse.FromString,
        )
        listed, unknown, nothing = call(asked(), timeout=30)
        assert {service.name for service in listed.list_services_response.service} >= OURS
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        assert nothing.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]

    with_channel(work)
