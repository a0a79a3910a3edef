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
	// resumeAtOnce is how many requests that take something up again are in flight.
	resumeAtOnce = 64
	// resumeSilence is how long an owner may take for the next answer to any of them: a client may have so much to take
	// up that no time for all of it would be right.
	resumeSilence = 5 * time.Second
)

var errSilent = fmt.Errorf("%w: the owner has not answered for %v", status.ErrUnavailable, resumeSilence)

// Dependents are what a client has on its connections of one kind, and does not lose with one of them. The methods are
// called without the connector's lock, by several goroutines at once.
type Dependents interface {
	// Needed reports whether any of them needs a connection.
	Needed() bool
	// Resume lists what takes up on l what is not there yet. An error of any is of the connection, which is given up.
	Resume(l *link.Link) []func(context.Context) error
	// Lost tells them that a connection is over.
	Lost(l *link.Link)
	// End ends them, as the client was closed.
	End()
}

// kinds are all that lives on the connections of a client.
type kinds []Dependents

// needed reports whether anything needs a connection.
func (k kinds) needed() bool {
	return slices.ContainsFunc(k, func(d Dependents) bool { return d.Needed() })
}

// toResume is what is to be taken up on a connection.
func (k kinds) toResume(l *link.Link) (jobs []func(context.Context) error) {
	for _, d := range k {
		jobs = append(jobs, d.Resume(l)...)
	}
	return jobs
}

// lost tells all that a connection is over.
func (k kinds) lost(l *link.Link) {
	for _, d := range k {
		d.Lost(l)
	}
}

// end ends all.
func (k kinds) end() {
	for _, d := range k {
		d.End()
	}
}

// resume takes up on a new connection what lived on the one before. After an error, what is on the new one already
// hears that it is lost.
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

// catchUp takes up what came while the connection was made, too late for resume and too early to find the connection.
func (c *Connector) catchUp(l *link.Link) {
	if jobs := c.dependents.toResume(l); len(jobs) > 0 {
		c.OnNext(func(ctx context.Context, _ *link.Link) error { return allWhileAnswered(ctx, jobs) })
	}
}

// allWhileAnswered does all jobs, some at once, until one fails or none ends for too long.
func allWhileAnswered(ctx context.Context, jobs []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(resumeSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	var begun, failed atomic.Int64
	var work sync.WaitGroup
	for range min(len(jobs), resumeAtOnce) {
		work.Go(func() {
			for i := begun.Add(1) - 1; int(i) < len(jobs); i = begun.Add(1) - 1 {
				if err := jobs[i](ctx); err != nil {
					cancel(err) // the first cause stays
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

// Refused reports whether the owner has answered, and did not want to. Whatever that was about, the connection is in
// order.
func Refused(err error) bool {
	var remote *message.Error
	return errors.As(err, &remote) && !errors.Is(err, status.ErrUnavailable)
}
