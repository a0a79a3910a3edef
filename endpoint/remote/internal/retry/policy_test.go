package retry

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Attempts without progress are counted, time without progress is limited, and a permanent error ends the attempts.
func TestPolicy(t *testing.T) {
	t.Parallel()
	passing, permanent := errors.New("passing"), errors.New("permanent")
	quick := Policy{Backoff: Backoff{Initial: time.Microsecond, Max: time.Microsecond}, Again: func(err error) (bool, time.Duration) { return errors.Is(err, passing), 0 }}
	try := func(p Policy, results ...bool) (calls int, err error) { // progress of each attempt
		err = p.Do(t.Context(), func() (bool, error) {
			calls++
			if calls > len(results) {
				return false, nil
			}
			return results[calls-1], passing
		})
		return calls, err
	}
	limited := quick
	limited.Attempts = 3
	calls, err := try(limited, false, false, true, false, false)
	require.ErrorIs(t, err, passing)
	require.Equal(t, 5, calls, "progress begins the count again")
	calls, err = try(limited, false, false)
	require.NoError(t, err)
	require.Equal(t, 3, calls)

	patient := quick
	patient.Patience = time.Nanosecond
	_, err = try(patient, false, false, false)
	require.ErrorContains(t, err, "no progress")
	until := quick
	until.Until = time.Now()
	calls, err = try(until, false)
	require.ErrorIs(t, err, passing)
	require.Equal(t, 1, calls)

	var failed []error
	quick.Failed = func(err error) { failed = append(failed, err) }
	calls = 0
	err = quick.Do(t.Context(), func() (bool, error) {
		if calls++; calls < 3 {
			return false, passing
		}
		return false, permanent
	})
	require.ErrorIs(t, err, permanent)
	require.Equal(t, []error{passing, passing}, failed)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, quick.Do(ctx, func() (bool, error) { return false, passing }), passing)
}
