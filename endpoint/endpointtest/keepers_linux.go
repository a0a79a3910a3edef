package endpointtest

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// endListeners kills the processes that listen on sockets in the directory and waits until they no longer do. They are keepers
// that the owner started: a keeper has its own session and outlives its owner by design.
func endListeners(dir string) {
	entries, _ := os.ReadDir(dir) // nothing to end if it is gone
	for _, e := range entries {
		for end := time.Now().Add(dialLimit); e.Type()&os.ModeSocket != 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			pid := listenerOf(filepath.Join(dir, e.Name()))
			if pid <= 0 || pid == os.Getpid() {
				break
			}
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// listenerOf returns the process that listens on a socket; 0 if none does.
func listenerOf(path string) int {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}
