//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// newsLimit is the maximum delay of an event.
const newsLimit = 20 * time.Second

// verify compares the state of handles, watchers and references with the owner's while all processes are paused. It
// waits for delayed events up to newsLimit.
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
	for _, f := range c.followers {
		if f.client == c.c {
			if err := f.verify(models, server); err != nil {
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

// catalog returns the models of the current owner, and its id.
func (c *client) catalog(ctx context.Context) (models map[string]endpoint.ModelInfo, server string, err error) {
	for {
		list, err := c.c.List(ctx)
		if errors.Is(err, endpoint.ErrUnavailable) { // the connection is to an owner that has ended
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s: list while all processes are paused: %w", c.a, err)
		}
		models = map[string]endpoint.ModelInfo{}
		for _, m := range list {
			models[m.Name] = m
		}
		return models, c.c.ServerID(), nil
	}
}

// verify reads events until the watcher has received the newest version of each name.
func (w *watched) verify(models map[string]endpoint.ModelInfo, server string) error {
	ctx, cancel := context.WithTimeout(context.Background(), newsLimit)
	defer cancel()
	for {
		missing := w.missing(models, server)
		if missing == "" {
			return nil
		}
		if err := w.next(ctx); err != nil {
			return fmt.Errorf("watcher is STALE: of %v it lacks %s: %w", w.names, missing, err)
		}
	}
}

// missing describes what the watcher has not received yet, or returns "".
func (w *watched) missing(models map[string]endpoint.ModelInfo, server string) string {
	for name, m := range models {
		if len(w.names) > 0 && !slices.Contains(w.names, name) {
			continue
		}
		last := w.last[name]
		if m.Current != 0 && (!sameCatalog(last.Server, server) || last.Kind != endpoint.EventPublished || last.Version != m.Current) {
			return fmt.Sprintf("version %d of %s at %s, last was %+v", m.Current, name, server, last)
		}
	}
	for name, last := range w.last {
		if sameCatalog(last.Server, server) && last.Kind == endpoint.EventPublished && models[name].Current == 0 {
			return fmt.Sprintf("that %s is withdrawn, last was %+v", name, last)
		}
	}
	return ""
}

// verifyHandle waits until a handle's state matches the owner's catalog.
func (c *client) verifyHandle(h *endpoint.Handle, models map[string]endpoint.ModelInfo, server string) error {
	m := models[h.Name()]
	i := slices.IndexFunc(m.Versions, func(v endpoint.VersionInfo) bool { return v.Version == h.Version() })
	right := func() bool {
		switch state := h.State(); {
		case !sameCatalog(h.ServerID(), server):
			return state == endpoint.Orphaned && !h.Leased()
		case state == endpoint.Orphaned: // it reconnected after its version had ended
			return !h.Leased()
		case !h.Leased():
			return false
		case m.Current == h.Version():
			return state == endpoint.Current && i >= 0
		case m.Current == 0:
			return state == endpoint.Withdrawn && i >= 0
		default: // there is a newer version, perhaps after a withdrawal
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
			return fmt.Errorf("handle is STALE: %s version %d of %s is %v, newest %d, leased %v; the owner %s has %+v",
				h.Name(), h.Version(), h.ServerID(), h.State(), h.Newest(), h.Leased(), server, m)
		}
	}
	return nil
}

// verifyRef waits until a reference is valid if the owner has it, and stale otherwise.
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
			return fmt.Errorf("reference is STALE: %s of %s reports %v; the owner %s reports %v", ref.ID(), ref.ServerID(), err, server, known)
		}
	}
}

// dropAll releases everything that this process holds, and checks that nothing remains.
func (c *client) dropAll() error {
	if err := c.releaseAll(); err != nil {
		return err
	}
	return awaitCounts(c.base, newsLimit)
}

// releaseAll checks and releases everything that this client holds.
func (c *client) releaseAll() error {
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
	for _, f := range c.followers {
		errs = append(errs, f.Close())
	}
	for _, p := range c.pins {
		errs = append(errs, p.Value().check(c, p.name), p.Close())
	}
	c.handles, c.watchers, c.refs, c.tasks, c.followers, c.pins = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
