"""`headgate deadletter`, `pending` and `replay`: events that were given up, that wait, and that are sent again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import DEADLETTER_PAGE_MAX, REDRIVE_RATE_DEFAULT, REPLAY_RATE_DEFAULT
from headgate_api.objects.kinds import OWN_API_VERSION
from headgate_api.plain_words import age
from headgate_cli.client import (
    AHEAD_HELP,
    SERVER_DEFAULT,
    TIMES_HELP,
    api_path,
    filter_value,
    instant_text,
    print_table,
    request,
    split_name,
    time_text,
)
from headgate_cli.options import Broker, JsonOption, Namespace, Server, offers

_HEADS: Final = ["ID", "TRIGGER", "STATE", "REASON", "AGE", "ATTEMPTS", "TYPE", "EVENT"]

deadletters = typer.Typer(no_args_is_help=True, help="Events that could not be delivered.")

Ids = Annotated[list[int] | None, typer.Argument(help="Ids of dead letters. Without ids: all that the options select.")]
Trigger = Annotated[
    str,
    typer.Option(
        "--trigger",
        "-t",
        help="Only dead letters of this trigger: NAME or NAMESPACE/NAME.",
        autocompletion=offers("triggers"),
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Only this reason: 400, 5xx, timeout, filter-error, ...")]
State = Annotated[str, typer.Option("--state", help="Only this state: sending, kept or redriving.")]
StateKept = Annotated[
    str, typer.Option("--state", help="Only this state: sending, kept or redriving. Default without ids: kept.")
]
From = Annotated[str, typer.Option("--from", help=f"Given up at or after then: {TIMES_HELP}.")]
To = Annotated[str, typer.Option("--to", help="Given up before then, as --from.")]
Filter = Annotated[str, typer.Option("--filter", help="Only events for which this CEL expression is true.")]


@deadletters.command("list")
def list_(
    trigger: Trigger = "",
    reason: Reason = "",
    state: State = "",
    from_: From = "",
    to: To = "",
    filter_: Filter = "",
    limit: Annotated[int, typer.Option("--limit", help="Print at most this many.", min=1)] = 100,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show dead letters, the oldest first.

    Example: headgate deadletter list -n shop --trigger billing --from 1d
    """
    namespace, trigger = split_name(trigger, namespace)
    query = _selection(trigger, reason, state, from_, to, filter_)
    items = _listed(server, _path("deadletters", namespace), query, limit)
    _print(items, "dead letters", _HEADS, _row, namespace, as_json=as_json)


