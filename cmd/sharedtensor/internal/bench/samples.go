package bench

import (
	"context"
	"slices"
	"time"
)

// samples are durations of the same thing.
type samples []time.Duration

// quantile is the duration within which the given part of the samples is.
func (s samples) quantile(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// median is the middle of the samples.
func (s samples) median() time.Duration { return s.quantile(0.5) }

// turns are samples of the same thing, in the turns in which they were taken.
type turns []samples

// all are the samples of all turns.
func (t turns) all() samples { return slices.Concat(t...) }

// quiet is the median of a turn in which others did not disturb: the lower quartile of the turns' medians. Other
// processes only ever add to what a turn takes, and where there are none, all turns are alike.
func (t turns) quiet() time.Duration {
	medians := make(samples, len(t))
	for i := range t {
		medians[i] = t[i].median()
	}
	return medians.quantile(0.25)
}

// µs is a duration in microseconds.
func µs(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ms is a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// subject is something that is measured again and again.
type subject struct {
	// rounds is how often in a row, so that it does not always find the caches that another subject left.
	rounds int
	// run does it once and returns how long the part took that counts.
	run func(ctx context.Context) (time.Duration, error)
}

// schedule says how long subjects are measured.
type schedule struct {
	turns int           // how often each subject has its turn
	limit time.Duration // after this no new turn begins, whatever turns says; 0 is no limit
}

// unmeasured is the part of its rounds with which a subject warms up at the beginning of each turn.
const unmeasured = 8

// alternate measures the subjects in turn and returns the turns of each. Every second turn has the order reversed, so
// that what drifts meets all of them alike.
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

// timed makes a run of a function of which all counts.
func timed(f func(ctx context.Context) error) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := f(ctx)
		return time.Since(start), err
	}
}
