package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// firstActivated is the first descriptor that a service manager hands over (SD_LISTEN_FDS_START in sd_listen_fds(3)).
const firstActivated = 3

// ActivatedListener returns the socket that the service manager has bound and handed over, owned by the caller, or nil
// where there is none (sd_listen_fds(3)). The variables that announce it are removed, so that no child takes them for
// its own.
func ActivatedListener() (*net.UnixListener, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	if pid == "" || count == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("socket activation: %w", err)
		}
	}
	switch n, err := strconv.Atoi(count); {
	case err != nil || n < 0:
		return nil, fmt.Errorf("socket activation: LISTEN_FDS is %q, not a number", count)
	case n == 0:
		return nil, nil
	case n > 1:
		return nil, fmt.Errorf("socket activation: %d sockets are handed over, one is needed: use one ListenStream= in the socket unit", n)
	}
	l, err := listenerOf(firstActivated)
	if err != nil {
		return nil, fmt.Errorf("socket activation: descriptor %d: %w", firstActivated, err)
	}
	return l, nil
}

// listenerOf makes a listener of a descriptor, which it takes, after asking the kernel what it is.
func listenerOf(fd int) (*net.UnixListener, error) {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "activated socket")
	defer f.Close() // net.FileListener has one of its own
	for _, want := range []struct {
		option, value int
		what          string
	}{
		{syscall.SO_DOMAIN, syscall.AF_UNIX, "a Unix socket"},
		{syscall.SO_TYPE, syscall.SOCK_STREAM, "a stream socket"},
		{syscall.SO_ACCEPTCONN, 1, "a listening socket"},
	} {
		got, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, want.option)
		if err != nil {
			return nil, fmt.Errorf("it is not %s: %w", want.what, os.NewSyscallError("getsockopt", err))
		}
		if got != want.value {
			return nil, fmt.Errorf("it is not %s", want.what)
		}
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("it is a %s", l.Addr().Network()), l.Close())
	}
	return unix, nil
}
