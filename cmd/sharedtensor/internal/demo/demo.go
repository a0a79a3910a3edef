// Package demo shows with real processes how a model is shared in place: three clients attach a model, one of them is
// killed, a second version is published, and the owner is killed and replaced. At the end an owner is killed while no
// client holds the model, and the next one serves it again from its keeper.
//
// [Run] directs the other processes, which run [Work].
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/child"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// Options configures the demo.
type Options struct {
	// Path is a model for module.Load. If it is empty, the demo generates one.
	Path string
	// Size is the approximate size of a generated model in bytes.
	Size int64
	// Worker is a command line that runs [Work]. Role and directory are appended.
	Worker []string
	// Out receives a line for each step.
	Out io.Writer
}

// ErrDisagree means that two processes read different bytes, or that the memory is more than one copy.
var ErrDisagree = errors.New("the demo failed")

// directoryPrefix begins the name of the demo's temporary directory.
const directoryPrefix = "sharedtensor-demo-"

// Run runs the demo. When it returns, also with an error, its processes have ended and its socket is removed.
func Run(ctx context.Context, opts Options) (err error) {
	start := time.Now()
	d := &director{opts: opts}
	defer func() {
		if err = errors.Join(err, d.cleanUp()); ctx.Err() != nil {
			err = context.Cause(ctx) // other errors follow from the cancellation
		}
		if err == nil {
			d.say("the demo took %s and left nothing behind", term.FormatDuration(time.Since(start)))
		}
	}()
	if d.opts.Path != "" {
		if d.opts.Path, err = filepath.Abs(d.opts.Path); err != nil {
			return err
		}
	}
	if d.dir, err = os.MkdirTemp("", directoryPrefix); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{d.serve, d.attach, d.killClient, d.publish, d.killOwner, d.replaceOwner, d.adopt} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// director is the process that runs the demo.
type director struct {
	opts  Options
	dir   string
	bytes int64    // size of the model
	sums  []string // the result that each client must compute

	observer  *endpoint.Client // connection to the owner, for queries
	owner     *child.Process
	clients   []*child.Process
	processes []*child.Process // all processes that were started
}

// say prints a line.
func (d *director) say(format string, args ...any) { fmt.Fprintf(d.opts.Out, format+"\n", args...) }

// start starts a process in the given role.
func (d *director) start(ctx context.Context, role string) (*child.Process, error) {
	p, err := child.Start(ctx, role, append(slices.Clone(d.opts.Worker), strings.ReplaceAll(role, " ", "-"), d.dir)...)
	if err == nil {
		d.processes = append(d.processes, p)
	}
	return p, err
}

// ask sends a request to a process and waits for the answer.
func ask(p *child.Process, r request) (answer reply, err error) {
	err = p.Ask(r.Op, r, &answer)
	return answer, err
}

// model is a request for an operation that makes or loads a version of the model.
func (d *director) model(op string, seed uint64) request {
	return request{Op: op, Path: d.opts.Path, Size: d.opts.Size, Seed: seed}
}

// serve starts the owner, which publishes the first version.
func (d *director) serve(ctx context.Context) (err error) {
	if d.owner, err = d.start(ctx, "owner"); err != nil {
		return err
	}
	got, err := ask(d.owner, d.model(opServe, 1))
	if err != nil {
		return err
	}
	d.sums, d.bytes = []string{got.Sum}, got.Bytes
	did := "loaded"
	if d.opts.Path == "" {
		did = "made"
	}
	d.say("%v: %s %s in %s, %s", d.owner, did, term.FormatBytes(got.Bytes), term.FormatDuration(got.Took), term.FormatRate(got.Bytes, got.Took))
	d.observer, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socketPath(d.dir), Label: "demo"})
	return err
}

// attach starts three clients, one at a time, so that they do not disturb each other's measurements.
func (d *director) attach(ctx context.Context) error {
	sum := d.sums[0]
	d.sums = nil
	for i := range 3 {
		p, err := d.start(ctx, fmt.Sprintf("client %d", i+1))
		if err != nil {
			return err
		}
		got, err := ask(p, request{Op: opAttach})
		if err != nil {
			return err
		}
		d.clients, d.sums = append(d.clients, p), append(d.sums, sum)
		d.say("%v: attached in %s, nothing copied", p, term.FormatDuration(got.Took))
	}
	if _, err := d.compute(0); err != nil {
		return err
	}
	d.say("all 4 computed the same on the same bytes: %s", sum)
	return d.oneCopy()
}

