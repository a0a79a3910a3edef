package models

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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Limits of leases. A lease that is not renewed expires, because its holder may have died.
const (
	defaultLease = time.Minute
	maxLease     = 10 * time.Minute
	maxLeases    = 256
)

// leaseStore holds the versions that peers keep alive, during a fetch and as the base of later deltas.
type leaseStore struct {
	slots *admission.Pool // one slot for each lease

	mu     sync.Mutex
	byID   map[string]*lease
	kept   map[digestKey]int // number of leases of each version
	bytes  int64             // size of all leased versions, each counted once
	closed bool
}

// lease keeps one version for a peer.
type lease struct {
	id      string
	handle  *endpoint.Handle
	bytes   int64
	length  time.Duration
	until   time.Time
	readers int // requests that read the handle's memory
	gone    bool
	slot    *admission.Charge
}

// leaseJSON describes a lease to its holder.
type leaseJSON struct {
	ID       string `json:"lease"`
	Name     string `json:"name"`
	Version  uint64 `json:"version"`
	ServerID string `json:"server_id"`
	Seconds  int    `json:"seconds"`
}

// describe returns the description for the holder. It remains valid after the handle is closed.
func (l *lease) describe() leaseJSON {
	return leaseJSON{l.id, l.handle.Name(), l.handle.Version(), l.handle.ServerID(), int(l.length / time.Second)}
}

// add creates a lease. The store owns h, also if add fails.
func (s *leaseStore) add(id admission.Identity, h *endpoint.Handle, length time.Duration, limit int64) (leaseJSON, error) {
	l := &lease{id: rand.Text(), handle: h, bytes: h.StateDict().Bytes(), length: length, until: time.Now().Add(length), slot: s.slots.Open(id)}
	s.mu.Lock()
	defer s.mu.Unlock()
	version := keyOf(h, "")
	var err error
	full := l.slot.Add(1)
	switch more := s.kept[version] == 0; {
	case s.closed:
		err = fmt.Errorf("%w: the gateway is stopping", endpoint.ErrUnavailable)
	case full != nil:
		err = fmt.Errorf("%w: this client may have %d leases", endpoint.ErrLimit, s.slots.Limit(id))
	case more && l.bytes > limit-s.bytes:
		err = fmt.Errorf("%w: leases hold %d of at most %d bytes: raise --max-leased", endpoint.ErrLimit, s.bytes, limit)
	case more:
		s.bytes += l.bytes
	}
	if err != nil {
		l.slot.Close()
		return leaseJSON{}, errors.Join(err, h.Close())
	}
	if s.byID == nil {
		s.byID, s.kept = map[string]*lease{}, map[digestKey]int{}
	}
	s.byID[l.id] = l
	s.kept[version]++
	return l.describe(), nil
}

// open renews a lease and returns it for reading until release.
func (s *leaseStore) open(id string) (*lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byID[id]
	if l == nil {
		return nil, fmt.Errorf("lease %q: %w: it does not exist or has expired", id, endpoint.ErrNotFound)
	}
	l.readers++
	l.until = time.Now().Add(l.length)
	return l, nil
}

func (s *leaseStore) release(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.readers--; l.readers == 0 && l.gone {
		_ = l.handle.Close() // best effort: the lease has ended
	}
}

// end ends the leases for which over returns true. The memory of a lease with readers is released with the last reader.
func (s *leaseStore) end(over func(*lease) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, l := range s.byID {
		if !over(l) {
			continue
		}
		delete(s.byID, id)
		l.slot.Close()
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

// expire ends leases that were not renewed. It runs until ctx ends.
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

// takeLease handles POST /v1/models/{model}/leases?seconds=60. The owner keeps the version until the lease ends.
func (c *Component) takeLease(w http.ResponseWriter, r *http.Request) {
	length := defaultLease
	if text := r.URL.Query().Get("seconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 || time.Duration(seconds)*time.Second > maxLease {
			WriteError(w, r, fmt.Errorf("%w: a lease lasts 1 to %d seconds", ErrParams, maxLease/time.Second))
			return
		}
		length = time.Duration(seconds) * time.Second
	}
	h, err := c.attach(r)
	if err != nil {
		WriteError(w, r, err)
		return
	}
	out, err := c.leases.add(admission.Sender(r.Context()), h, length, int64(c.MaxLeased))
	answerJSON(w, r, out, err)
}

// renewLease handles POST /v1/leases/{id}.
func (c *Component) renewLease(w http.ResponseWriter, r *http.Request) {
	l, err := c.leases.open(r.PathValue("id"))
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer c.leases.release(l)
	answerJSON(w, r, l.describe(), nil)
}

// endLease handles DELETE /v1/leases/{id}.
func (c *Component) endLease(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := c.leases.end(func(l *lease) bool { return l.id == id }); err != nil {
		WriteError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
