"""`headgate why`, `trace`, `lint`, `status`, `version`: what a server says of events, of filters, of itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from headgate_api import __version__
from headgate_api.errors import NotFoundError, UnavailableError
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import TRACE_EVENTS_MAX
from headgate_api.objects.kinds import API_VERSION, OWN_API_VERSION, Kind
from headgate_api.plain_words import status_text
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    TIMES_HELP,
    api_path,
    counted,
    fail,
    named_path,
    print_error,
    print_table,
    request,
    split_name,
    time_text,
)
from headgate_cli.lazy import module_of
from headgate_cli.options import Broker, JsonLinesOption, JsonOption, Namespace, Server, offers

_NOT_FOUND_YET: Final = "not-found-yet"
_OTHERS_SHOWN: Final = 3
_PARTS_SHOWN: Final = 60
_TEXT_CHARACTERS: Final = 70


def why(
    event_id: Annotated[str, typer.Argument(metavar="EVENT-ID", help="The event's id.")],
    trigger: Annotated[
        str,
        typer.Option(
            "--trigger",
            "-t",
            help="Only this trigger, not all of the broker: with the value of each part of its filter.",
            autocompletion=offers("triggers"),
        ),
    ] = "",
    broker: Broker = BROKER_DEFAULT,
    source: Annotated[str, typer.Option("--source", help="The event's source, if its id is not unique.")] = "",
    from_: Annotated[str, typer.Option("--from", help=f"Search only events stored since then: {TIMES_HELP}.")] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLinesOption = False,
) -> None:
    """Show what happened to an event: not stored, filtered (and by which part), an error, matched, delivered, given up.

    \b
    Examples:
      headgate why 1234
      headgate why 1234 --broker shop/orders
      headgate why 1234 --trigger gold
      headgate why 1234 --trigger gold --source /shop --from 2h
    """  # noqa: D301 - click reads \b as "keep these lines"
    query = {"id": event_id, "source": source, "since": time_text(from_)}
    namespace, broker = split_name(broker, namespace)
    path = why_path(trigger, broker, namespace)
    answer = search(server, path, query) if trigger else _of_broker(server, path, query)
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False))
    elif trigger:
        _print_one(answer)
    else:
        _print_all(answer)
        if answer.get("triggers"):
            exactly = f" --source {shlex.quote(source)}" if source else ""
            command = f"headgate why {shlex.quote(event_id)} --trigger {namespace}/NAME{exactly}"
            typer.echo(f"hint: `{command}` shows which part of its filter decided", err=True)


def why_path(trigger: str, broker: str, namespace: str) -> str:
    """The path that says what became of an event: for a trigger where one is named, else for all of the broker."""
    kind, name = (Kind.TRIGGER, trigger) if trigger else (Kind.BROKER, broker)
    return named_path(kind, name, namespace, "why")


def _say_how_far(answer: Mapping[str, Any]) -> bool:
    typer.echo(f"searched back to {answer['searchedTo']}", err=True)
    return True


def search(
    server: str,
    path: str,
    query: Mapping[str, str],
    goes_on: Callable[[Mapping[str, Any]], bool] = _say_how_far,
) -> dict[str, Any]:
    """The answer of a question about an event; the server searches its log a piece at a time.

    `goes_on` gets each answer that is none yet; where it says False that one is returned, with `next`.
    """
    answer: dict[str, Any] = request(server, "GET", f"{path}?{urlencode(query)}")
    while is_unfinished(answer) and goes_on(answer):
        answer = request(server, "GET", f"{path}?{urlencode({**query, 'next': answer['next']})}")
    return answer


def is_unfinished(answer: Mapping[str, Any]) -> bool:
    """Whether the event was not in the piece of the log that was searched, and there are more."""
    return answer.get("fate") == _NOT_FOUND_YET or ("fate" not in answer and "trace" not in answer and "next" in answer)


def _of_broker(server: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    answer = search(server, path, query)
    while after := answer.pop("after", ""):
        page = search(server, path, {**query, "after": after})
        answer["triggers"] += page.get("triggers", [])
        answer["after"] = page.get("after", "")
    return answer


def _print_all(answer: dict[str, Any]) -> None:
    event = answer.get("event")
    if answer["fate"] != "stored" or event is None:
        typer.echo(f"{answer['fate']}: {answer['message']}")
        return
    typer.echo(f"event    {_place(event)}")
    triggers = answer.get("triggers", [])
    if not triggers:
        typer.echo("the broker has no triggers")
        return
    print_table([["TRIGGER", "FATE", "WHY"], *([one["trigger"], one["fate"], one["message"]] for one in triggers)])


def _place(event: dict[str, Any]) -> str:
    return f"{event['broker']}, partition {event['partition']}, offset {event['offset']}, stored {event['stored']}"


def _print_one(answer: dict[str, Any]) -> None:
    typer.echo(f"{answer['fate']}: {answer['message']}")
    if event := answer.get("event"):
        typer.echo(f"event    {_place(event)}")
    for entry in answer.get("history", []):
        typer.echo(f"attempt  {entry['time']}  {_entry_text(entry)}")
    if (attempts := answer.get("attempts")) and (attempts.get("code") or attempts.get("answer")):
        typer.echo(f"answer   {attempts.get('code', '')} {json.dumps(attempts.get('answer', ''))}")
    if trace := answer.get("trace"):
        typer.echo(f"filter   {trace['outcome']}")
        for line in trace["caret"].splitlines():
            typer.echo(f"  {line}")
        for part in trace["parts"][:_PARTS_SHOWN]:
            text = trace["cel"][part["start"] : part["end"]]
            text = text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
            value = f"error: {part['value']}" if part["kind"] == "error" else part["value"]
            element = f"  ({part['element']})" if part["element"] else ""
            mark = ">" if part["decided"] else " "
            typer.echo(f" {mark} {'  ' * part['depth']}{text} = {value}{element}")


_ORIGINS: Final = {
    "delivery": "attempt",
    "replay": "replay, attempt",
    "dead-letter": "dead letter to its sink, attempt",
    "redrive": "redrive, attempt",
}


def _entry_text(entry: dict[str, Any]) -> str:
    if result := entry.get("result"):
        return f"ended: {result.replace('_', ' ')}"
    failed = f", failed ({entry['reason']})" if entry.get("reason") else ", delivered"
    origin = _ORIGINS.get(entry["origin"], entry["origin"])
    answer = status_text(entry.get("status", 0), entry.get("reason", ""), entry.get("detail", ""))
    return f"{origin} {entry.get('attempt', 0)}: {answer}{failed}"


def trace(
    event_id: Annotated[str, typer.Argument(metavar="EVENT-ID", help="The event's id.")],
    broker: Broker = BROKER_DEFAULT,
    source: Annotated[str, typer.Option(help="The event's source, if its id is not unique.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Every stored event with this id, not only the newest.")] = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLinesOption = False,
) -> None:
    """Show the whole path of an event: where it is stored, its matches, every attempt and its answer.

    \b
    Examples:
      headgate trace order-4711
      headgate trace order-4711 --broker shop/orders --source /shop --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    path = named_path(Kind.BROKER, broker, namespace, "trace")
    shown = 0
    for found in _traces(server, path, {"id": event_id, "source": source}):
        if shown == TRACE_EVENTS_MAX:
            typer.echo(f"hint: only {shown} events are shown; --source narrows the search", err=True)
            break
        if as_json:
            typer.echo(json.dumps(found, ensure_ascii=False))
        else:
            typer.echo(("\n" if shown else "") + "\n".join(_trace_lines(found)))
        shown += 1
        if not every:
            break
    if not shown:
        raise NeverStoredError(full_name(broker, namespace), event_id)


