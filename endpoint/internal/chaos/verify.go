//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// newsLimit is how long news of what has happened may take to arrive.
const newsLimit = 20 * time.Second

// verify compares, while nobody does anything, what handles, watchers and references know with what the owner says.
// What is known late is waited for; what stays unknown is found.
func (c *client) verify() error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	models, server, err := c.catalog(ctx)
	if err != nil {
		return err
	}
	for _, w := range c.watchers {
		if w.client == c.c {
			if err := w.verify(models, server); err != nil {
				return fmt.Errorf("%s: %w", c.a, err)
			}
		}
	}
	for _, h := range c.handles {
		if err := c.verifyHandle(h, models, server); err != nil {
			return fmt.Errorf("%s: %w", c.a, err)
		}
	}
	for _, ref := range c.refs {
		if err := c.verifyRef(ctx, ref, server); err != nil {
			return fmt.Errorf("%s: %w", c.a, err)
		}
	}
	return nil
}

// catalog returns the models of the owner that there is now, and its id.
func (c *client) catalog(ctx context.Context) (models map[string]endpoint.ModelInfo, server string, err error) {
	for {
		list, err := c.c.List(ctx)
		if errors.Is(err, endpoint.ErrUnavailable) { // the connection is of an owner that has gone
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s: list while all rest: %w", c.a, err)
		}
		models = map[string]endpoint.ModelInfo{}
		for _, m := range list {
			models[m.Name] = m
		}
		return models, c.c.ServerID(), nil
	}
}

// verify reads events until the watcher knows the newest version of each name.
func (w *watched) verify(models map[string]endpoint.ModelInfo, server string) error {
	ctx, cancel := context.WithTimeout(context.Background(), newsLimit)
	defer cancel()
	for {
		lacks := w.lacks(models, server)
		if lacks == "" {
			return nil
		}
		if err := w.next(ctx); err != nil {
			return fmt.Errorf("watcher is DEAF: of %v it does not know %s: %w", w.names, lacks, err)
		}
	}
}

// lacks is what the watcher does not know yet.
func (w *watched) lacks(models map[string]endpoint.ModelInfo, server string) string {
	for name, m := range models {
		if len(w.names) > 0 && !slices.Contains(w.names, name) {
			continue
		}
		last := w.last[name]
		if m.Current != 0 && (last.Server != server || last.Kind != endpoint.EventPublished || last.Version != m.Current) {
			return fmt.Sprintf("version %d of %s at %s, last was %+v", m.Current, name, server, last)
		}
	}
	for name, last := range w.last {
		if last.Server == server && last.Kind == endpoint.EventPublished && models[name].Current == 0 {
			return fmt.Sprintf("that %s is withdrawn, last was %+v", name, last)
		}
	}
	return ""
}

// verifyHandle waits until a handle's state agrees with the owner's catalog.
func (c *client) verifyHandle(h *endpoint.Handle, models map[string]endpoint.ModelInfo, server string) error {
	m := models[h.Name()]
	i := slices.IndexFunc(m.Versions, func(v endpoint.VersionInfo) bool { return v.Version == h.Version() })
	right := func() bool {
		switch state := h.State(); {
		case h.ServerID() != server:
			return state == endpoint.Orphaned && !h.Leased()
		case state == endpoint.Orphaned: // it came back too late to find its version
			return !h.Leased()
		case !h.Leased():
			return false
		case m.Current == h.Version():
			return state == endpoint.Current && i >= 0
		case m.Current == 0:
			return state == endpoint.Withdrawn && i >= 0
		default: // a newer one, perhaps after the name was withdrawn
			return state != endpoint.Current && h.Newest() == m.Current && i >= 0
		}
	}
	for end := time.Now().Add(newsLimit); !right(); {
		changed := h.Changed()
		if right() {
			break
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("handle is DEAF: %s version %d of %s is %v, newest %d, leased %v; the owner %s has %+v",
				h.Name(), h.Version(), h.ServerID(), h.State(), h.Newest(), h.Leased(), server, m)
		}
	}
	return nil
}

// verifyRef waits until a reference is good where the owner knows it, and is stale where not.
func (c *client) verifyRef(ctx context.Context, ref keptRef, server string) error {
	var known error
	for end := time.Now().Add(newsLimit); ; time.Sleep(20 * time.Millisecond) {
		err := ref.Err()
		if errors.Is(err, endpoint.ErrClosed) {
			return nil // its client was closed
		}
		_, known = c.c.EnsureLive(ctx, ref.ID(), ref.ServerID())
		if (err == nil) == (known == nil) && (known == nil || errors.Is(known, endpoint.ErrStale)) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("reference is DEAF: %s of %s says %v; the owner %s says %v", ref.ID(), ref.ServerID(), err, server, known)
		}
	}
}

// dropAll gives back all that this process has, and sees that nothing is left.
func (c *client) dropAll() error {
	var errs []error
	for _, h := range c.handles {
		if _, err := checkModel(h.StateDict()); err != nil {
			errs = append(errs, fmt.Errorf("%s version %d: %w", h.Name(), h.Version(), err))
		}
		errs = append(errs, h.Close())
	}
	for _, w := range c.watchers {
		errs = append(errs, w.Close())
	}
	for _, ref := range c.refs {
		errs = append(errs, checkTensor(ref.Value(), ref.key, 0, oneSpec(ref.key)), ref.Close())
	}
	c.handles, c.watchers, c.refs, c.tasks = nil, nil, nil, nil
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return back(c.base, newsLimit)
}
