//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// runner starts the processes, disturbs them and pauses them.
type runner struct {
	plan    plan
	out     io.Writer
	rng     *rand.Rand
	socket  string
	owner   *process
	clients []*process
	workers []*process
	failed  chan struct{} // closed at the first failure

	mu      sync.Mutex
	failure error
	sum     totals
	salts   map[string]uint64
}

// totals are the counts of all processes.
type totals struct {
	Ops, Cut, Away, Bytes, Offered, Followed, Reused int64
	Killed, Stopped, Drained, OwnerKilled            int
	OwnerStopped, Quiet, Versions, OwnerLives        int
	WorkersKilled, WorkersStopped                    int
}

func newRunner(p plan, out io.Writer) *runner {
	return &runner{
		plan: p, out: out, rng: rand.New(rand.NewPCG(p.Seed, 1<<63)), clients: make([]*process, p.Clients), workers: make([]*process, p.Workers),
		failed: make(chan struct{}), salts: map[string]uint64{},
	}
}

// run runs the plan. It returns the first failure.
func (r *runner) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r.socket = filepath.Join(dir, "s.sock")
	fmt.Fprintf(r.out, "chaos: seed %d, %d clients, %s\n", r.plan.Seed, r.plan.Clients, r.plan.Duration)
	defer r.killAll()
	if err := r.begin(); err != nil {
		return r.found(err)
	}
	start := time.Now()
	end, quiet, shown := start.Add(r.plan.Duration), start.Add(r.plan.Quiet), start
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case <-r.failed:
			return r.found(nil)
		case <-time.After(time.Duration(20+r.rng.IntN(400)) * time.Millisecond):
		}
		now := time.Now()
		last := now.After(end)
		if last || now.After(quiet) {
			if err := r.rest(last); err != nil {
				return r.found(err)
			}
			quiet = time.Now().Add(r.plan.Quiet)
		}
		if last {
			break
		}
		if err := r.disturb(); err != nil {
			return r.found(err)
		}
		if now.Sub(shown) >= 10*time.Second {
			r.show(now.Sub(start))
			shown = now
		}
	}
	r.show(time.Since(start))
	if err := r.found(nil); err != nil {
		return err
	}
	fmt.Fprintln(r.out, "chaos: ok")
	return nil
}

// found returns the failure that was reported first, or err if there is none.
func (r *runner) found(err error) error {
	if err != nil { // a process reports its end in more detail than its parent
		time.Sleep(200 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return r.failure
	}
	return err
}

// onReport is called with each report.
func (r *runner) onReport(p *process, what report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Ops += what.Ops
	r.sum.Cut += what.Cut
	r.sum.Away += what.Away
	r.sum.Bytes += what.Bytes
	r.sum.Offered += what.Offered
	r.sum.Followed += what.Followed
	r.sum.Reused += what.Reused
	for version, salt := range what.Salts {
		if old, ok := r.salts[version]; ok && old != salt {
			what.Failure = fmt.Sprintf("%s: version %s is %016x here and %016x elsewhere", p.a, version, salt, old)
		} else if !ok {
			r.salts[version] = salt
			r.sum.Versions++
		}
	}
	if what.Failure != "" && r.failure == nil {
		r.failure = errors.New(what.Failure)
		close(r.failed)
	}
}

// begin starts the owner and the clients.
func (r *runner) begin() error {
	if err := r.startOwner(); err != nil {
		return err
	}
	for i := range r.workers {
		if err := r.start(r.workers, "worker", i, 0); err != nil {
			return err
		}
	}
	for i := range r.clients {
		if err := r.start(r.clients, "client", i, 0); err != nil {
			return err
		}
	}
	return nil
}

// startOwner starts the next owner and waits until it serves.
func (r *runner) startOwner() error {
	r.sum.OwnerLives++
	p, err := startProcess(assignment{Role: "owner", Socket: r.socket, Seed: r.plan.Seed, Life: r.sum.OwnerLives - 1, Keep: r.plan.Keep}, r.onReport)
	if err != nil {
		return err
	}
	r.owner = p
	return r.await(p)
}

// start starts a client or worker as process i of a list.
func (r *runner) start(list []*process, role string, i, life int) error {
	p, err := startProcess(assignment{Role: role, Socket: r.socket, Seed: r.plan.Seed, Index: i, Life: life, Keep: r.plan.Keep}, r.onReport)
	if err != nil {
		return err
	}
	list[i] = p
	return r.await(p)
}

// restart kills process i of a list and starts its successor.
func (r *runner) restart(list []*process, i int) error {
	old := list[i]
	old.kill()
	return r.start(list, old.a.Role, i, old.a.Life+1)
}

// await waits until a process is ready.
func (r *runner) await(p *process) error {
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("%s ended before it was ready", p.a)
	case <-time.After(opTimeout):
		return fmt.Errorf("%s is not ready after %v", p.a, opTimeout)
	}
}

