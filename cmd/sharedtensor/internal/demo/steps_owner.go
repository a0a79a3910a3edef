package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// killOwner kills the owner while the readers compute.
func (d *director) killOwner(ctx context.Context) error {
	if _, err := each(ctx, d.clients, request{Op: opStart}); err != nil {
		return err
	}
	if err := d.owner.kill(); err != nil { // returns when it is gone
		return err
	}
	results := []*Result{d.report.Result, d.report.Result}
	if d.report.Published != nil {
		results[1] = d.report.Published.Result
	}
	runs, err := d.stop(ctx, results...)
	if err != nil {
		return err
	}
	d.report.OwnerKilled = &OwnerKilled{PID: d.owner.report.PID, Runs: runs}
	if d.report.Published == nil {
		if d.report.OwnerKilled.Memory, err = d.measure(d.clients, false); err != nil {
			return err
		}
	}
	d.step(OwnerKilledStep)
	return nil
}

// restartOwner starts another owner on the same socket. The readers come to it by themselves, and the one that has version 1 hands its
// memory over: nothing is loaded again, and there is still one copy.
func (d *director) restartOwner(ctx context.Context) (err error) {
	report := &Restarted{}
	start := time.Now()
	if d.owner, err = d.start(ctx, "new owner"); err != nil {
		return err
	}
	got, err := d.owner.ask(ctx, request{Op: opServe}, nil)
	if err != nil {
		return err
	}
	if _, err := each(ctx, d.clients, request{Op: opReconnect, Server: got.Server}); err != nil {
		return err
	}
	report.PID, report.Reconnected = d.owner.report.PID, time.Since(start)

	keeper, other := d.clients[0], d.clients[1]
	if got, err = keeper.ask(ctx, request{Op: opHandOver}, nil); err != nil {
		return err
	}
	report.HandOver = got.Took
	d.owner.report.Bytes = d.report.Model.Bytes
	if got, err = other.ask(ctx, request{Op: opAttach}, nil); err != nil {
		return err
	}
	report.Attach = got.Took
	answers, err := each(ctx, d.clients, request{Op: opCompute})
	if err != nil {
		return err
	}
	for i, a := range answers {
		if err := same(d.clients[i], a.Result, d.report.Result); err != nil {
			return err
		}
	}
	if report.Memory, err = d.measure([]*process{d.owner, keeper, other}, false); err != nil {
		return err
	}
	d.report.Restarted = report
	d.step(OwnerRestarted)
	return nil
}

// measure asks the kernel what the processes, which all have the same version, take, and finds more than one copy. keep notes the shares in
// the report of each process. That the kernel does not tell is no error.
func (d *director) measure(processes []*process, keep bool) (*Memory, error) {
	bytes := d.report.Model.Bytes
	m := &Memory{Processes: len(processes), Copies: bytes * int64(len(processes))}
	objects := map[string]bool{}
	for _, p := range processes {
		u, err := readUsage(p.report.PID)
		if errors.Is(err, errSmaps) {
			return &Memory{Processes: len(processes), Copies: m.Copies, Unknown: err.Error()}, nil
		}
		if err != nil {
			return nil, err
		}
		if keep {
			p.report.PSS, p.report.Private = u.pss, u.private
		}
		m.PSS += u.pss
		for _, o := range u.objects {
			objects[o] = true
		}
	}
	m.Objects = len(objects)
	// The kernel counts whole pages, and rounds each share down to 1 KiB.
	slack := bytes/50 + int64(len(processes))*pageSlack
	m.OneCopy = m.PSS <= bytes+slack && m.PSS >= bytes-slack
	if m.PSS > bytes+slack {
		return m, fmt.Errorf("%w: %d processes hold %d bytes of a model of %d", ErrDisagree, len(processes), m.PSS, bytes)
	}
	return m, nil
}

// pageSlack is what a process may be off by, in bytes: one page of the largest size that hosts have by default.
const pageSlack = 64 << 10
