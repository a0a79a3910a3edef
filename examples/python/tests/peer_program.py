"""test_isolation.py runs this program. It receives descriptors, maps each file completely, and reports its bytes and
whether it can write them."""

from __future__ import annotations

import json
import mmap
import os
import socket
import stat
import sys


def writable(fd: int) -> bool:
    """Tries to write to a memfd with the descriptor and with a new one from opening it again."""
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        again = os.dup(fd)
    found = False
    for each in (fd, again):
        try:
            mmap.mmap(each, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()
            found = True
        except (PermissionError, OSError):
            pass
    os.close(again)
    return found


def look(fd: int) -> dict[str, object]:
    """Returns the set of bytes in the file, its mode and whether it is writable."""
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        values = sorted(set(memory[:]))
    return {"values": values, "writable": writable(fd), "mode": stat.S_IMODE(os.fstat(fd).st_mode)}


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, files, _, _ = socket.recv_fds(link, 1, 64)
        if not data:
            return
        found = [look(fd) for fd in files]
        for fd in files:
            os.close(fd)
        link.sendall(json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
