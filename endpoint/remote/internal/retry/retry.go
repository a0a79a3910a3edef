// Package retry computes and waits for the pauses between attempts.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff describes pauses that double.
type Backoff struct {
	// Initial is the first pause. The others double, up to Max.
	Initial, Max time.Duration
	// Jitter varies each pause at random by up to this fraction of it. 0 or less means none.
	Jitter float64
}

// Pause returns the pause after attempt n, counted from 0.
func (b Backoff) Pause(n int) time.Duration {
	pause := b.Initial
	for i := 0; i < n && pause < b.Max; i++ {
		pause *= 2
	}
	pause = min(pause, b.Max)
	if b.Jitter > 0 {
		pause += time.Duration((2*rand.Float64() - 1) * b.Jitter * float64(pause))
	}
	return pause
}

// Sleep waits for d. It returns the cause of ctx if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
