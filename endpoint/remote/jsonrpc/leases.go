package jsonrpc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Limits of leases. One that nobody renews ends by itself: its holder may be dead.
const (
	defaultLease = time.Minute
	maxLease     = 10 * time.Minute
	maxLeases    = 256
)

// leaseStore has the versions that peers keep alive: while they fetch one, and as the base of the deltas to the next.
type leaseStore struct {
	mu     sync.Mutex
	byID   map[string]*lease
	kept   map[digestKey]int // leases of each version
	bytes  int64             // of all versions, each once
	closed bool
}

// lease is one version that a peer keeps.
type lease struct {
	id      string
	handle  *endpoint.Handle
	bytes   int64
	length  time.Duration
	until   time.Time
	readers int // of the handle's memory
	gone    bool
}

// leaseJSON describes a lease for its holder.
type leaseJSON struct {
	ID       string `json:"lease"`
	Name     string `json:"name"`
	Version  uint64 `json:"version"`
	ServerID string `json:"server_id"`
	Seconds  int    `json:"seconds"`
}

// describe is what the holder is told; the name and version stay after the handle was closed.
func (l *lease) describe() leaseJSON {
	return leaseJSON{l.id, l.handle.Name(), l.handle.Version(), l.handle.ServerID(), int(l.length / time.Second)}
}

// add keeps a version. The store takes the handle, also where it refuses.
func (s *leaseStore) add(h *endpoint.Handle, length time.Duration, limit int64) (leaseJSON, error) {
	l := &lease{id: rand.Text(), handle: h, bytes: h.StateDict().Bytes(), length: length, until: time.Now().Add(length)}
	s.mu.Lock()
	defer s.mu.Unlock()
	version := keyOf(h, "")
	var err error
	switch more := s.kept[version] == 0; {
	case s.closed:
		err = fmt.Errorf("%w: the gateway ends", endpoint.ErrUnavailable)
	case len(s.byID) >= maxLeases:
		err = fmt.Errorf("%w: there are %d leases", endpoint.ErrLimit, maxLeases)
	case more && l.bytes > limit-s.bytes:
		err = fmt.Errorf("%w: leases keep %d bytes, and all may keep %d: see --max-leased", endpoint.ErrLimit, s.bytes, limit)
	case more:
		s.bytes += l.bytes
	}
	if err != nil {
		return leaseJSON{}, errors.Join(err, h.Close())
	}
	if s.byID == nil {
		s.byID, s.kept = map[string]*lease{}, map[digestKey]int{}
	}
	s.byID[l.id] = l
	s.kept[version]++
	return l.describe(), nil
}

// open lends the version of a lease until release, and renews the lease.
func (s *leaseStore) open(id string) (*lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byID[id]
	if l == nil {
		return nil, fmt.Errorf("lease %q: %w: it was never there, or was not renewed in time", id, endpoint.ErrNotFound)
	}
	l.readers++
	l.until = time.Now().Add(l.length)
	return l, nil
}

func (s *leaseStore) release(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.readers--; l.readers == 0 && l.gone {
		_ = l.handle.Close() // nobody is left to be told
	}
}

// end ends the leases that answer true. The memory of one that is read goes when it is not read any more.
func (s *leaseStore) end(over func(*lease) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, l := range s.byID {
		if !over(l) {
			continue
		}
		delete(s.byID, id)
		version := keyOf(l.handle, "")
		if s.kept[version]--; s.kept[version] == 0 {
			delete(s.kept, version)
			s.bytes -= l.bytes
		}
		if l.gone = true; l.readers == 0 {
			errs = append(errs, l.handle.Close())
		}
	}
	return errors.Join(errs...)
}

// expire ends leases that were not renewed, until ctx ends.
func (s *leaseStore) expire(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			_ = s.end(func(l *lease) bool { return l.readers == 0 && now.After(l.until) })
		}
	}
}

func (s *leaseStore) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.end(func(*lease) bool { return true })
}

// takeLease is POST /v1/models/{model}/leases?seconds=60: the version stays in the owner's memory until the lease ends.
func (c *Component) takeLease(w http.ResponseWriter, r *http.Request) {
	length := defaultLease
	if text := r.URL.Query().Get("seconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 || time.Duration(seconds)*time.Second > maxLease {
			httpError(w, r, fmt.Errorf("%w: a lease lasts 1 to %d seconds", errParams, maxLease/time.Second))
			return
		}
		length = time.Duration(seconds) * time.Second
	}
	h, err := c.attach(r)
	if err != nil {
		httpError(w, r, err)
		return
	}
	out, err := c.leases.add(h, length, int64(c.MaxLeased))
	answerJSON(w, r, out, err)
}

// renewLease is POST /v1/leases/{id}.
func (c *Component) renewLease(w http.ResponseWriter, r *http.Request) {
	l, err := c.leases.open(r.PathValue("id"))
	if err != nil {
		httpError(w, r, err)
		return
	}
	defer c.leases.release(l)
	answerJSON(w, r, l.describe(), nil)
}

// endLease is DELETE /v1/leases/{id}.
func (c *Component) endLease(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := c.leases.end(func(l *lease) bool { return l.id == id }); err != nil {
		httpError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
