package server

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// authority holds the policy that decides what clients may do, and counts refusals. Without a policy, the users that may
// connect have all rights.
type authority struct {
	policy  atomic.Pointer[access.Policy] // nil for none
	changes sync.Mutex                    // serializes SetPolicy
	refused [access.Destroy + 1]atomic.Uint64
}

// refusals returns the number of refusals of each right that was refused.
func (a *authority) refusals() (list []message.Refusals) {
	for _, right := range access.Rights() {
		if n := a.refused[right].Load(); n > 0 {
			list = append(list, message.Refusals{Right: right.String(), Count: n})
		}
	}
	return list
}

// SetPolicy replaces the policy; nil removes it. It applies to the next request of each client. Clients that may no longer
// connect, or no longer offer one of their endpoints, are disconnected within [session.Linger], also if they wait for
// something. Memory that they have attached stays valid. After an error, the previous policy is in force. The policy must be
// valid, and must not change afterwards.
func (s *Server) SetPolicy(policy *access.Policy) error {
	s.authority.changes.Lock()
	defer s.authority.changes.Unlock()
	before := s.authority.policy.Load()
	if s.socket != nil {
		if err := s.socket.Permit(s.permissionsOf(policy)); err != nil {
			return errors.Join(err, s.socket.Permit(s.permissionsOf(before)))
		}
	}
	s.authority.policy.Store(policy)
	for _, ses := range s.Sessions.Clients() { // those that are admitted later are checked by the new policy
		c := clientOf(ses)
		cut := s.admits(ses) != nil
		if w := c.worker(); w != nil && !cut {
			cut = slices.ContainsFunc(w.Names(), func(name string) bool { return !c.allowed(access.Offer, name) })
		}
		if cut {
			s.Log.Info("the new policy ends a session", "session", ses.ID, "pid", ses.Peer().PID, "uid", ses.Peer().UID)
			ses.Goodbye(session.Linger)
			time.AfterFunc(session.Linger, ses.Cut) // its requests in flight may never end
		}
	}
	return nil
}

// admits is [session.Config].Admits.
func (s *Server) admits(ses *session.Session) error {
	peer, policy := ses.Peer(), s.authority.policy.Load()
	err := ses.Mapped()
	if err == nil && policy == nil {
		err = ses.AllowedUser()
	} else if err == nil {
		if rights := s.rightsOf(ses, policy); rights.May(access.Connect, "") {
			return nil
		}
		err = fmt.Errorf("%w: the owner's policy has no rule for uid %d and gid %d", status.ErrPermission, peer.UID, peer.GID)
	}
	if err != nil {
		s.authority.refused[access.Connect].Add(1)
	}
	return err
}

// rightsOf returns the rights that a policy gives to the client of a session.
func (s *Server) rightsOf(ses *session.Session, policy *access.Policy) access.Grants {
	peer := ses.Peer()
	if ses.InProcess() || peer.SameUser() && !policy.RestrictOwner {
		return access.All()
	}
	groups, err := ses.Groups()
	if err != nil { // its effective group counts
		s.Log.Warn("the groups of a client are unknown", "session", ses.ID, "pid", peer.PID, "error", err)
	}
	return policy.Of(access.Subject{UID: peer.UID, GIDs: groups})
}

// grants are the rights of a client by one policy.
type grants struct {
	by *access.Policy
	access.Grants
}

// allowed reports whether the client has a right.
func (c *client) allowed(right access.Right, name string) bool {
	policy := c.server.authority.policy.Load()
	if policy == nil {
		return right != access.Destroy || ownerOrRoot(c.session)
	}
	g := c.grants.Load()
	if g == nil || g.by != policy {
		g = &grants{policy, c.server.rightsOf(c.session, policy)}
		c.grants.Store(g)
	}
	return g.May(right, name)
}

// restricted reports whether a policy applies to the clients.
func (c *client) restricted() bool { return c.server.authority.policy.Load() != nil }

// sees returns a filter of the names for which the client has a right, or nil if it sees all names.
func (c *client) sees(right access.Right) func(name string) bool {
	if !c.restricted() {
		return nil
	}
	return func(name string) bool { return c.allowed(right, name) }
}

// may returns an error if the client lacks a right, and counts the refusal.
func (c *client) may(right access.Right, name string) error {
	if c.allowed(right, name) {
		return nil
	}
	return c.refuse(right, name)
}

// refuse counts a refusal and returns its error. The first one of each right and client is logged.
func (c *client) refuse(right access.Right, name string) error {
	c.server.authority.refused[right].Add(1)
	peer := c.session.Peer()
	if bit := uint32(1) << right; c.refused.Or(bit)&bit == 0 {
		c.server.Log.Warn("the policy refused a client", append(identity(c.session), "right", right, "name", name)...)
	}
	switch {
	case right == access.Destroy:
		return fmt.Errorf("%w: only the owner's user and root may destroy objects that others hold", status.ErrPermission)
	case name == "":
		return fmt.Errorf("%w: the owner's policy does not give uid %d the right %s", status.ErrPermission, peer.UID, right)
	}
	return fmt.Errorf("%w: the owner's policy does not let uid %d %s %s", status.ErrPermission, peer.UID, right, status.Shown(name))
}

// admitsOthers reports whether other users than the server's own may connect.
func (s *Server) admitsOthers() bool { return s.socketPermissions() != transport.Permissions{} }

// socketPermissions returns the narrowest permissions of the socket file that let in all permitted users: those of the
// owner, of one group, or of everyone, because a file has one group.
func (s *Server) socketPermissions() transport.Permissions {
	return s.permissionsOf(s.authority.policy.Load())
}

func (s *Server) permissionsOf(policy *access.Policy) transport.Permissions {
	uids, gids, everyone := s.Sessions.AllowUIDs, []uint32(nil), false
	if policy != nil {
		uids, gids, everyone = policy.Admits()
	}
	self := uint32(os.Geteuid())
	others := everyone || slices.ContainsFunc(uids, func(uid uint32) bool { return uid != self })
	switch {
	case others || len(gids) > 1:
		return transport.Permissions{Mode: 0o666}
	case len(gids) == 1:
		return transport.Permissions{Mode: 0o660, Group: gids[0], Grouped: true}
	}
	return transport.Permissions{}
}
