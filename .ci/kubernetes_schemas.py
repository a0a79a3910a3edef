"""Writes the schemas of Kubernetes for kubeconform, from the wheel kubernetes-validate of PyPI.

    python3 kubernetes_schemas.py WHEEL VERSION FOLDER KIND-GROUP-VERSION...

Each schema contains the definitions that it refers to, because kubeconform does not load them from files.
"""

import json
import pathlib
import sys
import zipfile


def main() -> None:
    wheel, version, folder, *kinds = sys.argv[1:]
    inside = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    with zipfile.ZipFile(wheel) as archive:
        local = lambda name: archive.read(f"{inside}/{name}.json").decode().replace("/api/_definitions.json#", "#")
        definitions = json.loads(local("_definitions"))["$defs"]
        for kind in kinds:
            schema = json.loads(local(kind)) | {"$defs": definitions}
            schema.pop("$id", None)
            pathlib.Path(folder, f"{kind}.json").write_text(json.dumps(schema))


main()
