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

// clients is how many readers the demo has.
const clients = 3

// Options say what to show, and to whom.
type Options struct {
	// Path is a model as [safetensors.Open] takes it. Empty stands for one that the demo makes.
	Path string
	// Size is about how many bytes a model that the demo makes has.
	Size int64
	// Worker is the command line that runs [Work]; role and directory come behind it.
	Worker []string
	// Progress, if not nil, is told how far a long step has come; what is one of "making", "loading".
	Progress func(what string, done, total int64)
	// Step, if not nil, is told after each step, with the report as far as it has come.
	Step func(s Step, r *Report)
}

// Step is a step of the demo.
type Step uint8

// The steps, in order.
const (
	// ModelReady is a model that was made or checked.
	ModelReady Step = iota
	// OwnerServes is the model loaded by its owner.
	OwnerServes
	// ClientAttached is told once for each reader; it is the last of the processes.
	ClientAttached
	// AllAgree is the owner and all readers with the same result.
	AllAgree
	// MemoryMeasured is the memory of all of them.
	MemoryMeasured
	// ClientKilledStep is one reader killed, and its references back.
	ClientKilledStep
	// VersionPublished is a second version, or none where there is no room.
	VersionPublished
	// ClientSwitched is one reader on the second version. It is left out where there is none.
	ClientSwitched
	// OwnerKilledStep is the owner killed, and the readers still computing.
	OwnerKilledStep
	// OwnerRestarted is another owner, and the readers connected to it.
	OwnerRestarted
)

// Run runs the demo. What it made is gone when it returns, whatever happened: processes, sockets and files. The report
// is not nil, and holds what was done before an error.
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
				err = context.Cause(ctx) // whatever came of it
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
	path   string // of the model

	client    *endpoint.Client // asks the owner
	owner     *process
	clients   []*process
	processes []*process // all that were started
}

// step tells the caller.
func (d *director) step(s Step) {
	if d.opts.Step != nil {
		d.opts.Step(s, d.report)
	}
}

// progress returns what to tell of a long step.
func (d *director) progress(what string) func(done, total int64) {
	if d.opts.Progress == nil {
		return nil
	}
	return func(done, total int64) { d.opts.Progress(what, done, total) }
}

// start starts a process.
func (d *director) start(ctx context.Context, role string) (*process, error) {
	p, err := startProcess(ctx, d.opts.Worker, role, d.dir)
	if err != nil {
		return nil, err
	}
	d.processes = append(d.processes, p)
	d.report.Processes = append(d.report.Processes, p.report)
	return p, nil
}

// each asks all of them at once and returns their answers in order. The first error is returned when all have answered.
func each(ctx context.Context, processes []*process, r request) ([]reply, error) {
	answers, errs := make([]reply, len(processes)), make([]error, len(processes))
	var asking sync.WaitGroup
	for i, p := range processes {
		asking.Go(func() { answers[i], errs[i] = p.ask(ctx, r, nil) })
	}
	asking.Wait()
	return answers, errors.Join(errs...)
}

// stepTimeout bounds what should take no time.
const stepTimeout = 30 * time.Second

// waitForHolders waits until the versions' holders at the owner meet the condition, and returns them. There is no event
// for leases, so it polls.
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

// quit ends all processes that are left, readers first, and finds that each ends well.
func (d *director) quit(ctx context.Context) error {
	for _, p := range append(append([]*process{}, d.clients...), d.owner) {
		if err := p.quit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp leaves nothing behind.
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

// modelPath is where a model that the demo makes lies.
func (d *director) modelPath() string { return filepath.Join(d.dir, "model.safetensors") }
