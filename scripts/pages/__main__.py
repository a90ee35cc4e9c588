"""Writes the generated pages of docs/reference, or tells which are stale.

python -m scripts.pages           writes the pages
python -m scripts.pages --check   prints the pages that would change; exit status 1 when there are some
"""

from __future__ import annotations

import sys

from scripts.pages.all import PAGES, REFERENCE, stale

if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        names = stale()
        print(*names, sep="\n", end="\n" if names else "")
        sys.exit(bool(names))
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
