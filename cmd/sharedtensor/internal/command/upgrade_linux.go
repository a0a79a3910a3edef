package command

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/wire"
)

// notifyUpgrade relays requests to upgrade.
func notifyUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }

// signalOwner requests an upgrade of the process that serves on the socket. The kernel names that process: the owner's claim
// may be the number of an unrelated process, also because it has another PID namespace. The process must be a sharedtensor
// serve, because SIGUSR2 ends other programs.
func signalOwner(socket string, claimed int) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	conn, err := wire.NewConn(c, wire.Limits{})
	if err != nil {
		return err
	}
	peer := conn.Peer()
	conn.Close()
	pid := int(peer.PID)
	if pid <= 0 {
		return fmt.Errorf("%w: the owner of %s is not visible in this PID namespace: run upgrade in the container of the owner, or on the host",
			driver.ErrInvalid, socket)
	}
	p, err := os.FindProcess(pid) // holds a pidfd, so the signal reaches this process or none
	if err != nil {
		return fmt.Errorf("the owner of %s, process %d, is not visible here: %w", socket, pid, err)
	}
	defer func() { _ = p.Release() }() // best effort
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return fmt.Errorf("the owner of %s, process %d: %w", socket, pid, err)
	}
	if own := ownPID(string(status), pid); own != claimed {
		return fmt.Errorf("%w: process %d listens on %s, but its server reports process %d in its PID namespace, where that process is %d: restart the owner instead",
			driver.ErrInvalid, pid, socket, claimed, own)
	}
	if !catches(string(status), syscall.SIGUSR2) {
		return fmt.Errorf("%w: process %d does not support upgrades: it must run sharedtensor serve of this version", driver.ErrInvalid, pid)
	}
	if err := p.Signal(syscall.SIGUSR2); err != nil {
		return fmt.Errorf("signal the owner, process %d: %w", pid, err)
	}
	return nil
}

// ownPID returns the id of a process in its own PID namespace: the last one of the line NSpid of /proc/PID/status (proc(5)),
// or pid without that line.
func ownPID(status string, pid int) int {
	_, rest, _ := strings.Cut(status, "\nNSpid:")
	ids, _, _ := strings.Cut(rest, "\n")
	words := strings.Fields(ids)
	if len(words) == 0 {
		return pid
	}
	own, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return pid
	}
	return own
}

// catches reports whether a process has a handler for a signal, from the line SigCgt of /proc/PID/status (proc(5)).
func catches(status string, which syscall.Signal) bool {
	_, rest, found := strings.Cut(status, "SigCgt:")
	mask, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	bits, err := strconv.ParseUint(mask, 16, 64)
	return found && err == nil && bits&(1<<(which-1)) != 0
}
