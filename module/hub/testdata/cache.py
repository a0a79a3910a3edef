"""Writes cache.json: the folder in which huggingface_hub finds its cache, for combinations of the environment.

    pip install huggingface_hub==2.4.0 && python cache.py
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

NAMES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
VALUES = (
    "/a", "rel", "~", "~/x", "~no-such-user/x", "$D/x", "${D}/x", "$MISSING/x", "${MISSING}/x", "/x/$D", "~/$E", "$$D", "${D", "$D$E",
    "/a/${E}b", "x~y", "/x/~", "$TILDE/x", "/a b/$E-c", "$E.d", "${E}${E}",
)
BASE = {"HOME": "/h/u", "D": "/d", "E": "e", "TILDE": "~"}


def main():
    environments = [{}]
    environments += [{name: value} for name in NAMES for value in VALUES]
    environments += [{a: "/first", b: "/second"} for a, b in itertools.combinations(NAMES, 2)]
    environments += [{"HF_HOME": "$D/h", "XDG_CACHE_HOME": "~/x"}, {"HUGGINGFACE_HUB_CACHE": "~/$E", "HF_HOME": "/h"}, {"HOME": "/"}, {"HOME": "/", "HF_HOME": "~/x"}]
    cases = []
    for env in environments:
        out = subprocess.run(
            [sys.executable, "-c", "from huggingface_hub import constants; print(constants.HF_HUB_CACHE); print(constants.HF_HOME)"],
            env=BASE | env, check=True, capture_output=True, text=True,
        )
        cache, home = out.stdout.splitlines()
        cases.append({"env": BASE | env, "cache": os.path.normpath(cache), "home": os.path.normpath(home)})
    Path(__file__).with_name("cache.json").write_text("[\n" + ",\n".join(" " + json.dumps(c) for c in cases) + "\n]\n")


main()
