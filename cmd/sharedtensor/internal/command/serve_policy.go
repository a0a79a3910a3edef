package command

import (
	"log/slog"
	"os"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/policyfile"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
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

// openAudit returns the log of changes: lines of JSON at the end of a file, or the owner's log. Call close at the end.
func openAudit(path string, log *slog.Logger) (audit *slog.Logger, close func() error, err error) {
	if path == "" {
		return log, func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return slog.New(slog.NewJSONHandler(f, nil)), f.Close, nil
}