class NeverStoredError(NotFoundError):
    """A broker's log has no event with an id."""

    def __init__(self, broker: str, event_id: str) -> None:
        super().__init__(
            f"broker {broker} has stored no event with the id {event_id!r}",
            hint="it was never accepted there, or retention took it; --broker names another broker",
        )


def _traces(server: str, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The stored events of an id, the newest first."""
    answer = search(server, path, query)
    while "trace" in answer:
        yield answer["trace"]
        if "next" not in answer:
            return
        answer = search(server, path, {**query, "next": answer["next"]})


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    found = trace["event"]
    event = found["event"]
    lines = [f"event {event['id']}  source {event['source']}  type {event['type']}  broker {found['broker']}"]
    if traceparent := event.get("traceparent"):
        lines.append(f"trace {traceparent.split('-')[1]}")
    first, last = trace["chunk"]
    lines.append(
        f"{found['stored']}  stored: partition {found['partition']}, offset {found['offset']}, chunk {first} to {last}"
    )
    matches = trace.get("matches", [])
    if not matches:
        lines.append("matched by no filter" if trace["evaluated"] else "not matched yet")
    for match in matches:
        lines += _match_lines(match)
    for one in trace.get("tree", []):
        kind = f"hop {one['hops']}" if one["hops"] else "root"
        place = f"partition {one['partition']}, offset {one['offset']}"
        lines.append(f"{one['stored']}  {kind}: event {one['id']}  source {one['source']}  type {one['type']}, {place}")
    if not trace.get("treeComplete", True):
        lines.append("replies: not all of the log was searched")
    for entry in trace.get("replays", []):
        lines.append(f"{entry['time']}  {_entry_text(entry)}")
    return lines


def _match_lines(match: dict[str, Any]) -> list[str]:
    kind = match.get("kind", "target").lower()
    name = match.get("name") or f"(deleted, id {match['target']})"
    place = f", outbox position {match['position']}" if "position" in match else ""  # not told below a ceiling
    says = f"matched: {kind} {name}, verdict {match['verdict']}, generation {match['generation']}{place}"
    lines = [f"{match['time']}  {says}"]
    attempts = match.get("attempts", [])
    lines += [f"{entry['time']}    {_entry_text(entry)}" for entry in attempts]
    if pending := match.get("pending"):
        lines.append(f"{pending['stored']}    pending event {pending['id']}, waits until {pending['due']}")
    if letter := match.get("deadLetter"):
        problem = f": {letter['problem']}" if letter.get("problem") else ""
        lines.append(f"{letter['died']}    dead letter {letter['id']} ({letter['reason']}), {letter['state']}{problem}")
    if pull := match.get("subscription"):
        times = f", handed out {pull['deliveries']} times" if pull.get("deliveries") else ""
        consumer = f", to {pull['consumer']}" if pull.get("consumer") else ""
        lines.append(f"    {pull['state'].replace('-', ' ')}{times}{consumer}")
    elif not (attempts or pending) and match["verdict"] != "error":
        lines.append("    no attempt is known: none yet, or too long ago")
    return lines


def lint(
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            "-b",
            help="NAME or NAMESPACE/NAME of the broker.",
            autocompletion=offers("brokers"),
            show_default=f"{BROKER_DEFAULT}, with -f all",
        ),
    ] = "",
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename", "-f", help="Ask no server: read triggers and subscriptions of a file, a directory, or -."
        ),
    ] = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: JsonLinesOption = False,
    every: Annotated[bool, typer.Option("--all", help="Every broker, each compared for itself.")] = False,
) -> None:
    """Compare the filters of a broker: which are equal, implied by others, never or always true.

    What is said is sure for every event. Filters of which nothing is said may still be related.

    \b
    Examples:
      headgate lint --broker shop/orders
      headgate lint --all
      headgate lint -f triggers/ -f subscriptions.yaml
    """  # noqa: D301 - click reads \b as "keep these lines"
    chosen = full_name(broker or BROKER_DEFAULT, namespace)
    found: Iterable[dict[str, Any]]
    if files:
        found = [one for one in _compared(files, namespace) if one["broker"] == chosen or every or not broker]
        if not found:
            said = f"no triggers or subscriptions{f' of {chosen}' if broker and not every else ''}"
            fail(f"{', '.join(files)}: {said}", hint="files end in .yaml, .yml or .json")
        every |= len(found) > 1
    else:
        found = (linted(server, path) for path in (_brokers(server) if every else [chosen]))
    for one in found:
        lines = [json.dumps(one, ensure_ascii=False)] if as_json else _lint_lines(one)
        typer.echo("\n".join(f"{one['broker']}  {line}" if every and not as_json else line for line in lines))


def _compared(files: list[str], namespace: str) -> Iterable[dict[str, Any]]:
    """What a server would say of each broker in files."""
    from headgate_cli.objects import documents_of  # here: only files need it

    compare = module_of("headgate.cli.lint_files", "headgate lint -f").views
    found: Iterable[dict[str, Any]] = compare((one for file in files for one in documents_of(file)), namespace)
    return found


def linted(server: str, broker: str) -> dict[str, Any]:
    """What a server says of the filters of a broker, NAMESPACE/NAME."""
    namespace, _, name = broker.partition("/")
    found: dict[str, Any] = request(server, "GET", api_path(API_VERSION, namespace, "brokers", name, "lint"))
    return found


def _brokers(server: str) -> Iterator[str]:
    for one in request(server, "GET", api_path(API_VERSION, None, "brokers"))["items"]:
        yield f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _lint_lines(found: dict[str, Any]) -> Iterator[str]:
    for one in found["items"]:
        for says in _says(one):
            yield f"{one['kind']}/{one['name']}: {says}"
    left_out = found.get("leftOut", 0)
    if left_out:
        yield f"... and {left_out} more"
    yield f"{counted(found['filters'], 'filter')} compared, {len(found['items']) + left_out or 'none'} with a remark"


def _says(one: dict[str, Any]) -> Iterator[str]:
    if one.get("never"):
        yield "no event makes the filter true"
    if one.get("always"):
        yield "every event makes the filter true"
    if equal := one.get("equal"):
        yield f"the same filter as {_listed(equal)}"
    if wider := one.get("impliedBy"):
        yield f"all of its events also go to {_listed(wider)}"
    if redundant := one.get("redundant"):
        yield f"{counted(redundant, 'alternative')} without effect, contained in others of the filter"
    yield from (name["message"] for name in one.get("unseen", ()))


def _listed(names: list[str]) -> str:
    more = len(names) - _OTHERS_SHOWN
    return ", ".join(names[:_OTHERS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def version(
    server: Server = SERVER_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Print the version of this command, and that of the server if one answers.

    Example: headgate version --server http://broker.example.com:8080
    """
    try:
        there = _version_of(server)
    except UnavailableError as error:
        there = ""
        if not as_json:
            print_error(error.message, hint=error.hint)
    if as_json:
        typer.echo(json.dumps({"client": __version__, "server": there or None}))
    else:
        typer.echo(f"headgate  {__version__}" + (f"\nserver    {there}  {server}" if there else ""))


def _version_of(server: str) -> str:
    """Headgate's part of what Kubernetes' clients are told, `v1.32.0+headgate.0.1.0`."""
    found = request(server, "GET", "/version")
    return str(found["gitVersion"]).rpartition("headgate.")[2]


def status(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="One namespace.",
            show_default="the whole server",
            autocompletion=offers("namespaces"),
        ),
    ] = None,
    server: Server = SERVER_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show how a server is: its version, parts, rates, backlog, and what needs attention.

    \b
    Examples:
      headgate status
      headgate status -n shop --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    found = request(server, "GET", api_path(OWN_API_VERSION, namespace, "summary"))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        typer.echo(f"server        {server}, Headgate {_version_of(server)}")
        typer.echo("\n".join(_status_lines(found)))


