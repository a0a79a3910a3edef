package bench

import (
	"context"
	"slices"
	"time"
)

// samples are durations of repeated runs.
type samples []time.Duration

// quantile returns the given quantile; part is between 0 and 1.
func (s samples) quantile(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// median returns the middle sample.
func (s samples) median() time.Duration { return s.quantile(0.5) }

// turns are the samples of one subject, grouped by turn.
type turns []samples

// all returns the samples of all turns.
func (t turns) all() samples { return slices.Concat(t...) }

// quiet returns the median of an undisturbed turn: the lower quartile of the turns' medians. Other processes only ever
// lengthen a turn. Without them all turns are alike.
func (t turns) quiet() time.Duration {
	medians := make(samples, len(t))
	for i := range t {
		medians[i] = t[i].median()
	}
	return medians.quantile(0.25)
}

// µs returns d in microseconds.
func µs(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ms returns d in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// subject is an operation that is measured repeatedly.
type subject struct {
	// rounds is the number of consecutive runs in a turn. Several runs are needed because the previous subject has
	// filled the caches.
	rounds int
	// run runs the operation once and returns the duration of its measured part.
	run func(ctx context.Context) (time.Duration, error)
}

// schedule limits the measurement of subjects.
type schedule struct {
	turns int           // number of turns of each subject
	limit time.Duration // limits the start of further turns; 0 means no limit
}

// unmeasured is the divisor for the warm-up: each turn starts with rounds/unmeasured runs that are not measured.
const unmeasured = 8

// alternate measures the subjects in turn and returns the turns of each. Every second turn runs in reverse order, so
// that drift affects all subjects alike.
func alternate(ctx context.Context, s schedule, subjects ...subject) ([]turns, error) {
	order := make([]int, len(subjects))
	for i := range order {
		order[i] = i
	}
	all := make([]turns, len(subjects))
	begin := time.Now()
	for range s.turns {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if s.limit > 0 && len(all[0]) > 0 && time.Since(begin) > s.limit {
			break
		}
		for _, i := range order {
			for range subjects[i].rounds / unmeasured {
				if _, err := subjects[i].run(ctx); err != nil {
					return nil, err
				}
			}
			taken := make(samples, subjects[i].rounds)
			for n := range taken {
				d, err := subjects[i].run(ctx)
				if err != nil {
					return nil, err
				}
				taken[n] = d
			}
			all[i] = append(all[i], taken)
		}
		slices.Reverse(order)
	}
	return all, nil
}

// timed returns a run that measures all of f.
func timed(f func(ctx context.Context) error) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := f(ctx)
		return time.Since(start), err
	}
}
