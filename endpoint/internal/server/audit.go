package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

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

// auditLog writes the audit log and counts the lines that it could not write.
type auditLog struct {
	lost     atomic.Uint64
	reported atomic.Int64 // time of the last report, in nanoseconds
}

// auditReports is the minimum interval between two reports of lost lines.
const auditReports = time.Minute

// audit writes one line about a change that a client has made.
func (c *client) audit(change string, attrs ...any) {
	_ = c.server.record(c.session, change, attrs) // reported and counted
}

// AuditOwn writes one line about a change by the server's own process.
func (s *Server) AuditOwn(change string, attrs ...any) {
	_ = s.record(s.Sessions.Self(), change, attrs) // reported and counted
}

// mayChange is called before a change. With [Config].RequireAudit, it writes a line about the request, and returns an error if
// it cannot be written.
func (c *client) mayChange(change string, attrs ...any) error {
	return c.server.requireAudit(c.session, change, attrs)
}

// MayChangeOwn is mayChange for a change by the server's own process.
func (s *Server) MayChangeOwn(change string, attrs ...any) error {
	return s.requireAudit(s.Sessions.Self(), change, attrs)
}

func (s *Server) requireAudit(ses *session.Session, change string, attrs []any) error {
	if !s.RequireAudit {
		return nil
	}
	if err := s.record(ses, change, append([]any{"state", "requested"}, attrs...)); err != nil {
		return fmt.Errorf("%w: this owner requires a record of each change, and its audit log cannot be written: %w", status.ErrUnavailable, err)
	}
	return nil
}

// record writes one line. If that fails, it counts the line and reports the reason in the log.
func (s *Server) record(ses *session.Session, change string, attrs []any) error {
	if s.Audit == nil {
		return nil
	}
	ctx := context.Background()
	if !s.Audit.Enabled(ctx, slog.LevelInfo) {
		return fmt.Errorf("%w: the level of the audit log is above info", status.ErrInvalid)
	}
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	r.Add("change", change)
	r.Add(attrs...)
	r.Add(identity(ses)...)
	err := s.Audit.Handler().Handle(ctx, r)
	if err == nil {
		return nil
	}
	lost := s.audited.lost.Add(1)
	now, last := time.Now().UnixNano(), s.audited.reported.Load()
	if (last == 0 || now-last >= int64(auditReports)) && s.audited.reported.CompareAndSwap(last, now) {
		s.Log.Error("changes are missing in the audit log", "lines", lost, "error", err)
	}
	return err
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
