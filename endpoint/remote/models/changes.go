package models

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// Default and maximum wait of a changes request.
const (
	defaultWait = 20 * time.Second
	maxWait     = 2 * time.Minute
)

// serveChanges handles GET /v1/models/{model}/changes?server=ID&version=N&wait=20s. It answers as soon as the newest
// version differs from the given one, and with 204 when the wait ends or the gateway stops.
func (c *Component) serveChanges(w http.ResponseWriter, r *http.Request) {
	p := modelOf(r)
	query := r.URL.Query()
	known, err := strconv.ParseUint("0"+query.Get("version"), 10, 64)
	wait := defaultWait
	if text := query.Get("wait"); err == nil && text != "" {
		wait, err = time.ParseDuration(text)
	}
	if err != nil || p.Version != 0 || wait < 0 || wait > maxWait {
		WriteError(w, r, fmt.Errorf("%w: give NAME without a version, version=N, and wait=20s, at most %v", ErrParams, maxWait))
		return
	}
	if err := c.env.Allow(r.Context(), access.List, p.Name); err != nil {
		WriteError(w, r, err)
		return
	}
	client, ctx, unbind, err := c.owner(r.Context())
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer unbind()
	over, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	over, done := c.env.Wait(over)
	defer done()
	event, err := nextVersion(over, client, p.Name, query.Get("server"), known)
	stopping := err != nil && errors.Is(context.Cause(over), gateway.ErrDraining)
	if (stopping || errors.Is(err, context.DeadlineExceeded)) && ctx.Err() == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answerJSON(w, r, map[string]any{"name": p.Name, "version": event.Version, "server_id": event.Server}, err)
}

// nextVersion waits for a version of the name other than the known one.
func nextVersion(ctx context.Context, client *endpoint.Client, name, server string, known uint64) (endpoint.Event, error) {
	watcher, err := client.Watch(ctx, name)
	if err != nil {
		return endpoint.Event{}, err
	}
	defer watcher.Close()
	for event, err := range watcher.Events(ctx) {
		if err != nil || event.Kind == endpoint.EventPublished && (event.Version != known || event.Server != server) {
			return event, err
		}
	}
	return endpoint.Event{}, endpoint.ErrClosed // unreachable: the last pair is an error
}
