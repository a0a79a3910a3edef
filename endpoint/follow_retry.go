package endpoint

import "time"

// retries are attempts to attach a version that could not be attached: with pauses that double, for what is in the
// way, memory or a limit, may go away without anybody telling.
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
