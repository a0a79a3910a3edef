package bench

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// Effort selects how long to measure.
type Effort uint8

const (
	// Full takes about two minutes for all benchmarks together.
	Full Effort = iota
	// Quick takes about fifteen seconds, with smaller models and fewer rounds.
	Quick
	// Once runs each measurement a few times, to check that it works.
	Once
)

// pick returns the value for the effort.
func pick[T any](e Effort, full, quick, once T) T {
	switch e {
	case Quick:
		return quick
	case Once:
		return once
	}
	return full
}

// Options configures a benchmark.
type Options struct {
	// Worker returns a command, not yet started, that runs [Work] in a separate process and is killed when ctx ends.
	Worker func(ctx context.Context) (*exec.Cmd, error)
	// Effort selects how long to measure.
	Effort Effort
	// Dir is the directory for the temporary file of Load. Empty means the system's temporary directory.
	Dir string
	// Stage, if not nil, is called before each measurement with its name.
	Stage func(what string)
	// Note, if not nil, is called for each skipped measurement with the reason.
	Note func(text string)
}

func (o *Options) stage(format string, a ...any) {
	if o.Stage != nil {
		o.Stage(fmt.Sprintf(format, a...))
	}
}

func (o *Options) note(format string, a ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, a...))
	}
}

// Benchmark is a group of figures that are measured together.
type Benchmark struct {
	// Name is the name on the command line.
	Name string
	// Short is a one-line description.
	Short string
	// Limit is the maximum duration at full effort. Run fails if it is exceeded.
	Limit time.Duration

	run func(ctx context.Context, o Options) ([]Result, error)
}

// All returns all benchmarks, the most important first.
func All() []Benchmark {
	return []Benchmark{
		{"ping", "round trip of a request, compared with a bare socket", time.Minute, Ping},
		{"attach", "attaching models of 1 to 10,000 tensors", time.Minute, Attach},
		{"bytes", "attaching models of 1 MiB to 4 GiB", 2 * time.Minute, Bytes},
		{"load", "loading a file, compared with a plain read", 2 * time.Minute, Load},
		{"clients", "1,000 idle clients: owner's memory, effect on others", time.Minute, Clients},
		{"shutdown", "shutdown of an owner with 100 idle clients", time.Minute, Shutdown},
		{"kill", "release of a killed client's references", time.Minute, Kill},
	}
}

// Run runs the benchmark. It returns errors.ErrUnsupported on systems other than Linux, the cause of ctx if ctx ends,
// and errors of the worker processes.
func (b Benchmark) Run(ctx context.Context, o Options) ([]Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.Limit, fmt.Errorf("it took longer than %v", b.Limit))
	defer cancel()
	results, err := b.run(ctx, o)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // other errors follow from it
		}
		return nil, fmt.Errorf("benchmark %s: %w", b.Name, err)
	}
	return results, nil
}
