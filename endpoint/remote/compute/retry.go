package compute

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
)

// Retry configures the number of attempts and the pauses between them. The zero value has the defaults of
// splitlearn-comm: three attempts with pauses of 1 s and 2 s, each varied by up to a quarter.
type Retry struct {
	// Attempts is the maximum number of attempts, including the first; 3. 1 disables retries.
	Attempts int
	// Initial is the pause after the first attempt; 1 s. It doubles each time.
	Initial time.Duration
	// Max bounds a pause; 30 s.
	Max time.Duration
	// Jitter varies each pause at random by up to this fraction of it; 0.25. Negative for none.
	Jitter float64
	// Fixed makes all pauses equal to Initial.
	Fixed bool
}

// minPause is the shortest pause, unless Initial is shorter.
const minPause = 100 * time.Millisecond

func (r Retry) withDefaults() Retry {
	r.Attempts = cmp.Or(r.Attempts, 3)
	r.Initial = cmp.Or(r.Initial, time.Second)
	r.Max = cmp.Or(r.Max, 30*time.Second)
	r.Jitter = cmp.Or(r.Jitter, 0.25)
	return r
}

// backoff returns the pauses between attempts.
func (r Retry) backoff() retry.Backoff {
	if r.Fixed {
		return retry.Backoff{Initial: r.Initial, Max: r.Initial, Jitter: r.Jitter}
	}
	return retry.Backoff{Initial: r.Initial, Max: r.Max, Jitter: r.Jitter}
}

// retriable reports whether another attempt could succeed. That is false if the request is invalid, the function
// failed, or a limit was exceeded.
func retriable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Unknown:
		return true
	}
	return false
}

// limits are the time limits of a call: for one attempt and for all attempts together.
type limits struct{ timeout, budget time.Duration }

// do calls f until it succeeds, within the limits. safe reports that the function certainly did not run; a call that is
// not idempotent is retried only then.
func (r Retry) do(ctx context.Context, l limits, idempotent bool, f func(ctx context.Context) (safe bool, err error)) error {
	end := time.Now().Add(l.budget)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	var safe bool
	policy := retry.Policy{Backoff: r.backoff(), Attempts: r.Attempts, Until: end, Again: func(err error) (bool, time.Duration) {
		return retriable(err) && (idempotent || safe), min(minPause, r.Initial)
	}}
	return policy.Do(ctx, func() (bool, error) {
		last := time.Now().Add(l.timeout)
		if end.Before(last) {
			last = end
		}
		attempt, cancel := context.WithDeadline(ctx, last)
		defer cancel()
		var err error
		safe, err = f(attempt)
		return false, err
	})
}
