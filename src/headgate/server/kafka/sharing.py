"""The share of a process in the publish quotas of namespaces, where processes do not know each other."""

from __future__ import annotations

from headgate.server import child, parts
from headgate.server.parts import Role


def quota_sharers(context: child.Context) -> int:
    """How many processes have an equal part of each quota: as the configuration says, else those of this server.

    A process of sources counts as a front.
    """
    settings, config = context.settings, context.on_kafka
    own = len(parts.of_role(settings, Role.FRONT))
    if config.sources:
        own += len(parts.of_role(settings, Role.SOURCE))
    return config.quotas.fronts or own
