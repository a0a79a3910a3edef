"""Reads the JSON of govulncheck and fails if the code calls a vulnerable function of a module.

    govulncheck -format json ./... | python3 .ci/vulnerable.py

Vulnerabilities of Go itself are listed, but do not fail: the remedy is a newer Go, not a change.
"""

import json
import sys


def objects(text: str):
    """Yields the JSON values of a stream."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        yield value
        at = end
        while at < len(text) and text[at].isspace():
            at += 1


def main() -> int:
    summaries, go, called, imported = {}, {}, {}, set()
    seen = 0
    for value in objects(sys.stdin.read().strip()):
        seen += 1
        if osv := value.get("osv"):
            summaries[osv["id"]] = osv.get("summary") or osv.get("details", "")[:80]
        if finding := value.get("finding"):
            top = finding["trace"][0]
            row = (finding["osv"], top["module"], top.get("version", ""), finding.get("fixed_version", "no version"))
            if "function" not in top:
                imported.add(finding["osv"])
            elif top["module"] == "stdlib":
                go[finding["osv"]] = row
            else:
                called[finding["osv"]] = row
    if not seen:
        print("govulncheck wrote nothing")
        return 1
    for title, rows in (("Go has, use a newer one:", go), ("the code calls:", called)):
        if rows:
            print(title)
        for id, module, version, fix in sorted(rows.values()):
            print(f"  {id} {module} {version}, fixed in {fix}: {summaries.get(id, '')}")
    print(f"{len(called)} of modules, {len(go)} of Go, {len(imported - set(go) - set(called))} in code that is not called")
    return 1 if called else 0


sys.exit(main())