// compute lets the clients compute concurrently for a time, at least once. It checks their results and returns the
// number of runs.
func (d *director) compute(during time.Duration) (runs int, err error) {
	answers, errs := make([]reply, len(d.clients)), make([]error, len(d.clients))
	var group sync.WaitGroup
	for i, p := range d.clients {
		group.Go(func() { answers[i], errs[i] = ask(p, request{Op: opCompute, During: during}) })
	}
	group.Wait()
	for i, a := range answers {
		runs += a.Runs
		if p := d.clients[i]; errs[i] == nil && a.Sum != d.sums[i] {
			errs[i] = fmt.Errorf("%w: %v, computed %s, want %s", ErrDisagree, p, a.Sum, d.sums[i])
		}
	}
	return runs, errors.Join(errs...)
}

// meanwhile runs a step while the clients compute, and returns the number of their runs. Each client starts at least
// one run after the step.
func (d *director) meanwhile(step func() error) (int, error) {
	var during int
	var computeErr error
	var group sync.WaitGroup
	group.Go(func() { during, computeErr = d.compute(50 * time.Millisecond) })
	err := step()
	group.Wait()
	if err := errors.Join(err, computeErr); err != nil {
		return 0, err
	}
	after, err := d.compute(0)
	return during + after, err
}

// oneCopy checks that the owner and the clients, all of which have read the model, hold one copy of it.
func (d *director) oneCopy() error {
	all := append([]*child.Process{d.owner}, d.clients...)
	pids := make([]int, len(all))
	for i, p := range all {
		pids[i] = p.PID()
	}
	pss, objects, err := modelMemory(pids)
	if err != nil {
		d.say("memory not measured: %v", err)
		return nil
	}
	// The kernel counts whole pages. For large pages it may only estimate which process maps which part.
	if slack := d.bytes/50 + int64(len(all)*os.Getpagesize()); objects > 1 || pss > d.bytes+slack {
		return fmt.Errorf("%w: %d processes hold %d bytes in %d memory objects, want 1 object of %d bytes", ErrDisagree, len(all), pss, objects, d.bytes)
	}
	d.say("one copy: %d processes hold %s, the model has %s", len(all), term.FormatBytes(pss), term.FormatBytes(d.bytes))
	return nil
}

