"""What does it cost to know what a user may do? Processor time of one request at the gate, with many bindings.

    python -m benchmarks.rbac

First the gate of HTTP in a loop: everybody may do everything, a decision that is remembered, and one that is not (with
bindings of one user, of a thousand users, and of groups). Then how long a change of one binding takes until it counts.
The goal is under 10 us a request together with `benchmarks.auth`.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from headgate.auth.authorizer import (
    AlwaysAllow,
    Authorizer,
    Binding,
    BindingSubject,
    RbacAuthorizer,
    RbacPolicy,
    RoleKey,
    SubjectKind,
)
from headgate.auth.context import USER
from headgate.auth.rules import Attributes
from headgate.auth.user import User, authenticated
from headgate.objects.api.bootstrap import ROLES
from headgate.objects.kinds.rbac_rules import access_rules
from headgate.server.authorization import AuthorizedRequests

RULES = {RoleKey(name): access_rules(rules) for name, rules in ROLES.items()}


def policy(count: int, *, same: bool) -> RbacPolicy:
    """Bindings in a namespace each, of as many users or of one."""
    bindings = [
        Binding(
            f"b{number}",
            f"ns-{number}",
            RoleKey("headgate:editor"),
            (BindingSubject(SubjectKind.USER, "ann" if same else f"user-{number}"),),
        )
        for number in range(count)
    ]
    return RbacPolicy(RULES, bindings)


def authorizer(found: RbacPolicy) -> RbacAuthorizer:
    """Decides by a policy."""
    made = RbacAuthorizer()
    made.policy = found
    return made


async def at_the_gate(decides: Authorizer, user: User, paths: list[str], count: int) -> float:
    """Processor time of one request, in microseconds, of what the gate adds to an application that does nothing."""

    async def app(scope, receive, send) -> None:
        pass

    gate = AuthorizedRequests(app, decides)

    async def run(called) -> float:
        began = time.process_time()
        for number in range(count):
            scope = {"type": "http", "method": "POST", "path": paths[number % len(paths)], "query_string": b""}
            scope[USER] = user
            await called(scope, None, None)
        return (time.process_time() - began) / count * 1e6

    await run(gate)
    bare = min([await run(app) for _ in range(3)])
    return min([await run(gate) for _ in range(3)]) - bare


def undecided(found: RbacPolicy, user: User, namespaces: int, count: int) -> float:
    """Processor time of a decision that is not remembered, in microseconds."""
    began = time.process_time()
    for number in range(count):
        wanted = Attributes("create", "eventing.knative.dev", "brokers", "events", f"ns-{number % namespaces}", "x")
        found._decide(user, wanted)
    return (time.process_time() - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bindings", type=int, default=1_000, help="role bindings")
    parser.add_argument("--count", type=int, default=100_000, help="requests of each loop")
    arguments = parser.parse_args()
    one, many = policy(arguments.bindings, same=True), policy(arguments.bindings, same=False)
    ann, other = authenticated("ann", ("team", "ops")), authenticated("user-7", ("team", "ops"))
    paths = [f"/ns-{number}/x" for number in range(arguments.bindings)]
    for name, decides, user, asked in (
        ("everybody may do everything", AlwaysAllow(), ann, paths),
        ("one broker, remembered", authorizer(many), other, ["/ns-7/x"]),
        (f"{arguments.bindings} brokers, remembered", authorizer(one), ann, paths),
        ("the superusers", authorizer(many), authenticated("root", ("system:masters",)), paths),
    ):
        print(f"{name:36} {asyncio.run(at_the_gate(decides, user, asked, arguments.count)):7.2f} us", flush=True)
    for name, found, user in (("many users", many, other), ("one user", one, ann)):
        spent = undecided(found, user, arguments.bindings, arguments.count // 10)
        print(f"not remembered, bindings of {name:8} {spent:7.2f} us")
    began = time.process_time()
    policy(arguments.bindings, same=False)
    print(f"{'a policy made anew':36} {(time.process_time() - began) * 1e3:7.2f} ms")


if __name__ == "__main__":
    main()
