package demo

import (
	"context"
	"time"
)

// killOwner kills the owner while the readers compute.
func (d *director) killOwner(ctx context.Context) error {
	if _, err := each(ctx, d.clients, request{Op: opStart}); err != nil {
		return err
	}
	if err := d.owner.kill(); err != nil { // returns after its exit
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

// restartOwner starts another owner on the same socket. The readers reconnect automatically, and one that has version 1
// publishes its memory to the new owner. Nothing is loaded again, and there is still one copy.
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

	publisher, other := d.clients[0], d.clients[1]
	if got, err = publisher.ask(ctx, request{Op: opHandOver}, nil); err != nil {
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
	if report.Memory, err = d.measure([]*process{d.owner, publisher, other}, false); err != nil {
		return err
	}
	d.report.Restarted = report
	d.step(OwnerRestarted)
	return nil
}
