// Package retry repeats operations with pauses between the attempts.
package retry

import (
	"context"
	"fmt"
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

// Policy limits the attempts of an operation.
type Policy struct {
	Backoff
	// Attempts limits the consecutive attempts without progress. 0 means no limit.
	Attempts int
	// Patience limits the time without progress. 0 means no limit.
	Patience time.Duration
	// Until is the time after which no further attempt begins. Zero means no limit.
	Until time.Time
	// Again reports whether another attempt may succeed after an error, and the minimum pause before it.
	Again func(err error) (again bool, after time.Duration)
	// Failed, if not nil, receives each error that another attempt follows.
	Failed func(err error)
}

// Do calls attempt until it succeeds, the policy ends the attempts, or ctx ends, and returns the error of the last
// attempt. progressed reports that an attempt made progress although it failed.
func (p Policy) Do(ctx context.Context, attempt func() (progressed bool, err error)) error {
	last := time.Now()
	for n := 0; ; n++ {
		progressed, err := attempt()
		if err == nil || ctx.Err() != nil {
			return err
		}
		again, after := p.Again(err)
		if !again {
			return err
		}
		if progressed {
			n, last = 0, time.Now()
		}
		pause := max(p.Pause(n), after)
		switch {
		case p.Attempts > 0 && n+1 >= p.Attempts, !p.Until.IsZero() && time.Until(p.Until) <= pause:
			return err
		case p.Patience > 0 && time.Since(last) > p.Patience:
			return fmt.Errorf("no progress for %v: %w", p.Patience, err)
		}
		if p.Failed != nil {
			p.Failed(err)
		}
		if Sleep(ctx, pause) != nil {
			return err
		}
	}
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
