package command

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
)

// notifyUpgrade relays requests to upgrade.
func notifyUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }

// signalOwner requests an upgrade of the process that serves on the socket. The process must have the user of this one or
// be accessible to root, and must be a sharedtensor serve: SIGUSR2 ends other programs.
func signalOwner(socket string, pid int) error {
	p, err := os.FindProcess(pid) // holds a pidfd, so the signal reaches this process or none
	if err != nil {
		return fmt.Errorf("the owner of %s, process %d, is not visible here: %w", socket, pid, err)
	}
	defer func() { _ = p.Release() }() // best effort
	if !sameUser(fmt.Sprintf("/proc/%d", pid), socket) {
		return fmt.Errorf("%w: the server of %s names process %d, which is not a process of the user that owns the socket", driver.ErrInvalid, socket, pid)
	}
	if !catches(pid, syscall.SIGUSR2) {
		return fmt.Errorf("%w: process %d does not support upgrades: it must run sharedtensor serve of this version", driver.ErrInvalid, pid)
	}
	if err := p.Signal(syscall.SIGUSR2); err != nil {
		return fmt.Errorf("signal the owner, process %d: %w", pid, err)
	}
	return nil
}

// sameUser reports whether one user owns both files. The number of the process is a claim of the server, which must not
// make another user signal an unrelated process.
func sameUser(a, b string) bool {
	var x, y syscall.Stat_t
	return syscall.Stat(a, &x) == nil && syscall.Stat(b, &y) == nil && x.Uid == y.Uid
}

// catches reports whether a process has a handler for a signal, from the line SigCgt of /proc/PID/status (proc(5)).
func catches(pid int, which syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, found := strings.Cut(string(text), "SigCgt:")
	mask, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	bits, err := strconv.ParseUint(mask, 16, 64)
	return found && err == nil && bits&(1<<(which-1)) != 0
}
