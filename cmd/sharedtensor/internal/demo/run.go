package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// clients is the number of readers.
const clients = 3

// Options configures the demo.
type Options struct {
	// Path is a model for [safetensors.Open]. If it is empty, the demo generates one.
	Path string
	// Size is the approximate size of a generated model in bytes.
	Size int64
	// Worker is a command line that runs [Work]. Role and directory are appended.
	Worker []string
	// Progress, if not nil, receives the progress of long steps. what is "making" or "loading".
	Progress func(what string, done, total int64)
	// Step, if not nil, is called after each step with the report so far.
	Step func(s Step, r *Report)
}

// Step identifies a step of the demo.
type Step uint8

// The steps, in order.
const (
	// ModelReady means the model was generated or validated.
	ModelReady Step = iota
	// OwnerServes means the owner has loaded and published the model.
	OwnerServes
	// ClientAttached is reported once for each reader, which is the last of Report.Processes.
	ClientAttached
	// AllAgree means the owner and all readers computed the same result.
	AllAgree
	// MemoryMeasured means the memory use of all processes was measured.
	MemoryMeasured
	// ClientKilledStep means one reader was killed and its references were released.
	ClientKilledStep
	// VersionPublished means a second version was published, or skipped for lack of memory.
	VersionPublished
	// ClientSwitched means one reader switched to the second version. It is omitted if there is none.
	ClientSwitched
	// OwnerKilledStep means the owner was killed while the readers computed.
	OwnerKilledStep
	// OwnerRestarted means another owner started and the readers connected to it.
	OwnerRestarted
)

// Run runs the demo. When it returns, also with an error, its processes have ended and its sockets and files are
// removed. The report is never nil and contains the steps before an error.
func Run(ctx context.Context, opts Options) (_ *Report, err error) {
	start := time.Now()
	d := &director{opts: opts, report: &Report{Processes: []*Process{}}}
	defer func() {
		err = errors.Join(err, d.cleanUp())
		d.report.Took = time.Since(start)
		d.report.OK = err == nil
		if err != nil {
			d.report.Error = err.Error()
		}
	}()
	if d.dir, err = os.MkdirTemp("", directoryPrefix); err != nil {
		return d.report, err
	}
	steps := []func(context.Context) error{
		d.startOwner, d.prepareModel, d.serve, d.attachClients, d.agree,
		d.killClient, d.publish, d.killOwner, d.restartOwner, d.quit,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx) // other errors follow from the cancellation
			}
			return d.report, err
		}
	}
	return d.report, nil
}

// director is the process that runs the demo.
type director struct {
	opts   Options
	report *Report
	dir    string
	path   string // the model's path

	client    *endpoint.Client // connection to the owner, for queries
	owner     *process
	clients   []*process
	processes []*process // all processes that were started
}

// step reports a step to the caller.
func (d *director) step(s Step) {
	if d.opts.Step != nil {
		d.opts.Step(s, d.report)
	}
}

// progress returns a function that reports the progress of a long step.
func (d *director) progress(what string) func(done, total int64) {
	if d.opts.Progress == nil {
		return nil
	}
	return func(done, total int64) { d.opts.Progress(what, done, total) }
}

// start starts a process in the given role.
func (d *director) start(ctx context.Context, role string) (*process, error) {
	p, err := startProcess(ctx, d.opts.Worker, role, d.dir)
	if err != nil {
		return nil, err
	}
	d.processes = append(d.processes, p)
	d.report.Processes = append(d.report.Processes, p.report)
	return p, nil
}

// each sends the request to all processes concurrently and returns their answers in order. It returns the first error
// after all have answered.
func each(ctx context.Context, processes []*process, r request) ([]reply, error) {
	answers, errs := make([]reply, len(processes)), make([]error, len(processes))
	var asking sync.WaitGroup
	for i, p := range processes {
		asking.Go(func() { answers[i], errs[i] = p.ask(ctx, r, nil) })
	}
	asking.Wait()
	return answers, errors.Join(errs...)
}

// stepTimeout limits steps that should complete at once.
const stepTimeout = 30 * time.Second

// waitForHolders waits until the holders of each version, as reported by the owner, meet the condition, and returns
// them. It polls, because leases have no event.
func (d *director) waitForHolders(ctx context.Context, what string, condition func(holders map[uint64][]int) bool) (map[uint64][]int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("the owner does not report %s", what))
	defer cancel()
	for {
		info, err := d.client.Info(ctx, modelName)
		if err != nil {
			return nil, err
		}
		holders := map[uint64][]int{}
		for _, v := range info.Versions {
			holders[v.Version] = []int{}
			for _, h := range v.Holders {
				holders[v.Version] = append(holders[v.Version], int(h.PID))
			}
		}
		if condition(holders) {
			return holders, nil
		}
		select {
		case <-time.After(100 * time.Microsecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// quit ends all remaining processes, readers first. It returns an error if one does not exit cleanly.
func (d *director) quit(ctx context.Context) error {
	for _, p := range append(append([]*process{}, d.clients...), d.owner) {
		if err := p.quit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp kills all remaining processes and removes all files.
func (d *director) cleanUp() error {
	var errs []error
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	for _, p := range d.processes {
		errs = append(errs, p.kill())
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

// modelPath returns the path of a generated model.
func (d *director) modelPath() string { return filepath.Join(d.dir, "model.safetensors") }