// waitForHolders polls the owner until the process ids of the holders of each version meet the condition.
func (d *director) waitForHolders(ctx context.Context, what string, condition func(holders map[uint64][]int) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, fmt.Errorf("the owner does not report %s", what))
	defer cancel()
	for {
		info, err := d.observer.Info(ctx, modelName)
		if err != nil {
			return err
		}
		holders := map[uint64][]int{}
		for _, v := range info.Versions {
			for _, h := range v.Holders {
				holders[v.Version] = append(holders[v.Version], int(h.PID))
			}
		}
		if condition(holders) {
			return nil
		}
		select {
		case <-time.After(100 * time.Microsecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// killClient kills a client and waits until the owner has released its references.
func (d *director) killClient(ctx context.Context) error {
	p := d.clients[2]
	start := time.Now()
	if err := p.Signal(); err != nil {
		return err
	}
	err := d.waitForHolders(ctx, "that client 3 is gone", func(holders map[uint64][]int) bool { return !slices.Contains(holders[1], p.PID()) })
	if err != nil {
		return err
	}
	d.clients, d.sums = d.clients[:2], d.sums[:2]
	d.say("killed client 3 (SIGKILL): its references were released after %s", term.FormatDuration(time.Since(start)))
	return p.Kill() // it has ended
}

// publish publishes a second version from another process, which then ends, while the clients compute on the first one.
// Then client 2 switches to it.
func (d *director) publish(ctx context.Context) error {
	var second reply
	runs, err := d.meanwhile(func() error {
		p, err := d.start(ctx, "publisher")
		if err != nil {
			return err
		}
		if second, err = ask(p, d.model(opPublish, 2)); err != nil {
			return err
		}
		d.say("%v: published version %d and ended", p, second.Version)
		return p.End()
	})
	if err != nil {
		return err
	}
	d.say("readers of version 1 continued: %s, the same results", term.Count(runs, "run"))
	got, err := ask(d.clients[1], request{Op: opAttach})
	if err != nil {
		return err
	}
	d.sums[1] = second.Sum
	if _, err := d.compute(0); err != nil {
		return err
	}
	err = d.waitForHolders(ctx, "one reader on each version", func(holders map[uint64][]int) bool {
		return slices.Equal(holders[1], []int{d.clients[0].PID()}) && slices.Equal(holders[second.Version], []int{d.clients[1].PID()})
	})
	if err != nil {
		return err
	}
	d.say("client 2 switched to version %d in %s: %s", got.Version, term.FormatDuration(got.Took), second.Sum)
	d.say("both versions are in memory: client 1 uses 1, client 2 uses %d", got.Version)
	return nil
}

// killOwner kills the owner while the clients compute.
func (d *director) killOwner(context.Context) error {
	runs, err := d.meanwhile(d.owner.Kill)
	if err == nil {
		d.say("killed the owner (SIGKILL): readers continue, %s, the same results", term.Count(runs, "run"))
	}
	return err
}

// replaceOwner starts another owner on the same socket. The clients reconnect automatically, and client 1 publishes the
// memory of version 1 to the new owner. Nothing is loaded again, and there is still one copy.
func (d *director) replaceOwner(ctx context.Context) (err error) {
	start := time.Now()
	if d.owner, err = d.start(ctx, "new owner"); err != nil {
		return err
	}
	owner, err := ask(d.owner, request{Op: opServe, Keep: true})
	if err != nil {
		return err
	}
	for _, p := range d.clients {
		if _, err := ask(p, request{Op: opReconnect, Server: owner.Server}); err != nil {
			return err
		}
	}
	d.say("%v, on the same socket: both readers reconnected after %s", d.owner, term.FormatDuration(time.Since(start)))
	published, err := ask(d.clients[0], request{Op: opHandOver})
	if err != nil {
		return err
	}
	attached, err := ask(d.clients[1], request{Op: opAttach})
	if err != nil {
		return err
	}
	d.say("client 1 published version 1 to it in %s, client 2 attached in %s", term.FormatDuration(published.Took), term.FormatDuration(attached.Took))
	d.sums[1] = d.sums[0]
	if _, err := d.compute(0); err != nil {
		return err
	}
	d.say("nothing was loaded again, and the result is the same")
	return d.oneCopy()
}

// adopt ends the clients, kills the owner while no process but the keeper has the model, and starts the last owner.
func (d *director) adopt(ctx context.Context) (err error) {
	sum := d.sums[0]
	for _, p := range d.clients {
		if err := p.End(); err != nil {
			return err
		}
	}
	d.clients, d.sums = nil, nil
	err = d.waitForHolders(ctx, "that all clients are gone", func(holders map[uint64][]int) bool { return len(holders) == 0 })
	if err != nil {
		return err
	}
	if err := d.owner.Kill(); err != nil {
		return err
	}
	d.say("killed the owner (SIGKILL): no client holds the model, its keeper does")
	start := time.Now()
	if d.owner, err = d.start(ctx, "last owner"); err != nil {
		return err
	}
	if _, err := ask(d.owner, request{Op: opServe, Keep: true}); err != nil {
		return err
	}
	d.say("%v: serves the model again after %s, nothing was loaded", d.owner, term.FormatDuration(time.Since(start)))
	p, err := d.start(ctx, "client 4")
	if err != nil {
		return err
	}
	got, err := ask(p, request{Op: opAttach})
	if err != nil {
		return err
	}
	d.clients, d.sums = append(d.clients, p), append(d.sums, sum)
	if _, err := d.compute(0); err != nil {
		return err
	}
	d.say("%v: attached version %d in %s, the same result: %s", p, got.Version, term.FormatDuration(got.Took), sum)
	return d.oneCopy()
}

// endKeeper kills a keeper whose owner was killed. It does nothing if none runs.
func endKeeper(dir string) {
	if _, err := os.Stat(keeperPath(dir) + ".lock"); err != nil {
		return
	}
	store, err := keeper.Connect(keeper.Options{Socket: keeperPath(dir), Command: []string{"false"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return
	}
	if p, err := os.FindProcess(store.PID()); err == nil {
		_ = p.Kill() // fails if it has ended
	}
	_ = store.Close() // fails never: the keeper stays or has ended
}

// cleanUp ends all remaining processes, clients first, and removes all files.
func (d *director) cleanUp() error {
	var errs []error
	if d.observer != nil {
		errs = append(errs, d.observer.Close())
	}
	for _, p := range append(slices.Clone(d.clients), d.processes...) {
		errs = append(errs, p.End())
	}
	if d.dir != "" {
		endKeeper(d.dir)
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}
