"""The page of rights, from the table of routes and the roles that are there from the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headgate.auth.routes import CALLS, ROUTES, EventAccess, RightOfCall, RightOfRoute
from headgate.auth.rules import Attributes
from headgate.objects.api.bootstrap import ROLES
from headgate.objects.kinds.rbac_rules import access_rules
from scripts.pages.cell import row

HEAD: Final = """# Rights

<!-- Written by `make pages` from src/headgate/auth/routes.py and src/headgate/objects/api/bootstrap.py: edit those. -->

Where a method of [authentication](../howto/authenticate.md) is configured, every request needs the right of its line. [Authorize](../howto/authorize.md) shows how roles give rights. A path that is in no line needs `get` on itself as a `nonResourceURL`; one below `/apis` or `/api/v1` needs all rights.

To publish, an [EventPolicy](event-policies.md) or the default authorization mode may let in somebody without the right, and an EventPolicy may refuse events of somebody who has it.

A request to a name in a namespace that the user may not see is refused with 403 whether there is such an object or not.

## Ceilings

A right to a broker's events may have [a ceiling](../howto/authorize.md#let-a-team-see-a-part-of-the-events). The last column of the tables says how it holds for the user's other requests:

* `joined`: the ceiling holds beside the filter of the request: events above it are as if they were not there.
* `written`: what is written gets only events below the ceiling of its writer.
* `own`: of triggers and subscriptions whose own ceiling lies inside the user's; for others the answer is 403.
* `each`: what came of the user's events is there, each judged by its event; nothing else is.
* `shown`: what is shown lacks what events have left there: findings in the status of other users' triggers and subscriptions, counters of these, of brokers and of quotas, totals of a summary, event types that are made of events.
* `refused`: 403 for whoever has a ceiling there.

Without a word the request tells nothing of stored events. A role with `*` has no ceiling, and neither have members of `system:masters`.
"""
_ROLES: Final = """## Roles

Each start makes those that are missing, and gives back rules and subjects that they lack. `rbac.authorization.kubernetes.io/autoupdate: "false"` on one leaves it alone. Members of the group `system:masters` may do everything, whatever roles and bindings say; [EventPolicies](event-policies.md) alone bind them, too.

| role | what it is for |
|---|---|
| `headgate:admin` | A namespace: everything in it, who may do what, and who may send which events |
| `headgate:editor` | Brokers, triggers and subscriptions, and all that is done with their events |
| `headgate:viewer` | Sees objects, events, dead letters and replays, and changes nothing |
| `headgate:publisher` | Publishes |
| `headgate:consumer` | Consumes subscriptions |
| `headgate:subscriber` | Lets triggers and subscriptions of other namespaces have the events of brokers (`knsubscribe`) |
| `cluster-admin` | Everything; given to `system:masters` |
| `system:basic-user` | Asks for its own rights, and tries filters; given to everybody who is known |
| `system:discovery` | Sees which resources there are; given to everybody who is known |
| `system:public-info-viewer` | Sees whether the server is ready; given to everybody |
| `system:monitoring` | Sees numbers and what parts say of themselves; given to the group `system:monitoring` |
"""
_SHOWN: Final = tuple(name for name in ROLES if name.startswith("headgate:"))


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_section("HTTP", ROUTES), *_section("gRPC", CALLS), _ROLES])


def _section(title: str, lines: tuple[RightOfRoute, ...] | tuple[RightOfCall, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield row("request", "what it does", "verb", "right", "roles `headgate:`", "below a ceiling")
    yield "|---|---|---|---|---|---|"
    for line in lines:
        method = f"{line.method.replace('*', 'POST')} {line.path}" if isinstance(line, RightOfRoute) else line.method
        right, access = f"`{_right(line.wanted)}`", "" if line.events is EventAccess.NONE else line.events
        yield row(f"`{method}`", line.what, f"`{line.wanted.verb}`", right, _roles(line.wanted), access)
    yield ""


def _right(wanted: Attributes) -> str:
    if wanted.path:
        return wanted.path
    return f"{wanted.full_resource}.{wanted.group}" if wanted.group else wanted.full_resource


def _roles(wanted: Attributes) -> str:
    having = (name for name in _SHOWN if any(rule.allows(wanted) for rule in access_rules(ROLES[name])))
    return ", ".join(name.partition(":")[2] for name in having)
