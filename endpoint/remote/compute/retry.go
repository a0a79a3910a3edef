package compute

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Retry says how often and with which pauses a client tries. The zero value is that of splitlearn-comm: three attempts,
// pauses of 1 s and 2 s, each up to a quarter longer or shorter.
type Retry struct {
	// Attempts is how many there are, the first one included; 3. 1 for no second one.
	Attempts int
	// Initial is the pause after the first attempt; 1 s. It doubles each time.
	Initial time.Duration
	// Max bounds a pause; 30 s.
	Max time.Duration
	// Jitter is by which part a pause is made longer or shorter at random; 0.25. Negative for none.
	Jitter float64
	// Fixed leaves all pauses as long as Initial.
	Fixed bool
}

// minPause is the shortest pause, unless Initial is shorter.
const minPause = 100 * time.Millisecond

func (r Retry) withDefaults() Retry {
	def(&r.Attempts, 3)
	def(&r.Initial, time.Second)
	def(&r.Max, 30*time.Second)
	def(&r.Jitter, 0.25)
	return r
}

// pause is how long to wait after attempt number n, counted from 0.
func (r Retry) pause(n int) time.Duration {
	pause := r.Initial
	for i := 0; i < n && !r.Fixed && pause < r.Max; i++ {
		pause *= 2
	}
	pause = min(pause, r.Max)
	if r.Jitter > 0 {
		pause += time.Duration((2*rand.Float64() - 1) * r.Jitter * float64(pause))
	}
	return max(pause, min(minPause, r.Initial))
}

// retriable reports whether another attempt could succeed where this one failed: not where the request itself is wrong,
// where the function failed, or where there is no room for it.
func retriable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Unknown:
		return true
	}
	return false
}

// limits bound a call in time: one attempt, and all together.
type limits struct{ timeout, budget time.Duration }

// do calls f until it succeeds, within the limits; safe says of an error that the function surely was
// not run, which is the only case for another attempt where the call is not idempotent.
func (r Retry) do(ctx context.Context, l limits, idempotent bool, f func(ctx context.Context) (safe bool, err error)) error {
	end := time.Now().Add(l.budget)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	for n := 0; ; n++ {
		last := time.Now().Add(l.timeout)
		if end.Before(last) {
			last = end
		}
		attempt, cancel := context.WithDeadline(ctx, last)
		safe, err := f(attempt)
		cancel()
		if err == nil || ctx.Err() != nil || n+1 >= r.Attempts || !retriable(err) || !idempotent && !safe {
			return err
		}
		pause := r.pause(n)
		if time.Until(end) <= pause {
			return err // the budget does not reach for another one: this error says more than a deadline
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
