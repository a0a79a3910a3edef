// Package bench measures the performance of sharing on this host. Owners and other clients run in separate processes,
// which are started with the command of the benchmark.
//
// Each figure has a floor: the cost of the same work without this module, measured in turn with it.
package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Options configures a benchmark.
type Options struct {
	// Worker is a command line that runs [Work]. A directory is appended.
	Worker []string
	// Limit is the duration of each measurement. At least one turn is measured.
	Limit time.Duration
	// MaxBytes limits the size of a model.
	MaxBytes int64
	// Clients is the number of idle clients.
	Clients int
	// Stage, if not nil, is called before each measurement with its name.
	Stage func(what string)
}

// Benchmark is a group of figures that are measured together.
type Benchmark struct {
	// Name is the name on the command line.
	Name string
	// Short is a one-line description.
	Short string

	run func(b *bench) error
}

// All returns all benchmarks, the most important first.
func All() []Benchmark {
	return []Benchmark{
		{"ping", "round trip of a request, compared with a bare socket", (*bench).ping},
		{"attach", "attaching models of 1 to 10,000 tensors", (*bench).attach},
		{"bytes", "attaching models of 1 MiB to 4 GiB", (*bench).bytes},
		{"load", "loading a file, compared with a plain read", (*bench).load},
		{"clients", "1,000 idle clients: owner's memory, effect on others", (*bench).clients},
		{"shutdown", "shutdown of an owner with 100 idle clients", (*bench).shutdown},
		{"kill", "release of a killed client's references", (*bench).kill},
	}
}

// Run runs the benchmark. When it returns, its processes have ended and its files are removed. It returns
// errors.ErrUnsupported on systems other than Linux, and the cause of ctx if ctx ends.
func (b Benchmark) Run(ctx context.Context, o Options) ([]Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, fmt.Errorf("it took longer than %v", 5*time.Minute))
	defer cancel()
	s := &bench{ctx: ctx, Options: o}
	err := s.open()
	if err == nil {
		err = b.run(s)
	}
	s.close()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // other errors follow from it
		}
		return nil, fmt.Errorf("benchmark %s: %w", b.Name, err)
	}
	return s.results, nil
}

// Result is one figure with its floor.
type Result struct {
	// Name identifies the measurement.
	Name string `json:"name"`
	// Value is the figure in Unit: the median of an undisturbed turn, unless Name says otherwise.
	Value float64 `json:"value"`
	// Unit is the unit of Value and Floor.
	Unit string `json:"unit"`
	// Floor is the cost without this module. It is nil if there is no equivalent.
	Floor *float64 `json:"floor"`
	// Ratio is Value divided by Floor, or nil without a floor.
	Ratio *float64 `json:"ratio"`
}

// newResult returns a result. A floor of 0 means none.
func newResult(name string, value, floor float64, unit string) Result {
	r := Result{Name: name, Value: round(value), Unit: unit}
	if floor > 0 {
		ratio := round(value / floor)
		floor = round(floor)
		r.Floor, r.Ratio = &floor, &ratio
	}
	return r
}

// round rounds to four significant digits. The rest is noise.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Quantile returns the smallest sample that is at least as large as the given part, 0 to 1, of the samples, or zero if
// there are none. Samples must be sorted.
func Quantile(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(part*float64(len(sorted)))), 1)-1]
}

// turns are the samples of one subject, grouped by turn.
type turns [][]time.Duration

// quantile returns a quantile of all samples.
func (t turns) quantile(part float64) time.Duration {
	all := slices.Concat(t...)
	slices.Sort(all)
	return Quantile(all, part)
}

// quiet returns the median of an undisturbed turn: the lower quartile of the turns' medians. Other processes only ever
// lengthen a turn. Without them all turns are alike.
func (t turns) quiet() time.Duration {
	var medians []time.Duration
	for i := range t {
		medians = append(medians, t[i:i+1].quantile(0.5))
	}
	slices.Sort(medians)
	return Quantile(medians, 0.25)
}

// µs returns d in microseconds.
func µs(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ms returns d in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// subject is an operation that is measured repeatedly.
type subject struct {
	// rounds is the number of consecutive runs in a turn. Several runs are needed because the previous subject has
	// filled the caches. The first eighth is not measured.
	rounds int
	// run runs the operation once and returns the duration of its measured part.
	run func() (time.Duration, error)
}

// alternate measures the subjects in turn and returns the turns of each. Every second turn runs in reverse order, so
// that drift affects all subjects alike.
func (b *bench) alternate(subjects ...subject) ([]turns, error) {
	all := make([]turns, len(subjects))
	order := make([]int, len(subjects))
	for i := range order {
		order[i] = i
	}
	for begin := time.Now(); len(all[0]) == 0 || time.Since(begin) < b.Limit; slices.Reverse(order) {
		for _, i := range order {
			var taken []time.Duration
			for n := range subjects[i].rounds {
				if b.ctx.Err() != nil {
					return nil, context.Cause(b.ctx)
				}
				d, err := subjects[i].run()
				if err != nil {
					return nil, err
				}
				if n >= subjects[i].rounds/8 {
					taken = append(taken, d)
				}
			}
			all[i] = append(all[i], taken)
		}
	}
	return all, nil
}

// stage reports what is measured.
func (b *bench) stage(format string, a ...any) {
	if b.Stage != nil {
		b.Stage(fmt.Sprintf(format, a...))
	}
}
