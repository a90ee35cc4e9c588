"""The checks before a server starts: made before any process is forked, told in one sentence with a remedy."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from headgate.backend.config import ClusterConfig
from headgate.backend.kafka.topics import Admin
from headgate.match.requirements import check_java, connector_jar
from headgate.server import datadir, listening, parts, tls
from headgate.server.listening import url_policy
from headgate.server.parts import Role
from headgate.settings import ClientAuth, Settings, TlsMode
from headgate.storage import sqlite
from headgate.storage.files import DispatcherDirectory
from headgate.storage.keyring import keyring_of
from headgate_api.errors import FatalError, HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import SOCKET_PATH_BYTES_MAX

_log = structlog.get_logger(__name__)


class TopicsMisfitError(HeadgateError):
    """Topics in Kafka are not as the configuration says."""

    code = "topics-misfit"
    retriable = True  # `headgate cluster init` may be under way elsewhere


def check_topics(cluster: ClusterConfig) -> None:
    """Asks Kafka whether it has the topics as they must be. What passes when a broker comes back is only told."""
    found = Admin(cluster.kafka).check()
    for one in found:
        if one.passes:
            _log.warning("a topic takes nothing now", topic=one.topic, what=one.setting, now=one.found, hint=one.hint)
    lasting = [one for one in found if not one.passes]
    if lasting:
        first = lasting[0]
        misfit = f"{first.setting} of {first.topic} is {first.found} and must be {first.wanted}"
        what = misfit if first.found else f"{first.topic} is missing"
        more = f", and {len(lasting) - 1} more" if len(lasting) > 1 else ""
        raise TopicsMisfitError(
            f"the topics in Kafka do not fit: {what}{more}",
            hint="headgate cluster check shows all of them; headgate cluster init makes topics that are missing",
        )


_TARGET_EPOCH_S: Final = 1_577_836_800
"""2020-01-01. Ids of targets have 31 bits: seconds since then are above all ids given so far, until 2088."""


def check_settings(settings: Settings, cluster: ClusterConfig | None = None) -> None:
    """Checks settings, and the files that they name. Nothing is changed."""
    url_policy(settings)
    parts.roles_of(settings)
    if cluster is None and settings.fronts > settings.partitions:
        raise InvalidInputError(
            f"{settings.fronts} fronts need as many partitions of the log, and there are {settings.partitions}",
            hint=f"--fronts {settings.partitions}, or --partitions {settings.fronts}: it may only grow",
        )
    _check_socket_paths(settings)
    check_tls(settings)
    keyring_of(settings)
    if settings.has_authentication:
        from headgate.server.authentication import authenticator_of  # a third of a second of imports

        authenticator_of(settings)
    listening.check_not_open(settings)


def _check_socket_paths(settings: Settings) -> None:
    """A process whose socket cannot be opened would be started again for ever."""
    sockets = (
        settings.dispatcher_socket(settings.dispatchers - 1),
        settings.front_socket(settings.fronts - 1),
        settings.log_wakeups(settings.partitions - 1),
    )
    longest = max(map(os.fsencode, sockets), key=len)
    if len(longest) > SOCKET_PATH_BYTES_MAX:
        raise InvalidInputError(
            f"the data directory's path is too long: the Unix socket {os.fsdecode(longest)} has {len(longest)} bytes,"
            f" and a socket's path may have {SOCKET_PATH_BYTES_MAX}",
            hint=f"a shorter --data, or a relative one: cd {settings.data.parent} and --data {settings.data.name}",
        )


def check_machine(settings: Settings, cluster: ClusterConfig | None) -> None:
    """Checks what the parts need of the machine and of Kafka; the data directory is checked by who holds it."""
    if settings.audit_log_path is not None:
        from headgate.server.authentication import audit_log_of

        if (audit := audit_log_of(settings)) is not None:
            audit.close()
    with contextlib.ExitStack() as stack:
        # All at the same time: one address given twice is taken, too.
        for one in listening.addresses_of(settings):
            stack.callback(listening.close, listening.bind(one.host, one.port, one.option, listens=True))
    if Role.MATCHER in parts.roles_of(settings):
        check_spark()
    if cluster is not None:
        check_topics(cluster)


def check_spark() -> None:
    """Checks what the matcher needs."""
    connector_jar()
    check_java()


def arrange_dispatchers(settings: Settings) -> Settings:
    """Makes the dispatchers' directories fit the number of dispatchers; returns settings that name it."""
    settings = datadir.settled(settings)

    def rewrite(before: Sequence[DispatcherDirectory], after: Sequence[DispatcherDirectory]) -> None:
        from headgate.server import repartition  # seconds of imports, which no other start needs

        repartition.rewrite(settings.data, settings.on_corrupt, before, after)

    try:
        datadir.arrange(settings.data, settings.dispatchers, rewrite)
    except OSError as error:
        raise UnavailableError(
            f"the files of the dispatchers cannot be written: {error}",
            hint="another number of dispatchers needs room for all matches once more; what was there is untouched",
        ) from error
    return settings


