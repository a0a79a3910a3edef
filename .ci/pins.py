"""Checks that each workflow uses actions by the hash of a commit, with the version in a comment.

    python3 .ci/pins.py

A tag can be moved to another commit, a hash cannot.
"""

import pathlib
import re
import sys

USES = re.compile(r"^\s*(?:- )?uses:\s*(\S+)\s*(#.*)?$", re.MULTILINE)
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
VERSION = re.compile(r"^# v\d+(\.\d+)*$")


def main() -> int:
    root = pathlib.Path(__file__).resolve().parents[1]
    bad, count, versions = [], 0, {}
    for file in sorted((root / ".github/workflows").glob("*.y*ml")):
        for action, comment in USES.findall(file.read_text()):
            if action.startswith("./"):
                continue
            count += 1
            if not PINNED.match(action):
                bad.append(f"{file.relative_to(root)}: {action} is not pinned to the hash of a commit")
            elif not VERSION.match(comment):
                bad.append(f"{file.relative_to(root)}: {action} has no comment with its version, such as # v1.2.3")
            name, _, commit = action.partition("@")
            if versions.setdefault(name, (commit, comment)) != (commit, comment):
                bad.append(f"{file.relative_to(root)}: {name} is used in two versions")
    print("\n".join(bad) or f"{count} uses of {len(versions)} actions are pinned")
    return 1 if bad or not count else 0


sys.exit(main())
