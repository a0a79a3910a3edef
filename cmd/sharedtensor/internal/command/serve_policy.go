package command

import (
	"fmt"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/policyfile"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

// loadPolicy reads the policy file, or returns nil if there is none.
func loadPolicy(path string) (*access.Policy, error) {
	if path == "" {
		return nil, nil
	}
	return policyfile.Load(path)
}

// reloadPolicy reads the policy file again. If it is invalid, the current policy stays in force.
func (s *service) reloadPolicy() {
	if s.policy == "" {
		return
	}
	policy, err := policyfile.Load(s.policy)
	if err == nil {
		err = s.server.SetPolicy(policy)
	}
	if err != nil {
		s.log.Error("the policy was not loaded again; the previous one stays in force", "error", cli.OneLine(err.Error()))
		return
	}
	s.log.Info("the policy was loaded again", "rules", len(policy.Rules))
}

// openAudit returns the log of changes: lines of JSON at the end of a file, which the caller closes, or the owner's log.
func openAudit(path string, log *slog.Logger) (audit *slog.Logger, file *logs.File, err error) {
	if path == "" {
		return log, nil, nil
	}
	if file, err = logs.OpenFile(path); err != nil {
		return nil, nil, fmt.Errorf("--audit: %w", err)
	}
	return slog.New(slog.NewJSONHandler(file, nil)), file, nil
}

// reopenAudit continues the audit log in the file that has its path now, after a rotation.
func (s *service) reopenAudit() {
	if s.auditFile == nil {
		return
	}
	if err := s.auditFile.Reopen(); err != nil {
		s.log.Error("the audit log was not opened again; it continues in the previous file", "error", err)
	}
}
