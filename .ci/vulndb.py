"""Writes Go's vulnerability database for govulncheck -db, from the source of the module golang.org/x/vulndb.

    python3 .ci/vulndb.py MODULE FOLDER

The module proxy has the module, also where the database's own host cannot be reached. The layout is that of
https://go.dev/doc/security/vuln/database.
"""

import json
import pathlib
import sys


def fixed(affected: dict) -> str:
    """Returns the newest version that fixes a vulnerability of a module, or an empty text."""
    versions = [event["fixed"] for r in affected.get("ranges", []) for event in r.get("events", []) if "fixed" in event]
    return versions[-1] if versions else ""


def main() -> None:
    source, folder = pathlib.Path(sys.argv[1], "data/osv"), pathlib.Path(sys.argv[2])
    for name in ("ID", "index"):
        folder.joinpath(name).mkdir(parents=True, exist_ok=True)
    modules: dict[str, dict[str, dict]] = {}
    newest = ""
    for file in sorted(source.glob("GO-*.json")):
        text = file.read_text()
        entry = json.loads(text)
        folder.joinpath("ID", file.name).write_text(text)
        newest = max(newest, entry.get("published", ""))
        for affected in entry.get("affected", []):
            row = {"id": entry["id"], "modified": entry.get("published", "")}
            if version := fixed(affected):
                row["fixed"] = version
            modules.setdefault(affected["package"]["name"], {})[entry["id"]] = row
    if not modules:
        sys.exit(f"{source} has no entries")
    index = [{"path": path, "vulns": list(rows.values())} for path, rows in sorted(modules.items())]
    folder.joinpath("index/modules.json").write_text(json.dumps(index))
    folder.joinpath("index/db.json").write_text(json.dumps({"modified": newest}))
    print(f"{len(list(source.glob('GO-*.json')))} vulnerabilities of {len(modules)} modules, as of {newest[:10]}")


main()
