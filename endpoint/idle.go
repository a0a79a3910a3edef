package endpoint

import (
	"maps"
	"slices"
	"time"
)

// A session that holds nothing and asks for nothing costs a descriptor and one of the clients that there may be. Where
// the owner has a limit for that, one timer of the server looks at all sessions twice within the limit, instead of a
// timer each.

// sweepIdle closes sessions that were idle in the last two sweeps, and sets the timer again.
func (s *Server) sweepIdle() {
	s.mu.Lock()
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, ses := range sessions {
		if ses.idle() {
			s.log.Info("idle client", "session", ses.id, "pid", ses.conn.Peer().PID)
			ses.goodbye()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.idleTimer.Reset(s.opts.Limits.Idle / 2)
	}
}

// watchIdle begins to look for idle sessions, where there is a limit for them.
func (s *Server) watchIdle() {
	if s.opts.Limits.Idle <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing && s.idleTimer == nil {
		s.idleTimer = time.AfterFunc(s.opts.Limits.Idle/2, s.sweepIdle)
	}
}

// idle reports whether the session has been idle for two looks in a row, of which this is the last.
func (ses *session) idle() bool {
	if ses.own || ses.active.Swap(false) || ses.holdsSomething() {
		ses.idleTicks = 0
		return false
	}
	ses.idleTicks++
	return ses.idleTicks == 2 // once: a goodbye is said once
}

// holdsSomething reports whether the session has leases, references, watches, offers or requests in flight.
func (ses *session) holdsSomething() bool {
	ses.mu.Lock()
	running := len(ses.running)
	ses.mu.Unlock()
	subscriptions := ses.events.Len() // each lease has one
	if w := ses.offered(); w != nil {
		running += w.Running()
	}
	offered, _ := ses.offerings()
	running += offered
	return running+subscriptions > 0 || ses.server.engine.Objects.HeldBy(ses.id) > 0
}
