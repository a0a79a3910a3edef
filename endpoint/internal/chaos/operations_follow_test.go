//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// maxFollowers is the maximum number of followers that a client keeps.
const maxFollowers = 4

// followed is a follower, with the version that it refused last.
type followed struct {
	*endpoint.Follower[*prepared]
	client  *endpoint.Client
	name    string
	refused atomic.Pointer[string]
}

// prepared is the value that a follower prepares from a version.
type prepared struct {
	endpoint.ModelVersion
	salt   uint64
	closed atomic.Bool
}

// Close marks the value. It is called when no request uses the version.
func (p *prepared) Close() error {
	if p.closed.Swap(true) {
		return errors.New("the value of a version is closed twice")
	}
	return nil
}

// errUnwanted is the error with which followers refuse one version in eight.
var errUnwanted = errors.New("chaos: this version is refused")

// follow starts a follower. It checks every byte of each version before it is used.
func (w *lane) follow(ctx context.Context, c *endpoint.Client) error {
	f := &followed{client: c, name: w.name()}
	noWait := w.rng.IntN(2) == 0
	if !noWait { // the name may never be published
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
	}
	var err error
	f.Follower, err = endpoint.Follow(ctx, c, f.name, f.prepare(w.client), endpoint.FollowOptions{
		Validate: f.validate(w.client), NoWait: noWait, RefuseOlder: w.rng.IntN(4) == 0,
	})
	if err != nil {
		return err
	}
	var old *followed
	w.mu.Lock()
	w.followers = append(w.followers, f)
	if len(w.followers) > maxFollowers {
		old = w.followers[0]
		w.followers = w.followers[1:]
	}
	w.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// validate returns a function that checks a version and refuses one in eight.
func (f *followed) validate(c *client) func(context.Context, endpoint.ModelVersion) error {
	return func(_ context.Context, v endpoint.ModelVersion) error {
		salt, err := c.checkVersion(v.StateDict, v.Server, f.name, v.Version)
		if err != nil {
			c.r.fail("%s: follow: %v", c.a, err)
		}
		if salt%8 == 0 {
			key := versionKey(v.Server, f.name, v.Version)
			f.refused.Store(&key)
			return errUnwanted
		}
		return nil
	}
}

// prepare returns a function that prepares the value of a version.
func (f *followed) prepare(c *client) func(context.Context, endpoint.ModelVersion) (*prepared, error) {
	return func(_ context.Context, v endpoint.ModelVersion) (*prepared, error) {
		salt, err := c.checkVersion(v.StateDict, v.Server, f.name, v.Version)
		return &prepared{ModelVersion: v, salt: salt}, err
	}
}

// checkVersion checks the content of a version and records its salt.
func (c *client) checkVersion(sd *module.StateDict, server, name string, version uint64) (uint64, error) {
	salt, err := checkModel(sd)
	if err != nil {
		return salt, found("%s version %d: %w", name, version, err)
	}
	c.report.bytes.Add(sd.Bytes())
	return salt, c.salts.note(server, name, version, salt)
}

// check checks a value while its version is in use.
func (p *prepared) check(c *client, name string) error {
	salt, err := c.checkVersion(p.StateDict, p.Server, name, p.Version)
	c.report.followed.Add(1)
	switch {
	case err != nil:
		return err
	case salt != p.salt:
		return found("the value of %s version %d was prepared from %016x instead of %016x", name, p.Version, p.salt, salt)
	case p.closed.Load():
		return found("the value of %s version %d is closed while it is used", name, p.Version)
	}
	return nil
}

// pin is a pinned version of a name.
type pin struct {
	*endpoint.Pinned[*prepared]
	name string
}

// useFollower checks the version in use. In one of four cases it keeps the version pinned.
func (w *lane) useFollower(context.Context, *endpoint.Client) error {
	w.mu.Lock()
	if len(w.followers) == 0 {
		w.mu.Unlock()
		return nil
	}
	f := w.followers[w.rng.IntN(len(w.followers))]
	w.mu.Unlock()
	if w.rng.IntN(4) > 0 {
		return f.Use(func(p *prepared) error { return p.check(w.client, f.name) })
	}
	p, err := f.Current()
	if err != nil {
		return err
	}
	err = p.Value().check(w.client, f.name)
	var old *pin
	w.mu.Lock()
	w.pins = append(w.pins, pin{p, f.name})
	if len(w.pins) > maxKept {
		old = &w.pins[0]
		w.pins = w.pins[1:]
	}
	w.mu.Unlock()
	if old != nil {
		err = errors.Join(err, old.Value().check(w.client, old.name), old.Close())
	}
	return err
}

func (w *lane) closeFollower(context.Context, *endpoint.Client) error {
	w.mu.Lock()
	if len(w.followers) == 0 {
		w.mu.Unlock()
		return nil
	}
	i := w.rng.IntN(len(w.followers))
	f := w.followers[i]
	w.followers = slices.Delete(w.followers, i, i+1)
	w.mu.Unlock()
	return f.Close()
}

// verify waits until a follower uses the owner's newest version of its name, or has refused it.
func (f *followed) verify(models map[string]endpoint.ModelInfo, server string) error {
	m := models[f.name]
	for end := time.Now().Add(newsLimit); ; {
		changed := f.Changed()
		s := f.Status()
		refused := f.refused.Load()
		right := s.Version == m.Current && sameCatalog(s.Server, server) && s.Refused == nil ||
			errors.Is(s.Refused, errUnwanted) && refused != nil && *refused == versionKey(server, f.name, m.Current) ||
			errors.Is(s.Refused, endpoint.ErrOlderVersion) && !sameCatalog(s.Server, server) && s.Version >= m.Current
		if m.Current == 0 {
			right = s.Withdrawn || s.Server == "" || !sameCatalog(s.Server, server)
		}
		if right && !s.OwnerLost {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("follower of %s is STALE: %+v; the owner %s has %+v", f.name, s, server, m)
		}
	}
}