@deadletters.command()
def show(
    id_: Annotated[int, typer.Argument(metavar="ID", help="Id of a dead letter.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Print one dead letter with its event, as JSON.

    Example: headgate deadletter show 17 -n shop
    """
    _show(server, _path("deadletters", namespace, id_))


@deadletters.command()
def redrive(
    ids: Ids = None,
    trigger: Trigger = "",
    reason: Reason = "",
    state: StateKept = "",
    from_: From = "",
    to: To = "",
    filter_: Filter = "",
    rate: Annotated[
        float, typer.Option("--rate", help="Maximum number of dead letters per second.")
    ] = REDRIVE_RATE_DEFAULT,
    to_trigger: Annotated[
        str,
        typer.Option(
            "--to-trigger",
            help="Send them to this trigger of the namespace, whatever its filter says. They are its dead letters from "
            "then on.",
        ),
    ] = "",
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Send dead letters to their triggers' subscribers again. The server continues after this command has ended.

    \b
    Examples:
      headgate deadletter redrive --trigger shop/billing --reason 5xx
      headgate deadletter redrive 17 18 -n shop --to-trigger repair
    """  # noqa: D301 - click reads \b as "keep these lines"
    namespace, trigger = split_name(trigger, namespace)
    place, to_name = split_name(to_trigger, namespace)
    if place != namespace:
        raise typer.BadParameter(
            f"the trigger must be in namespace {namespace}, the dead letters'", param_hint="--to-trigger"
        )
    query = _selection(trigger, reason, state, from_, to, filter_)
    what = ("redrive", to_name) if to_name else ("redrive",)
    _each_page(what, query | {"rate": rate}, ids, namespace, server, as_json=as_json)


@deadletters.command()
def discard(
    ids: Ids = None,
    trigger: Trigger = "",
    reason: Reason = "",
    state: StateKept = "",
    from_: From = "",
    to: To = "",
    filter_: Filter = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Delete dead letters for good.

    Example: headgate deadletter discard --trigger shop/billing --to 7d
    """
    if not yes and not typer.confirm("discard these dead letters for good?"):
        raise typer.Exit(1)
    namespace, trigger = split_name(trigger, namespace)
    query = _selection(trigger, reason, state, from_, to, filter_)
    _each_page(("discard",), query, ids, namespace, server, as_json=as_json)


def _listed(server: str, path: str, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """The first of a selection, page after page."""
    items: list[dict[str, Any]] = []
    while len(items) < limit:
        if "filter" not in query:  # with one, a page is what is looked at, not what is found
            query["limit"] = min(limit - len(items), DEADLETTER_PAGE_MAX)
        answer = request(server, "GET", f"{path}?{urlencode(query)}")
        items += answer["items"]
        if "next" not in answer:
            break
        query |= {"after": answer["next"], "ceiling": answer["ceiling"]}
    return items[:limit]


def _print(
    items: list[dict[str, Any]],
    what: str,
    heads: list[str],
    row: Callable[[dict[str, Any]], list[str]],
    namespace: str,
    *,
    as_json: bool,
) -> None:
    """A list as JSON or a table, or that there is nothing in it."""
    if as_json:
        typer.echo(json.dumps(items, indent=2))
    elif not items:
        typer.echo(f"no {what} found in namespace {namespace}", err=True)
    else:
        print_table([heads, *map(row, items)])


def _selection(trigger: str, reason: str, state: str, from_: str, to: str, filter_: str) -> dict[str, Any]:
    return _given(trigger=trigger, reason=reason, state=state, **_span(from_, to), filter=filter_)


def _span(from_: str, to: str, *, ahead: bool = False) -> dict[str, str]:
    """What --from and --to mean, as the API calls it."""
    return {"since": instant_text("--from", from_, ahead=ahead), "until": instant_text("--to", to, ahead=ahead)}


def _given(**named: str) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value}


def _each_page(
    what: tuple[str, ...], query: dict[str, Any], ids: list[int] | None, namespace: str, server: str, *, as_json: bool
) -> None:
    """Requests page after page, to the last; `what` ends the path."""
    redrives = what[0] == "redrive"
    if ids:
        query["ids"] = ids
    count, gone = _changed(server, _path("deadletters", namespace, *what), query)
    if as_json:
        typer.echo(json.dumps({"count": count, "gone": gone} if redrives else {"count": count}))
    else:
        done = "being sent again" if redrives else "discarded"
        typer.echo(f"{count} dead letter is {done}" if count == 1 else f"{count} dead letters are {done}")
    if gone:
        those = "1 dead letter was" if gone == 1 else f"{gone} dead letters were"
        typer.echo(
            f"{those} not sent and stay kept: their trigger is deleted. --to-trigger NAME sends them to another"
            " trigger of the namespace; headgate deadletter show ID prints what is kept.",
            err=True,
        )
    if gone or (not count and (ids or "trigger" in query)):
        if not gone:
            typer.echo(
                f"no dead letter was selected: headgate deadletter list -n {namespace} shows what there is", err=True
            )
        raise typer.Exit(1)


def _changed(server: str, path: str, query: dict[str, Any]) -> tuple[int, int]:
    """Requests page after page, to the last: how many were changed, and how many were not."""
    count = gone = 0
    while True:
        answer = request(server, "POST", path, body=query)
        count += answer["count"]
        gone += answer.get("gone", 0)
        if "next" not in answer:
            return count, gone
        query |= {"after": answer["next"], "ceiling": answer["ceiling"]}


def _row(item: dict[str, Any]) -> list[str]:
    first, last = [str(item[name]) for name in ("id", "trigger", "state", "reason")], ("attempts", "eventType")
    since = age(item["died"], time.time())
    return [*first, since, *(str(item[name]) for name in last), f"{item['eventSource']} {item['eventId']}"]


def _show(server: str, path: str) -> None:
    typer.echo(json.dumps(request(server, "GET", path), indent=2))


def _path(plural: str, namespace: str, *names: object) -> str:
    return api_path(OWN_API_VERSION, namespace, plural, *names)


# --- pending events --------------------------------------------------------------------------------

_PENDING_HEADS: Final = ["ID", "TRIGGER", "DUE", "ATTEMPTS", "TYPE", "EVENT"]

pending = typer.Typer(no_args_is_help=True, help="Events that wait for their time.")

PendingIds = Annotated[
    list[int] | None, typer.Argument(help="Ids of pending events. Without ids: all that the options select.")
]
PendingTrigger = Annotated[
    str,
    typer.Option(
        "--trigger",
        "-t",
        help="Only events for this trigger: NAME or NAMESPACE/NAME.",
        autocompletion=offers("triggers"),
    ),
]
EventId = Annotated[str, typer.Option("--event", help="Only events with this id.")]
Source = Annotated[str, typer.Option("--source", help="Only events of this source.")]
DueFrom = Annotated[str, typer.Option("--from", help=f"Due at or after then: {TIMES_HELP}{AHEAD_HELP}.")]
DueTo = Annotated[str, typer.Option("--to", help="Due before then, as --from.")]


@pending.command("list")
def list_pending(
    trigger: PendingTrigger = "",
    event: EventId = "",
    source: Source = "",
    from_: DueFrom = "",
    to: DueTo = "",
    filter_: Filter = "",
    limit: Annotated[int, typer.Option("--limit", help="Print at most this many.", min=1)] = 100,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Show events that wait for their time, in the order in which they began to wait.

    \b
    Examples:
      headgate pending list -n shop --trigger reminders
      headgate pending list -n shop --to +1h
    """  # noqa: D301 - click reads \b as "keep these lines"
    namespace, trigger = split_name(trigger, namespace)
    query = _pending_selection(trigger, event, source, from_, to, filter_)
    items = _listed(server, _path("pending", namespace), query, limit)
    _print(items, "pending events", _PENDING_HEADS, _pending_row, namespace, as_json=as_json)


@pending.command("show")
def show_pending(
    id_: Annotated[int, typer.Argument(metavar="ID", help="Id of a pending event.")],
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Print one pending event, as JSON.

    Example: headgate pending show 17 -n shop
    """
    _show(server, _path("pending", namespace, id_))


@pending.command("cancel")
def cancel_pending(
    ids: PendingIds = None,
    trigger: PendingTrigger = "",
    event: EventId = "",
    source: Source = "",
    from_: DueFrom = "",
    to: DueTo = "",
    filter_: Filter = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Cancel events that wait for their time: they are not delivered. An attempt that is under way ends first.

    Example: headgate pending cancel --event reminder-17 --yes
    """
    if not yes and not typer.confirm("cancel these events for good?"):
        raise typer.Exit(1)
    namespace, trigger = split_name(trigger, namespace)
    query = _pending_selection(trigger, event, source, from_, to, filter_)
    is_narrow = bool(ids or query)
    count, _ = _changed(server, _path("pending", namespace, "cancel"), query | ({"ids": ids} if ids else {}))
    if as_json:
        typer.echo(json.dumps({"count": count}))
    else:
        typer.echo(f"{count} event is cancelled" if count == 1 else f"{count} events are cancelled")
    if not count and is_narrow:
        hint = f"headgate pending list -n {namespace} shows what there is"
        typer.echo(f"no pending event was selected: {hint}", err=True)
        raise typer.Exit(1)


def _pending_selection(trigger: str, event: str, source: str, from_: str, to: str, filter_: str) -> dict[str, Any]:
    return _given(trigger=trigger, event=event, source=source, **_span(from_, to, ahead=True), filter=filter_)


def _pending_row(item: dict[str, Any]) -> list[str]:
    said = [str(item[name]) for name in ("id", "trigger", "due", "attempts", "eventType")]
    return [*said, f"{item['eventSource']} {item['eventId']}"]


# --- replays ---------------------------------------------------------------------------------------

_REPLAY_HEADS: Final = ["ID", "STATE", "BROKER", "TARGET", "PASSED", "TOTAL", "MATCHED", "DELIVERED", "DEAD", "FAILED"]
_POLL_S: Final = 0.5
"""How often the progress of a dry run is polled."""

replays = typer.Typer()

Id = Annotated[int, typer.Argument(metavar="ID", help="Id of a replay.")]


@replays.callback(invoke_without_command=True)
def replay(
    context: typer.Context,
    target: Annotated[
        str, typer.Option(help="NAME or NAMESPACE/NAME of a trigger, or a URL.", autocompletion=offers("triggers"))
    ] = "",
    broker: Broker = "",
    from_: Annotated[
        str,
        typer.Option("--from", help=f"Where it starts: earliest, {TIMES_HELP} or a position."),
    ] = "earliest",
    to: Annotated[str, typer.Option(help="Where it ends, exclusive: next (now), or as --from.")] = "next",
    filter_: Annotated[
        str, typer.Option("--filter", help="CEL, or JSON as in spec.filter; in addition to the trigger's filter.")
    ] = "",
    rate: Annotated[float, typer.Option(help="Maximum number of events per second.")] = REPLAY_RATE_DEFAULT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the events without sending them.")] = False,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Send a broker's stored events to one target again.

    Each has the extension headgatereplay. The server does it after this command has ended.

    Example: headgate replay --target billing --from 2026-03-04T05:06:07Z --rate 50
    """
    if context.invoked_subcommand is not None:
        return
    if not target:
        raise InvalidInputError("--target is missing", hint="give the name of a trigger, or a URL")
    if "/" in broker:
        namespace, broker = split_name(broker, namespace)
    if "://" in target:
        aim = {"url": target}
    else:
        place, target = split_name(target, namespace)
        if broker and place != namespace:
            raise InvalidInputError(
                f"the trigger is in namespace {place}, and the broker in {namespace}",
                hint="a trigger gets the events of a broker of its namespace: leave out --broker",
            )
        namespace, aim = place, {"trigger": target}
    span = {"from": time_text(from_), "to": time_text(to)}
    body = {"broker": broker, **aim, **span, "filter": filter_value(filter_), "rate": rate}
    made = request(server, "POST", _path("replays", namespace), body=body | {"dryRun": dry_run})
    if dry_run:
        made = _ended(server, namespace, made["id"])
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    elif dry_run:
        of = f" of {made['eventsTotal']}" if "eventsTotal" in made else ""  # not told below a ceiling
        typer.echo(f"{made['matched']}{of} events would be sent to {target}")
    else:
        of = f" of {made['eventsTotal']} events" if "eventsTotal" in made else ""
        typer.echo(f"replay {made['id']}{of} has begun")


@replays.command("list")
def list_replays(
    as_json: JsonOption = False, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT
) -> None:
    """Show replays, the newest first.

    Example: headgate replay list -n shop
    """
    items = request(server, "GET", _path("replays", namespace))["items"]
    _print(items, "replays", _REPLAY_HEADS, _replay_row, namespace, as_json=as_json)


@replays.command("show")
def show_replay(id_: Id, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Print one replay as JSON.

    Example: headgate replay show 3 -n shop
    """
    _show(server, _path("replays", namespace, id_))


@replays.command()
def cancel(id_: Id, namespace: Namespace = NAMESPACE_DEFAULT, server: Server = SERVER_DEFAULT) -> None:
    """Cancel a replay; events already sent stay sent.

    Example: headgate replay cancel 3 -n shop
    """
    done = request(server, "POST", _path("replays", namespace, id_, "cancel"))
    typer.echo(f"replay {id_} {'is cancelled' if done['cancelled'] else 'had ended'}")


def _ended(server: str, namespace: str, id_: int) -> Any:  # noqa: ANN401 - JSON
    """A replay once it has ended; Ctrl-C ends it."""
    try:
        while (found := request(server, "GET", _path("replays", namespace, id_)))["state"] == "running":
            is_told = "eventsTotal" in found
            done = (
                f"searched {found['eventsPassed']:,} of {found['eventsTotal']:,}"
                if is_told
                else f"found {found['matched']:,}"
            )
            typer.echo(f"{done} events", err=True)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        request(server, "POST", _path("replays", namespace, id_, "cancel"))
        raise
    if found["state"] != "done":
        raise InvalidInputError(f"the dry run has {found['state']}: {found['problem']}")
    return found


def _replay_row(item: dict[str, Any]) -> list[str]:
    fields = ("eventsPassed", "eventsTotal", "matched", "delivered", "deadLettered", "failed")
    target = item["trigger"] or item["url"]
    numbers = (str(item.get(name, "-")) for name in fields)
    return [*(str(item[name]) for name in ("id", "state", "broker")), target, *numbers]
