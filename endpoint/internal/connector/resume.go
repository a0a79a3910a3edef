package connector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

const (
	// resumeAtOnce is the maximum number of resume requests in flight.
	resumeAtOnce = 64
	// resumeSilence is the maximum time between answers to resume requests. There is no limit for all of them, because
	// their number is not limited.
	resumeSilence = 5 * time.Second
)

var errUnresponsive = fmt.Errorf("%w: the owner has not answered for %v", status.ErrUnavailable, resumeSilence)

// Dependents are the objects of one kind that a client keeps across connections, such as leases. The methods are called
// concurrently and without the connector's lock.
type Dependents interface {
	// Needed reports whether any of the objects needs a connection.
	Needed() bool
	// Resume returns the jobs that resume the objects on l that need it. If a job fails, the connection is closed.
	Resume(l *link.Link) []func(context.Context) error
	// Lost notifies the objects that a connection has ended.
	Lost(l *link.Link)
	// End ends the objects because the client was closed.
	End()
}

// dependents are all kinds of objects that a client keeps across connections.
type dependents []Dependents

// needed reports whether any object needs a connection.
func (all dependents) needed() bool {
	return slices.ContainsFunc(all, func(d Dependents) bool { return d.Needed() })
}

// toResume returns the jobs that resume all objects on l.
func (all dependents) toResume(l *link.Link) (jobs []func(context.Context) error) {
	for _, d := range all {
		jobs = append(jobs, d.Resume(l)...)
	}
	return jobs
}

// lost notifies all objects that a connection has ended.
func (all dependents) lost(l *link.Link) {
	for _, d := range all {
		d.Lost(l)
	}
}

// end ends all objects.
func (all dependents) end() {
	for _, d := range all {
		d.End()
	}
}

// resume resumes the dependents on a new connection. If that fails, it closes the connection and notifies the
// dependents that were already resumed.
func (c *Connector) resume(l *link.Link) error {
	err := allWhileAnswered(c.ctx, c.dependents.toResume(l))
	if err == nil {
		err = l.Reason()
	}
	if err != nil {
		l.Cut()
		c.dependents.lost(l)
	}
	return err
}

// catchUp resumes dependents that were added after resume began and before the new connection was visible to them.
func (c *Connector) catchUp(l *link.Link) {
	if jobs := c.dependents.toResume(l); len(jobs) > 0 {
		c.Start(func() { c.cutAfter(l, allWhileAnswered(c.ctx, jobs)) })
	}
}

// allWhileAnswered runs all jobs, at most resumeAtOnce at a time. It fails if a job fails or if no job completes for
// resumeSilence.
func allWhileAnswered(ctx context.Context, jobs []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(resumeSilence, func() { cancel(errUnresponsive) })
	defer silence.Stop()
	var begun, failed atomic.Int64
	var work sync.WaitGroup
	for range min(len(jobs), resumeAtOnce) {
		work.Go(func() {
			for i := begun.Add(1) - 1; int(i) < len(jobs); i = begun.Add(1) - 1 {
				if err := jobs[i](ctx); err != nil {
					cancel(err) // the first cause wins
					failed.Add(1)
					return
				}
				silence.Reset(resumeSilence)
			}
		})
	}
	work.Wait()
	if failed.Load() > 0 {
		return context.Cause(ctx)
	}
	return nil
}

// Refused reports whether the owner answered with an error other than ErrUnavailable. The connection is then still
// good.
func Refused(err error) bool {
	var remote *message.Error
	return errors.As(err, &remote) && !errors.Is(err, status.ErrUnavailable)
}
