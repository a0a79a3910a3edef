package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// maxWait is how long the source is asked to wait for a change.
const maxWait = 20 * time.Second

// Follow pulls, and pulls again whenever the source has another newest version, until ctx ends, whose cause it returns.
// Versions that come while one is fetched are skipped but for the newest. What fails is told and tried again, for ever:
// a source or an owner that goes away and comes back is gone on with, and an owner that has lost the name gets it again
// from memory. Only the first pull may fail for good, where trying again cannot help. A source with a version in its
// address has nothing to follow. Places other than gateways are looked at every Options.Poll.
func (m *Mirror) Follow(ctx context.Context) error {
	if m.place == nil && m.source.version != 0 || m.place != nil && m.place.Pinned() {
		return fmt.Errorf("%w: the source names a version, and versions do not change", errors.ErrUnsupported)
	}
	pause := time.Second
	for pulled := false; ctx.Err() == nil; {
		_, err := m.Pull(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			pulled, pause = true, time.Second
			m.awaitChange(ctx)
		case !pulled && !passing(err) && !errors.Is(err, errChanged), !pulled && ownerRefuses(err):
			return err
		default:
			m.attempts.retry(err)
			_ = sleep(ctx, pause) // the loop's condition tells
			pause = min(2*pause, maxWait)
		}
	}
	return context.Cause(ctx)
}

// ownerRefuses reports whether the owner of this host will not take the model however often it is asked.
func ownerRefuses(err error) bool {
	return errors.Is(err, endpoint.ErrInvalid) || errors.Is(err, endpoint.ErrCapability)
}

// awaitChange waits until the source has another version than the known one, or another owner came here.
func (m *Mirror) awaitChange(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		m.awaitOwner(ctx)
	}()
	if m.place != nil {
		m.awaitPlace(ctx)
	} else {
		m.awaitSource(ctx)
	}
	cancel()
	<-ended
}

// awaitSource asks the source for its next version until it has one.
func (m *Mirror) awaitSource(ctx context.Context) {
	pause := 500 * time.Millisecond
	query := url.Values{
		"server": {m.known.server}, "version": {fmt.Sprint(m.known.version)}, "wait": {min(maxWait, m.options.Stall/2).String()},
	}
	for ctx.Err() == nil {
		var next struct {
			Version uint64 `json:"version"`
		}
		err := m.source.object(ctx, http.MethodGet, m.source.path(0, "/changes?"+query.Encode()), &next)
		switch {
		case err == nil && next.Version != 0:
			return
		case err == nil:
			pause = 500 * time.Millisecond
		case ctx.Err() == nil:
			m.attempts.retry(err)
			_ = sleep(ctx, pause) // the loop's condition tells
			pause = min(2*pause, maxWait/2)
		}
	}
}

// awaitPlace looks at the place until it has another model than the one that was made from it.
func (m *Mirror) awaitPlace(ctx context.Context) {
	for sleep(ctx, m.options.Poll) == nil {
		found, err := m.find(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			m.attempts.retry(err)
		case err == nil && found.Source != m.base.address:
			_ = found.Close() // it was only looked at
			return
		case err == nil:
			_ = found.Close() // as above
		}
	}
}

// awaitOwner waits until the owner of this host was replaced by another, or ctx ends.
func (m *Mirror) awaitOwner(ctx context.Context) {
	for ctx.Err() == nil {
		if m.sawAnotherOwner(ctx) {
			return
		}
		_ = sleep(ctx, time.Second) // the loop's condition tells
	}
}

// sawAnotherOwner waits for another owner as long as one watch lasts, and reports whether one came.
func (m *Mirror) sawAnotherOwner(ctx context.Context) bool {
	watcher, err := m.options.Owner.Watch(ctx, m.options.Name)
	if err != nil {
		return false
	}
	defer watcher.Close()
	for event, err := range watcher.Events(ctx) {
		if err == nil && event.Kind == endpoint.EventOwnerBack && event.Server != m.base.server {
			return true
		}
	}
	return false
}
