package task

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A kept error is short, and errors.Is and errors.As match its short wrapped errors.
func TestLongErrorsAreCutWhenTheyAreKept(t *testing.T) {
	t.Parallel()
	m := New(Options[int]{})
	defer m.Shutdown(context.Background())
	long := strings.Repeat("é", 4<<20)
	fail := func(f func() error) error {
		job, err := m.Submit(context.Background(), Spec{Name: "job"}, func(context.Context) (int, error) { return 0, f() })
		require.NoError(t, err)
		return job.Wait(context.Background())
	}
	for name, c := range map[string]struct {
		err error
		is  error
	}{
		"alone":   {errors.New(long), ErrFailed},
		"wrapped": {fmt.Errorf("%s: %w", long, fmt.Errorf("%s: %w", long, io.EOF)), io.EOF},
		"joined":  {errors.Join(errors.New(long), &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}), fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			err := fail(func() error { return c.err })
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, err, c.is)
			require.Less(t, len(err.Error()), MaxErrorBytes+200)
			require.Contains(t, err.Error(), "bytes left out)")
			require.NotErrorIs(t, err, io.ErrClosedPipe)
		})
	}
	err := fail(func() error {
		return errors.Join(errors.New(long), &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist})
	})
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	err = fail(func() error { panic(long) })
	require.ErrorIs(t, err, ErrPanic)
	require.Less(t, len(err.Error()), MaxErrorBytes+200)
	short := errors.New("short")
	require.Same(t, short, errors.Unwrap(fail(func() error { return short })))
}

// The kept beginning of an error's text or of a report does not retain the rest in memory.
func TestKeptTextsAreCopies(t *testing.T) {
	m := New(Options[int]{})
	defer m.Shutdown(context.Background())
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	for range 8 {
		job, err := m.Submit(context.Background(), Spec{Name: "job"}, func(ctx context.Context) (int, error) {
			Report(ctx, 1, 2, strings.Repeat("r", 8<<20))
			return 0, errors.New(strings.Repeat("e", 8<<20))
		})
		require.NoError(t, err)
		require.ErrorIs(t, job.Wait(context.Background()), ErrFailed)
	}
	require.Less(t, heap()-before, int64(16<<20))
	require.Len(t, m.List(Filter{}), 8)
}
