package session

import "time"

// An idle session costs a descriptor and counts against the limit of clients. If the owner limits idle time, one timer
// of the server checks all sessions twice per limit. This avoids a timer for each session.

// Linger is the time that clients usually have to close their connection after a goodbye.
const Linger = 250 * time.Millisecond

// sweepIdle ends sessions that were idle in the last two sweeps, and resets the timer.
func (r *Register) sweepIdle() {
	for _, ses := range r.all() {
		if ses.idle() {
			r.Log.Info("idle client", "session", ses.ID, "pid", ses.conn.Peer().PID)
			ses.Goodbye(Linger)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closing {
		r.idleTimer.Reset(r.Limits.Idle / 2)
	}
}

// watchIdle starts the sweeps if idle time is limited.
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

// idle records a sweep and reports whether it is the second in a row in which the session was idle.
func (ses *Session) idle() bool {
	if ses.Own || ses.active.Swap(false) || ses.holdsSomething() {
		ses.idleTicks = 0
		return false
	}
	ses.idleTicks++
	return ses.idleTicks == 2 // not again in later sweeps: one goodbye is enough
}

// holdsSomething reports whether the session has requests in flight, events or other resources.
func (ses *Session) holdsSomething() bool {
	return ses.InFlight.Count() > 0 || ses.Events.Len() > 0 || ses.Client.Busy()
}
