"""`headgate migrate eventbridge`: rules of the AWS CLI and of CloudFormation become triggers that are admitted."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.filter.compile.compiler import compile_filter
from headgate_api.objects.kinds import PAUSED_ANNOTATION
from headgate_api.objects.manifests import read_text
from tests.commands import Said, headgate
from tests.docs.commands import steps
from tests.support import REPOSITORY

PATTERN = {"detail-type": ["order.paid"], "detail": {"total": [{"numeric": [">", 100]}]}}
ARN = "arn:aws:lambda:eu-west-1:111122223333:function:billing"


def migrated(tmp_path: Path, document: object, *options: str) -> tuple[list[dict[str, Any]], Said]:
    (tmp_path / "rules").write_text(document if isinstance(document, str) else json.dumps(document))
    said = headgate("migrate", "eventbridge", tmp_path / "rules", *options)
    assert said.exit_code == 0, said.stderr
    objects = list(yaml.safe_load_all(said.stdout))
    assert len(list(read_text(said.stdout.encode(), "stdout"))) == len(objects)
    for one in objects:
        if one["kind"] == "Trigger":
            compile_filter(one["spec"]["filter"])
    return objects, said


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    made, shown, *_ = steps(REPOSITORY / "docs" / "howto" / "eventbridge.md")
    file, _, command = made.text.partition("EOF\nheadgate")
    subprocess.run(["bash", "-ec", f"{file}EOF\n"], cwd=tmp_path, check=True, timeout=20)
    words = shlex.split(command.partition(" > ")[0].replace("\\\n", ""))
    words[words.index("rules.json")] = str(tmp_path / "rules.json")
    said = headgate(*words)
    assert said.stdout == shown.text, said.stderr
    page = (REPOSITORY / "docs" / "howto" / "eventbridge.md").read_text()
    assert said.stderr in page


def test_a_template_becomes_a_trigger_for_each_target(tmp_path: Path) -> None:
    template = f"""
Resources:
  Queue: {{Type: AWS::SQS::Queue}}
  LargeOrders:
    Type: AWS::Events::Rule
    Properties:
      State: DISABLED
      EventPattern: {json.dumps(PATTERN)}
      Targets:
        - {{Id: Bill, Arn: "{ARN}", DeadLetterConfig: {{Arn: dead}}, InputPath: $.detail}}
        - {{Id: Mail, Arn: {{"Fn::GetAtt": [Mailer, Arn]}}}}
"""
    objects, said = migrated(
        tmp_path, template, "--url", f"{ARN}=http://b.example/", "--url", "dead=http://d/", "-n", "s"
    )
    broker, bill, mail = objects
    assert (broker["kind"], broker["metadata"]) == ("Broker", {"name": "default", "namespace": "s"})
    assert [one["metadata"]["name"] for one in (bill, mail)] == ["largeorders-bill", "largeorders-mail"]
    assert bill["spec"]["filter"] == {"eventPattern": PATTERN}
    assert bill["spec"]["subscriber"]["uri"] == "http://b.example/"
    assert bill["spec"]["delivery"] == {"deadLetterSink": {"uri": "http://d/"}}
    assert bill["metadata"]["annotations"] == {PAUSED_ANNOTATION: "true"}
    for told in ("InputPath", "Mailer.Arn", "disabled"):
        assert told in said.stderr


def test_triggers_have_names_of_their_own(tmp_path: Path) -> None:
    rules = [
        {"Name": name, "EventPattern": json.dumps(PATTERN)} for name in ("My_Rule", "my-rule", "MY.RULE", "x" * 90)
    ]
    objects, _ = migrated(tmp_path, {"Rules": rules})
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Trigger"]
    assert names == ["my-rule", "my-rule-2", "my-rule-2-2", "x" * 63]


@pytest.mark.parametrize(
    ("document", "options", "why"),
    [
        ("{}", [], "has no rules"),
        ("[]", [], "is no object"),
        ("a: [", [], "no YAML"),
        ({"Rules": [{"Name": "a", "EventPattern": "{}"}]}, ["--url", "x"], "--url is not ARN=URL"),
    ],
)
def test_what_is_no_file_of_rules_is_refused(tmp_path: Path, document: object, options: list[str], why: str) -> None:
    (tmp_path / "rules").write_text(document if isinstance(document, str) else json.dumps(document))
    said = headgate("migrate", "eventbridge", tmp_path / "rules", *options)
    assert (said.exit_code, said.stdout) == (1, "")
    assert why in said.stderr
    assert "hint: " in said.stderr
