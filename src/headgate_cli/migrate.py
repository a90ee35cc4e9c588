"""`headgate migrate`: what another system calls a subscription, as manifests of triggers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headgate_api.errors import InvalidInputError
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import MANIFEST_BYTES_MAX, MANIFEST_DEPTH_MAX
from headgate_api.objects.kinds import API_VERSION, PAUSED_ANNOTATION
from headgate_api.yaml_text import YamlLimits, YamlTextError, only_document, written
from headgate_cli.client import print_error
from headgate_cli.options import Namespace

_RULE: Final = "AWS::Events::Rule"
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
_NAME_CHARACTERS_MAX: Final = 63
_BUS: Final = "default"
_UNKNOWN: Final = "http://127.0.0.1:9/unknown"
"""Where nobody listens: a subscriber that is still to be named."""

app = typer.Typer(no_args_is_help=True, help="Write the rules of another system as manifests of triggers.")


@app.callback()
def _app() -> None:
    """Its commands are named after the systems."""


@app.command()
def eventbridge(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Rules in JSON as the AWS CLI lists them, or a CloudFormation template; - for stdin."
        ),
    ],
    urls: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="ARN=URL", help="The subscriber that takes the place of a target. Repeatable."),
    ] = None,
    namespace: Namespace = NAMESPACE_DEFAULT,
) -> None:
    """Print a broker for each event bus and a trigger for each target of each rule, as YAML. No server is asked.

    What a trigger does otherwise is told on stderr, with the name of its rule.

    \b
    Examples:
      aws events list-rules > rules.json && headgate migrate eventbridge rules.json > triggers.yaml
      headgate migrate eventbridge template.yaml --url arn:aws:lambda:eu-west-1:1:function:bill=http://bill.example/ |
        headgate apply -f -
    """  # noqa: D301 - click reads \b as "keep these lines"
    pairs = [text.rpartition("=") for text in urls or ()]
    if any("://" not in url for _, _, url in pairs):
        raise InvalidInputError("--url is not ARN=URL", hint="for example --url arn:aws:sqs:eu-west-1:1:q=http://q/")
    rules = list(_rules(_document(file)))
    if not rules:
        raise InvalidInputError(f"{file} has no rules", hint=f"it has Rules, or Resources of the type {_RULE}")
    known = {arn: url for arn, _, url in pairs}
    made: dict[tuple[str, str], dict[str, Any]] = {}
    for rule in rules:
        for one in _objects(rule, known, namespace):
            kind, name = one["kind"], one["metadata"]["name"]
            if kind == "Broker":
                made.setdefault((kind, name), one)
                continue
            while (kind, name) in made:
                name = f"{name[: _NAME_CHARACTERS_MAX - 2]}-2"
            one["metadata"]["name"] = name
            made[kind, name] = one
    brokers_first = sorted(made.values(), key=lambda one: one["kind"] != "Broker")
    typer.echo("---\n".join(map(written, brokers_first)), nl=False)


def _document(file: Path) -> Mapping[str, Any]:
    try:
        body = sys.stdin.buffer.read(MANIFEST_BYTES_MAX + 1) if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}", hint="- reads stdin") from error
    if len(body) > MANIFEST_BYTES_MAX:
        raise InvalidInputError(f"{file} is over {MANIFEST_BYTES_MAX} bytes", hint="give fewer rules")
    try:
        found = only_document(body, YamlLimits(MANIFEST_DEPTH_MAX, None, merges=True))  # JSON is YAML
    except YamlTextError as error:
        hint = "short forms of CloudFormation such as !Ref are written {Ref: NAME}"
        raise InvalidInputError(f"{file}: {error.message}", hint=hint) from error
    if not isinstance(found, Mapping):
        raise InvalidInputError(f"{file} is no object", hint="it has Rules, or Resources")
    return found


def _rules(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Rules in the form of the AWS CLI, each with its targets where they are known."""
    listed = document.get("Rules")
    if isinstance(listed, list):
        yield from (rule for rule in listed if isinstance(rule, Mapping))
    elif "EventPattern" in document:  # describe-rule
        yield document
    resources = document.get("Resources")
    for name, resource in resources.items() if isinstance(resources, Mapping) else ():
        if isinstance(resource, Mapping) and resource.get("Type") == _RULE:
            properties = resource.get("Properties")
            yield {"Name": name, **(properties if isinstance(properties, Mapping) else {})}


