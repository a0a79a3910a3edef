package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// firstActivated is the first descriptor that a service manager passes (SD_LISTEN_FDS_START in sd_listen_fds(3)).
const firstActivated = 3

// ActivatedListener returns the socket that the service manager has bound and passed (sd_listen_fds(3)), or nil if
// there is none. The caller owns it. The environment variables of the protocol are removed, so that child processes do
// not use them.
func ActivatedListener() (*net.UnixListener, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if pid == "" || count == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("socket activation: %w", err)
		}
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("socket activation: LISTEN_FDS is %q, not a number", count)
	}
	sockets := passedSockets(n, names)
	switch len(sockets) {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, fmt.Errorf("socket activation: the service manager passed %d sockets: use one ListenStream= in the socket unit", len(sockets))
	}
	l, err := listenerOf(sockets[0])
	if err != nil {
		return nil, fmt.Errorf("socket activation: descriptor %d: %w", sockets[0], err)
	}
	return l, nil
}

// passedSockets returns the passed descriptors that are not of the descriptor store (package keeper).
func passedSockets(count int, names string) (fds []int) {
	list := strings.Split(names, ":")
	for i := range count {
		if i >= len(list) || !strings.HasPrefix(list[i], "sharedtensor.") {
			fds = append(fds, firstActivated+i)
		}
	}
	return fds
}

// listenerOf returns a listener for a descriptor and takes ownership of it. It verifies the socket's type and state.
func listenerOf(fd int) (*net.UnixListener, error) {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "activated socket")
	defer f.Close() // net.FileListener duplicates the descriptor
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