def _status_lines(found: dict[str, Any]) -> Iterator[str]:
    waiting = [
        f"{one['name']}{' of ' + one['server'] if one.get('server') else ''}"
        f"{': ' if one.get('note') else ''}{one.get('note', '')}"
        for one in found["parts"]
        if not one["ready"]
    ]
    yield f"parts         {'not ready: ' + '; '.join(waiting) if waiting else 'ready'}"
    objects = (counted(count, plural.removesuffix("s")) for plural, count in found["objects"].items())
    yield f"objects       {', '.join(objects)}"
    rates, latency, backlog, letters = found["rates"], found.get("latency", {}), found["backlog"], found["deadLetters"]
    times = "".join(
        f", {name} {1_000 * latency[name]:.1f} ms" for name in ("p50", "p99") if latency.get(name) is not None
    )
    yield (
        f"last minute   {rates['received']:.1f} events/s in, {rates['delivered']:.1f} deliveries/s out, "
        f"{rates['failed']:.1f}/s given up{times}"
    )
    yield (
        f"backlog       {counted(backlog['deliveries'], 'delivery', 'deliveries')} in memory, "
        f"{counted(backlog['lagging'], 'trigger')} with more, {counted(backlog['circuitsOpen'], 'circuit')} open"
    )
    yield f"dead letters  {letters['count']:,}, {letters['kept']:,} kept"
    shown, total = found["attention"], found["attentionTotal"]
    yield f"attention     {total}"
    for one in shown:
        named = f"{one['kind']} {one['namespace']}/{one['name']}"
        yield f"  {named}  {one.get('type', '')} {one.get('reason', '')}: {one.get('message', '')}"
    if len(shown) < total:
        yield f"  ... and {total - len(shown)} more"
