package session

import "time"

// A session that holds nothing and asks for nothing costs a descriptor and one of the clients that there may be. Where
// the owner has a limit for that, one timer of the server looks at all sessions twice within the limit, instead of a
// timer each.

// sweepIdle closes sessions that were idle in the last two sweeps, and sets the timer again.
func (r *Register) sweepIdle() {
	for _, ses := range r.all() {
		if ses.idle() {
			r.Log.Info("idle client", "session", ses.ID, "pid", ses.conn.Peer().PID)
			ses.Goodbye()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closing {
		r.idleTimer.Reset(r.Limits.Idle / 2)
	}
}

// watchIdle begins to look for idle sessions, where there is a limit for them.
func (r *Register) watchIdle() {
	if r.Limits.Idle <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closing && r.idleTimer == nil {
		r.idleTimer = time.AfterFunc(r.Limits.Idle/2, r.sweepIdle)
	}
}

// idle reports whether the session has been idle for two looks in a row, of which this is the last.
func (ses *Session) idle() bool {
	if ses.Own || ses.active.Swap(false) || ses.holdsSomething() {
		ses.idleTicks = 0
		return false
	}
	ses.idleTicks++
	return ses.idleTicks == 2 // once: a goodbye is said once
}

// holdsSomething reports whether the session has leases, references, watches, offers or requests in flight.
func (ses *Session) holdsSomething() bool {
	busy := ses.InFlight.Count() + ses.Events.Len() // each lease has one
	if w := ses.Offered(); w != nil {
		offered, _ := w.Offered()
		busy += w.Running() + offered
	}
	return busy > 0 || ses.of.Engine.Objects.HeldBy(ses.ID) > 0
}