def check_files(settings: Settings) -> None:
    """Checks that each database has everything that was committed to it; what is lost may have been accepted.

    Call it before anything opens one: whoever writes to a database gives up what could still be saved of it.
    """
    for path in sqlite.databases(settings.data):
        try:
            with sqlite.damage_named(path):
                sqlite.check_commits(path, is_at_rest=True)
            _check_beside(path, settings.log_directory)
        except FatalError as error:
            if path.name not in settings.losses_accepted:
                raise
            _log.warning("goes on without what a database has lost", error=error.message, file=str(path))
            sqlite.accept_loss(path)
            if path.name == "control.db":
                from headgate.objects.store.store import Store  # a second of imports, which no other start needs

                # Made anew, or gone on with: nobody may get the ids of targets that it has lost.
                Store.open(path, targets_from=int(time.time()) - _TARGET_EPOCH_S).close()
        sqlite.settle(path)


def _check_beside(path: Path, log: Path) -> None:
    """DatabaseMissingError where a database is gone, and its record with it, beside the data that it is about."""
    beside = {"control.db": log, "dispatch.db": path.parent / "outbox"}.get(path.name)
    if beside is not None and sqlite.is_missing(path) and any(beside.rglob("*.seg")):
        raise sqlite.DatabaseMissingError(path, f"{beside} has data")


def check_tls(settings: Settings) -> None:
    """Checks the settings of TLS and the files that they name."""
    if (settings.tls_cert is None) is not (settings.tls_key is None):
        there, lacks = ("--tls-cert", "--tls-key") if settings.tls_key is None else ("--tls-key", "--tls-cert")
        raise InvalidInputError(
            f"{there} needs {lacks}", hint="give a certificate and its key, two files in PEM format"
        )
    is_permissive = settings.mode is TlsMode.PERMISSIVE
    if settings.mode is not TlsMode.DISABLED and settings.tls_cert is None:
        raise InvalidInputError(f"--tls-mode {settings.mode} needs a certificate", hint="give --tls-cert and --tls-key")
    if not is_permissive and (extra := settings.model_fields_set & {"tls_listen", "tls_grpc"}):
        raise InvalidInputError(
            f"--{min(extra).replace('_', '-')} is for --tls-mode permissive, and the mode is {settings.mode}",
            hint="in the mode strict --listen and --grpc speak TLS",
        )
    if settings.tls_client_auth is not None and settings.tls_client_ca is None:
        raise InvalidInputError(
            "--tls-client-auth needs --tls-client-ca", hint="give the CA of the clients' certificates"
        )
    if settings.tls_client_ca is not None and settings.mode is TlsMode.DISABLED:
        raise InvalidInputError("--tls-client-ca needs TLS", hint="give --tls-cert and --tls-key")
    has_grpc = any(one.is_grpc and one.is_tls for one in listening.addresses_of(settings))
    if settings.client_auth is ClientAuth.OPTIONAL and has_grpc:
        raise InvalidInputError(
            "gRPC cannot ask for a client certificate that is optional",
            hint=f"--tls-client-auth required, or {'--tls-grpc' if is_permissive else '--grpc'} off",
        )
    if settings.tls_ca is not None:
        tls.read_ca(settings.tls_ca)
    if settings.mode is not TlsMode.DISABLED:
        files = tls.TlsFiles.of(settings)
        tls.read_certificate(files)
        if files.key.stat().st_mode & stat.S_IROTH:
            _log.warning("every user may read the key", file=str(files.key), hint=f"chmod 600 {files.key}")


def tell_openness(settings: Settings) -> None:
    """Warns where the server is open to everybody."""
    if told := listening.openness(settings):
        _log.warning(told, hint="docs/howto/tls.md shows how to ask for client certificates")
