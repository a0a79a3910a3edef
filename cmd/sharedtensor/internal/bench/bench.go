package bench

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// Effort says how long to measure.
type Effort uint8

const (
	// Full takes about two minutes for all benchmarks together.
	Full Effort = iota
	// Quick takes about fifteen seconds, with smaller models and fewer rounds.
	Quick
	// Once runs each thing a few times, to see that it runs at all.
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

// Options say how to measure.
type Options struct {
	// Worker returns a command, not yet started, that runs [Work] in a process of its own and dies with ctx.
	Worker func(ctx context.Context) (*exec.Cmd, error)
	// Effort is how long to measure.
	Effort Effort
	// Dir is where the file is made that Load reads, and removed again; empty stands for the system's temporary
	// directory.
	Dir string
	// Stage, if not nil, is told what begins to be measured.
	Stage func(what string)
	// Note, if not nil, is told what is left out and why.
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
	// Name is what users call it.
	Name string
	// Short says in a line what it measures.
	Short string
	// Limit is how long it may take at full effort. What is not measured by then is an error.
	Limit time.Duration

	run func(ctx context.Context, o Options) ([]Result, error)
}

// All are the benchmarks, in the order in which they are worth reading.
func All() []Benchmark {
	return []Benchmark{
		{"ping", "a request and its answer, beside a bare socket", time.Minute, Ping},
		{"attach", "attaching models of 1 to 10,000 tensors", time.Minute, Attach},
		{"bytes", "attaching models of 1 MiB to 4 GiB", 2 * time.Minute, Bytes},
		{"load", "loading a file, beside a plain read of it", 2 * time.Minute, Load},
		{"clients", "1,000 idle clients: owner's memory, effect on others", time.Minute, Clients},
		{"shutdown", "an owner's end with 100 idle clients", time.Minute, Shutdown},
		{"kill", "from a client's SIGKILL to its references back", time.Minute, Kill},
	}
}

// Run measures. Errors are errors.ErrUnsupported where the system is not Linux, the cause of ctx, and what the
// processes report.
func (b Benchmark) Run(ctx context.Context, o Options) ([]Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.Limit, fmt.Errorf("it took longer than %v", b.Limit))
	defer cancel()
	results, err := b.run(ctx, o)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // what else went wrong follows from it
		}
		return nil, fmt.Errorf("benchmark %s: %w", b.Name, err)
	}
	return results, nil
}
