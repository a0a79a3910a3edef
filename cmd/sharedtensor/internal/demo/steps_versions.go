package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
)

// publish publishes a second version from another process while the readers compute on the first, and switches one
// reader to it. It is skipped if memory is too small for two versions.
func (d *director) publish(ctx context.Context) error {
	if _, err := each(ctx, d.clients, request{Op: opStart}); err != nil {
		return err
	}
	got, err := d.publishSecond(ctx)
	small := errors.Is(err, driver.ErrOutOfMemory)
	if err != nil && !small {
		return err
	}
	if !small {
		if _, err := each(ctx, d.clients, request{Op: opHear, Version: got.Version}); err != nil {
			return err
		}
	}
	runs, err := d.stop(ctx, d.report.Result, d.report.Result)
	if err != nil {
		return err
	}
	if small {
		d.report.Skipped = "there is no room for a second version"
		d.step(VersionPublished)
		return nil
	}
	d.report.Published.Runs = runs
	d.step(VersionPublished)
	return d.switchOver(ctx, d.clients[1])
}

// publishSecond starts the publisher, which exits after publishing.
func (d *director) publishSecond(ctx context.Context) (reply, error) {
	p, err := d.start(ctx, "publisher")
	if err != nil {
		return reply{}, err
	}
	got, askErr := p.ask(ctx, request{Op: opPublish, Path: d.path}, d.progress("loading"))
	if err := p.quit(ctx); err != nil && askErr == nil {
		return reply{}, err
	}
	if askErr != nil {
		return reply{}, askErr
	}
	p.report.Bytes, p.report.Load, p.report.Result = got.Bytes, got.Took, got.Result
	d.report.Published = &Published{Version: got.Version, PID: p.report.PID, Changed: got.Changed, Result: got.Result}
	return got, nil
}

// switchOver attaches the second version in one reader. Its publisher has exited.
func (d *director) switchOver(ctx context.Context, p *process) error {
	pub := d.report.Published
	got, err := p.ask(ctx, request{Op: opAttach}, nil)
	if err != nil {
		return err
	}
	if got.Version != pub.Version {
		return fmt.Errorf("%w: %s got version %d, the newest is %d", ErrDisagree, p.report.Role, got.Version, pub.Version)
	}
	pub.Attach = got.Took
	if got, err = p.ask(ctx, request{Op: opCompute}, nil); err != nil {
		return err
	}
	if err := same(p, got.Result, pub.Result); err != nil {
		return err
	}
	want := map[uint64]int{1: d.clients[0].report.PID, pub.Version: p.report.PID}
	pub.Holders, err = d.waitForHolders(ctx, "one reader on each version", func(holders map[uint64][]int) bool {
		for version, pid := range want {
			if !slices.Equal(holders[version], []int{pid}) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	d.step(ClientSwitched)
	return nil
}

// stop ends the readers' loops, checks that their results are the given ones, and returns the number of runs.
func (d *director) stop(ctx context.Context, want ...*Result) (int, error) {
	answers, err := each(ctx, d.clients, request{Op: opStop})
	if err != nil {
		return 0, err
	}
	runs := 0
	for i, a := range answers {
		if err := same(d.clients[i], a.Result, want[i]); err != nil {
			return 0, err
		}
		runs += a.Runs
	}
	return runs, nil
}
