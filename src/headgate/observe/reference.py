"""docs/reference/metrics.md, generated from the declared table.

python -m headgate.observe.reference > docs/reference/metrics.md
"""

from __future__ import annotations

from headgate.observe.metrics import DECLARED, OTHER

_HEAD = """# Metrics

Written by `python -m headgate.observe.reference` from `src/headgate/observe/metrics.py`; a test compares the two.
All processes' numbers are on `/metrics` of the server's one port, at most a second old;
[observing.md](../observing.md) says how they are meant.

| metric | kind | label | what |
|---|---|---|---|
"""


def markdown() -> str:
    """The page."""
    rows = []
    for name, family in DECLARED.items():
        if not family.label:
            label = ""
        elif family.values:
            label = f"`{family.label}`: {', '.join(family.values)}, {OTHER}"
        else:
            label = f"`{family.label}`: at most {family.labels_max}"
        rows.append(f"| `{name}` | {family.kind} | {label} | {family.help} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(markdown(), end="")