// disturb disturbs one of the processes.
func (r *runner) disturb() error {
	if len(r.workers) > 0 && r.rng.IntN(4) == 0 {
		return r.disturbWorker()
	}
	i := r.rng.IntN(len(r.clients))
	switch n := r.rng.IntN(100); {
	case n < 45: // no disturbance
		return nil
	case n < 70:
		r.sum.Killed++
		return r.restart(r.clients, i)
	case n < 88:
		r.sum.Stopped++
		r.clients[i].stop(time.Duration(r.rng.IntN(600)) * time.Millisecond)
	case n < 93:
		r.sum.OwnerStopped++
		r.owner.stop(time.Duration(r.rng.IntN(400)) * time.Millisecond)
	case n < 97:
		r.sum.OwnerKilled++
		r.owner.kill()
		time.Sleep(time.Duration(r.rng.IntN(300)) * time.Millisecond)
		return r.startOwner()
	default:
		r.sum.Drained++
		return r.drainOwner()
	}
	return nil
}

// disturbWorker kills or stops a worker.
func (r *runner) disturbWorker() error {
	i := r.rng.IntN(len(r.workers))
	if r.rng.IntN(2) == 0 {
		r.sum.WorkersKilled++
		return r.restart(r.workers, i)
	}
	r.sum.WorkersStopped++
	r.workers[i].stop(time.Duration(r.rng.IntN(1500)) * time.Millisecond)
	return nil
}

// drainOwner shuts the owner down while its successor starts and waits for the socket.
func (r *runner) drainOwner() error {
	old := r.owner
	old.leave()
	drained := make(chan error, 1)
	go func() { drained <- old.send(drain, opTimeout) }()
	err := r.startOwner()
	err = errors.Join(<-drained, err)
	<-old.ended
	return err
}

// rest pauses all processes, compares their states, makes them release everything, and checks the counts.
func (r *runner) rest(last bool) error {
	r.sum.Quiet++
	others := slices.Concat(r.clients, r.workers)
	all := append([]*process{r.owner}, others...)
	for _, c := range []struct {
		do command
		to []*process
	}{{pause, all}, {verify, others}, {drop, others}, {drop, all[:1]}} {
		if err := sendAll(c.to, c.do); err != nil {
			return err
		}
	}
	if last {
		return nil
	}
	return sendAll(all, resume)
}

// sendAll sends a command to all processes at once and waits until all have completed it.
func sendAll(to []*process, c command) error {
	errs := make([]error, len(to))
	var telling sync.WaitGroup
	for i, p := range to {
		telling.Go(func() { errs[i] = p.send(c, 2*opTimeout) })
	}
	telling.Wait()
	return errors.Join(errs...)
}

// killAll kills all processes.
func (r *runner) killAll() {
	for _, p := range slices.Concat([]*process{r.owner}, r.clients, r.workers) {
		if p != nil {
			p.kill()
		}
	}
	if r.plan.Keep {
		r.killKeeper()
	}
}

// killKeeper kills the keeper, which outlives its owners.
func (r *runner) killKeeper() {
	store, err := keeper.Connect(keeper.Options{Socket: keeperSocket(r.socket), Command: []string{"false"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return
	}
	_ = syscall.Kill(store.PID(), syscall.SIGKILL) // best effort: it may have ended
	_ = store.Close()
}

// show prints a line of progress.
func (r *runner) show(since time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sum
	fmt.Fprintf(r.out, "chaos: %6s of %s: %d operations (%d cut short, %d without an owner, %d answered by workers, %d uses of followers), %d MiB checked, %d versions, %d allocations reused; "+
		"clients killed %d, stopped %d; workers killed %d, stopped %d; owners killed %d, stopped %d, drained %d; quiet %d times\n",
		since.Round(time.Second), r.plan.Duration, s.Ops, s.Cut, s.Away, s.Offered, s.Followed, s.Bytes>>20, s.Versions, s.Reused, s.Killed, s.Stopped, s.WorkersKilled, s.WorkersStopped,
		s.OwnerKilled, s.OwnerStopped, s.Drained, s.Quiet)
}