def _objects(rule: Mapping[str, Any], urls: Mapping[str, str], namespace: str) -> Iterator[dict[str, Any]]:
    """The broker of a rule's bus, and a trigger for each target; says what is not the same."""
    shown = _text(rule.get("Name")) or "rule"
    pattern = _pattern(rule, shown)
    if pattern is None:
        return
    broker = _named(_text(rule.get("EventBusName")).rpartition("/")[2] or _BUS)
    yield _object("Broker", broker, namespace, {})
    targets = rule.get("Targets")
    found = [one for one in targets if isinstance(one, Mapping)] if isinstance(targets, list) else []
    if not found:
        _tell(shown, "the file has no targets of it", "write the subscriber, or add them: list-targets-by-rule")
    for target in found or [{}]:
        arn = _text(target.get("Arn"))
        url = urls.get(arn, "")
        if arn and not url:
            _tell(shown, f"the target {arn} has no URL", f"--url {arn}=URL names the subscriber")
        name = _named(shown if len(found) < 2 else f"{shown}-{_text(target.get('Id')) or arn.rpartition(':')[2]}")
        made = _object(
            "Trigger",
            name,
            namespace,
            {
                "broker": broker,
                "filter": {"eventPattern": pattern},
                "subscriber": {"uri": url or _UNKNOWN},
                **_delivery(target, urls, shown),
            },
        )
        if rule.get("State") == "DISABLED":
            made["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
            _tell(shown, "it is disabled: its trigger is paused, and keeps events until it goes on", "or leave it out")
        for member in ("Input", "InputPath", "InputTransformer"):
            if member in target:
                _tell(shown, f"{member} of a target is not translated", "spec.transform makes another event of a match")
        yield made


def _pattern(rule: Mapping[str, Any], shown: str) -> Any:  # noqa: ANN401 - JSON
    pattern = rule.get("EventPattern")
    if isinstance(pattern, str) and pattern:
        try:
            return json.loads(pattern)
        except ValueError:
            _tell(shown, "its EventPattern is no JSON", "the rule is left out")
            return None
    if not pattern:
        what = "it is a schedule" if rule.get("ScheduleExpression") else "it has no EventPattern"
        _tell(shown, f"{what}: the rule is left out", "a timer of your system can send events instead")
        return None
    return pattern


def _delivery(target: Mapping[str, Any], urls: Mapping[str, str], shown: str) -> dict[str, Any]:
    """`spec.delivery`, where the target says something of it."""
    made: dict[str, Any] = {}
    policy = target.get("RetryPolicy")
    if isinstance(policy, Mapping):
        if isinstance(retries := policy.get("MaximumRetryAttempts"), int):
            made["retry"] = retries
        if "MaximumEventAgeInSeconds" in policy:
            _tell(shown, "MaximumEventAgeInSeconds is not translated", "retry and backoffDelay bound the time")
    letters = target.get("DeadLetterConfig")
    if isinstance(letters, Mapping) and (arn := _text(letters.get("Arn"))):
        if arn in urls:
            made["deadLetterSink"] = {"uri": urls[arn]}
        else:
            _tell(shown, f"the queue {arn} has no URL", "dead letters stay with the trigger: headgate deadletter list")
    return {"delivery": made} if made else {}


def _object(kind: str, name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, **({"spec": spec} if spec else {})}


def _text(value: object) -> str:
    """A text, or the parts that a function of CloudFormation names; "" for none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ".".join(map(str, _leaves(value)))
    return ""


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _named(text: str) -> str:
    """A name of Kubernetes."""
    return _NO_NAME.sub("-", text.lower()).strip("-")[:_NAME_CHARACTERS_MAX].strip("-") or "rule"


def _tell(rule: str, what: str, hint: str) -> None:
    print_error(f"rule {rule}: {what}", hint=hint, word="note")
