package endpoint

import "time"

// retries schedules attempts to attach a version after a failure. Pauses double, because the cause, such as missing
// memory or a limit, may disappear without an event.
type retries struct {
	refused serverVersion // the version that Validate refused last
	pause   time.Duration
	timer   <-chan time.Time
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

func (r *retries) begin()                { r.pause = 0 }
func (r *retries) stop()                 { r.pause, r.timer = 0, nil }
func (r *retries) due() <-chan time.Time { return r.timer }

func (r *retries) again() {
	r.pause = min(max(firstRetry, 2*r.pause), lastRetry)
	r.timer = time.After(r.pause)
}
