package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
)

// maxWait is the longest wait for a change that is requested from the source.
const maxWait = 20 * time.Second

// Follow pulls the newest version, and again when the source has a new one, until ctx ends; it returns the cause of
// ctx. Versions published during a transfer are skipped, except the newest. Failures are reported as events and retried
// forever: Follow survives restarts of the source and the owner, and restores the name from memory if the owner has
// lost it. Only the first pull can fail permanently, if a retry cannot help. It returns errors.ErrUnsupported if the
// source's address has a version. Sources other than gateways are polled every Options.Poll.
func (m *Mirror) Follow(ctx context.Context) error {
	if m.place == nil && m.source.version != 0 || m.place != nil && m.place.Pinned() {
		return fmt.Errorf("%w: the source names a version, and versions do not change", errors.ErrUnsupported)
	}
	backoff, failed := retry.Backoff{Initial: time.Second, Max: maxWait}, 0
	for pulled := false; ctx.Err() == nil; {
		_, err := m.Pull(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			pulled, failed = true, 0
			m.awaitChange(ctx)
		case !pulled && !passing(err) && !errors.Is(err, errChanged), !pulled && ownerRefuses(err):
			return err
		default:
			m.attempts.retry(err)
			_ = retry.Sleep(ctx, backoff.Pause(failed)) // the loop condition checks ctx
			failed++
		}
	}
	return context.Cause(ctx)
}

// ownerRefuses reports whether this host's owner refuses the model permanently.
func ownerRefuses(err error) bool {
	return errors.Is(err, endpoint.ErrInvalid) || errors.Is(err, endpoint.ErrCapability)
}

// awaitChange waits until the source's version differs from the known one, or until this host's owner is replaced.
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

// awaitSource polls the source until it has another version.
func (m *Mirror) awaitSource(ctx context.Context) {
	backoff, failed := retry.Backoff{Initial: 500 * time.Millisecond, Max: maxWait / 2}, 0
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
			failed = 0
		case ctx.Err() == nil:
			m.attempts.retry(err)
			_ = retry.Sleep(ctx, backoff.Pause(failed)) // the loop condition checks ctx
			failed++
		}
	}
}

// awaitPlace polls the place until its model differs from the current base.
func (m *Mirror) awaitPlace(ctx context.Context) {
	for retry.Sleep(ctx, m.options.Poll) == nil {
		found, err := m.find(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			m.attempts.retry(err)
		case err == nil && found.Source != m.base.address:
			_ = found.Close() // only its address is needed
			return
		case err == nil:
			_ = found.Close() // only its address is needed
		}
	}
}

// awaitOwner waits until this host's owner is replaced, or ctx ends.
func (m *Mirror) awaitOwner(ctx context.Context) {
	for ctx.Err() == nil {
		if m.sawAnotherOwner(ctx) {
			return
		}
		_ = retry.Sleep(ctx, time.Second) // the loop condition checks ctx
	}
}

// sawAnotherOwner watches the owner until the watch ends, and reports whether the owner was replaced.
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
