package endpoint

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// SetPolicy replaces the policy of [ServerOptions]. It applies to the next request of each client. Clients that may no
// longer connect, or no longer offer one of their endpoints, are disconnected. Their memory stays valid, because it cannot
// be taken from a process. Nil removes the policy. It fails with [ErrConfiguration] if the policy is invalid; the previous
// one then stays in force. The policy must not change afterwards.
func (s *Server) SetPolicy(policy *access.Policy) error {
	if err := checkPolicy(policy, s.core.AllowUIDs); err != nil {
		return err
	}
	if err := s.core.MayChangeOwn("policy", "rules", rulesOf(policy)); err != nil {
		return err
	}
	if err := s.core.SetPolicy(policy); err != nil {
		return err
	}
	s.core.AuditOwn("policy", "rules", rulesOf(policy))
	return nil
}

func rulesOf(policy *access.Policy) int {
	if policy == nil {
		return 0
	}
	return len(policy.Rules)
}

// checkPolicy returns an error for an invalid policy, or for one with another list of users beside it.
func checkPolicy(policy *access.Policy, allowed []uint32) error {
	if policy == nil {
		return nil
	}
	if len(allowed) > 0 {
		return status.Configuration(fmt.Errorf("%w: a policy replaces AllowUIDs; add a rule for these users", status.ErrInvalid))
	}
	if err := policy.Check(); err != nil {
		return status.Configuration(fmt.Errorf("%w: %w", status.ErrInvalid, err))
	}
	return nil
}
