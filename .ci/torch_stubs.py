"""Builds stub libraries so that PyPI's torch can be imported without NVIDIA's packages, which have some gigabytes.

    pip install --no-deps torch && pip install filelock typing_extensions sympy networkx jinja2 fsspec
    python3 torch_stubs.py SITE_PACKAGES/torch/lib

A stub has the soname, the symbol versions and the undefined symbols that torch's libraries expect. Its functions return an
error, so torch reports that there is no GPU, and computes on the CPU. torch finds the stubs beside its own libraries. It
needs cc and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so[.\d]*")
"""Libraries of NVIDIA's packages: libcudart.so.13, libnvrtc.so.13, libnccl.so.2."""
SYMBOL = re.compile(r"_*(cuda|cu[A-Z_a-z]|cublas|cudnn|nccl|nvrtc|nvshmem|cusp|cufft|cuFile|cupti|nvml|nvJitLink)")
NO_DEVICE = 100
"""The error cudaErrorNoDevice, which is CUDA_ERROR_NO_DEVICE too."""


@dataclass
class Stub:
    """What a library has to define: its versions, and the symbols of each; version "" for those without."""

    symbols: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def readelf(flag: str, library: Path) -> list[str]:
    done = subprocess.run(["readelf", "-W", flag, library], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def collect(folder: Path) -> dict[str, Stub]:
    """Returns the stubs that torch's libraries in a folder need."""
    stubs: dict[str, Stub] = defaultdict(Stub)
    home: dict[str, str] = {}  # version -> library
    present = {path.name for path in folder.glob("*.so*")}
    undefined: set[tuple[str, str]] = set()
    for path in sorted(folder.glob("*.so*")):
        if LIBRARY.fullmatch(path.name):
            continue  # a stub of an earlier run
        for line in readelf("-d", path):
            needed = re.search(r"\(NEEDED\).*\[(.*)\]", line)
            if needed and LIBRARY.fullmatch(needed[1]):
                stubs[needed[1]].symbols[""]  # at least an empty library
        library = ""
        for line in readelf("-V", path):
            if found := re.search(r" File: (\S+)", line):
                library = found[1]
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and LIBRARY.fullmatch(library):
                home[found[1]] = library
                stubs[library].symbols[found[1]]
        for line in readelf("--dyn-syms", path):
            words = line.split()
            if len(words) > 7 and words[6] == "UND":
                name, _, version = words[7].partition("@")
                undefined.add((name, version.lstrip("@")))
    for name, version in undefined:
        if version in home:
            stubs[home[version]].symbols[version].add(name)
        elif not version and SYMBOL.match(name):
            for stub in stubs.values():  # its library is not recorded
                stub.symbols[""].add(name)
    return {name: stub for name, stub in stubs.items() if name not in present or LIBRARY.fullmatch(name)}


def source(stub: Stub) -> str:
    """Returns the C program: functions that return an error, or a pointer or text where that is used at the start."""
    lines = ["static const char text[] = \"no GPU\";"]
    for name in sorted({name for names in stub.symbols.values() for name in names}):
        if name.startswith("__cuda"):
            lines.append(f"void *{name}(void) {{ return 0; }}")
        elif "String" in name or "ErrorName" in name:
            lines.append(f"const char *{name}(void) {{ return text; }}")
        else:
            lines.append(f"int {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def version_script(stub: Stub) -> str:
    """Returns the linker's map from versions to symbols."""
    blocks = []
    for version, names in stub.symbols.items():
        if version:
            listed = f"global: {'; '.join(sorted(names))};" if names else ""
            blocks.append(f"{version} {{ {listed} }};")
    return "\n".join(blocks) + "\n"


def build(name: str, stub: Stub, folder: Path) -> None:
    """Compiles a stub into a folder."""
    with tempfile.TemporaryDirectory() as work:
        c, script = Path(work, "stub.c"), Path(work, "stub.map")
        c.write_text(source(stub))
        script.write_text(version_script(stub))
        command = ["cc", "-w", "-O1", "-shared", "-fPIC", "-o", str(folder / name), f"-Wl,-soname,{name}", str(c)]
        if any(stub.symbols):
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    for name, stub in sorted(collect(folder).items()):
        build(name, stub, folder)
        print(name, sum(len(names) for names in stub.symbols.values()), "symbols")


if __name__ == "__main__":
    main()
