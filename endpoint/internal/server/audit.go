package server

import (
	"fmt"
	"os"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Changes in the audit log.
const (
	changePublish    = "publish"
	changeRollback   = "rollback"
	changeWithdraw   = "withdraw"
	changeOffer      = "offer"
	changeOfferEnds  = "offer ends"
	changeDestroy    = "destroy"
	changeInvalidate = "invalidate"
)

// audit writes one line about a change that a client has made.
func (c *client) audit(change string, attrs ...any) {
	if log := c.server.Audit; log != nil {
		log.Info("audit", append(append([]any{"change", change}, attrs...), identity(c.session)...)...)
	}
}

// AuditOwn writes one line about a change by the server's own process.
func (s *Server) AuditOwn(change string, attrs ...any) {
	if s.Audit != nil {
		s.Audit.Info("audit", append(append([]any{"change", change}, attrs...), identity(s.Sessions.Self())...)...)
	}
}

// identity returns attributes that identify the process of a client: by the kernel's credentials, by its program, and by
// its label, which proves nothing.
func identity(ses *session.Session) []any {
	peer := ses.Peer()
	return []any{
		"uid", peer.UID, "gid", peer.GID, "pid", peer.PID, "exe", executable(peer.PID), "session", ses.ID, "label", ses.Label(),
	}
}

// maxExecutable is the maximum size of the path of a program in the log.
const maxExecutable = 512

// executable returns the path of the program that a process runs now. If this process may not read it, which needs the
// same user or CAP_SYS_PTRACE, it is the kernel's name of the process in brackets.
func executable(pid int32) string {
	dir := fmt.Sprintf("/proc/%d/", pid)
	if path, err := os.Readlink(dir + "exe"); err == nil {
		return status.ShortText(path, maxExecutable)
	}
	if name, err := os.ReadFile(dir + "comm"); err == nil {
		return "[" + status.ShortText(strings.TrimSpace(string(name)), maxExecutable) + "]"
	}
	return "unknown" // it has ended, or is in a PID namespace that this process does not see
}
