package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// Limits of leases. A lease that is not renewed expires, because its holder may have died.
const (
	defaultLease = time.Minute
	maxLease     = 10 * time.Minute
	maxLeases    = 256
)

// leaseStore holds the versions that peers keep alive, during a fetch and as the base of later deltas.
type leaseStore struct {
	*admission.Kept[*lease]

	mu    sync.Mutex
	kept  map[modelwire.Version]int // number of leases of each version
	users map[use]int               // number of leases of each user
	bytes int64                     // size of all leased versions, each counted once
}

// use is a version that a client on a host uses.
type use struct {
	Host     string `json:"host"`
	Identity string `json:"identity"`
	Model    string `json:"model"`
	Version  uint64 `json:"version"`
}

// lease keeps one version for a peer.
type lease struct {
	handle *endpoint.Handle
	length time.Duration
	by     use
}

func newLeaseStore() *leaseStore {
	s := &leaseStore{kept: make(map[modelwire.Version]int), users: make(map[use]int)}
	s.Kept = admission.NewKept(maxLeases, func(q rights.Quota) int64 { return q.Leases }, s.left, func(l *lease) error { return l.handle.Close() })
	return s
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
func describe(e *admission.Entry[*lease]) leaseJSON {
	h := e.Value.handle
	return leaseJSON{e.ID, h.Name(), h.Version(), h.ServerID(), int(e.Value.length / time.Second)}
}

// add creates a lease for a client on a host. The store owns h, also if add fails.
func (s *leaseStore) add(id rights.Identity, host string, h *endpoint.Handle, length time.Duration, limit int64) (leaseJSON, error) {
	l := &lease{h, length, use{Host: host, Identity: cmp.Or(id.Name, id.Method), Model: h.Name(), Version: h.Version()}}
	if err := s.reserve(l, limit); err != nil {
		return leaseJSON{}, errors.Join(err, h.Close())
	}
	e, err := s.Add(id, l, length)
	if err == nil {
		return describe(e), nil
	}
	if errors.Is(err, admission.ErrLimit) {
		err = fmt.Errorf("%w: this client may have %d leases", endpoint.ErrLimit, s.Limit(id))
	}
	s.left(l)
	return leaseJSON{}, errors.Join(err, h.Close())
}

// reserve counts the version of a lease.
func (s *leaseStore) reserve(l *lease, limit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, n := versionOf(l.handle), l.handle.StateDict().Bytes()
	if s.kept[version] == 0 {
		if n > limit-s.bytes {
			return fmt.Errorf("%w: leases hold %d of at most %d bytes: raise --max-leased", endpoint.ErrLimit, s.bytes, limit)
		}
		s.bytes += n
	}
	s.kept[version]++
	s.users[l.by]++
	return nil
}

// left undoes reserve.
func (s *leaseStore) left(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := versionOf(l.handle)
	if s.kept[version]--; s.kept[version] == 0 {
		delete(s.kept, version)
		s.bytes -= l.handle.StateDict().Bytes()
	}
	if s.users[l.by]--; s.users[l.by] == 0 {
		delete(s.users, l.by)
	}
}

// inUse is a row of the status: a use and the number of its leases.
type inUse struct {
	use
	Leases int `json:"leases"`
}

// uses returns the leased versions by host, sorted.
func (s *leaseStore) uses() []inUse {
	s.mu.Lock()
	rows := make([]inUse, 0, len(s.users))
	for by, n := range s.users {
		rows = append(rows, inUse{by, n})
	}
	s.mu.Unlock()
	slices.SortFunc(rows, func(a, b inUse) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Model, b.Model), cmp.Compare(a.Version, b.Version), strings.Compare(a.Identity, b.Identity))
	})
	return rows
}

// Status implements gateway.StatusReporter. It returns the versions that clients lease, by host.
func (c *Component) Status(context.Context) (any, error) { return c.leases.uses(), nil }

// get renews a lease of a client for reading until Release.
func (s *leaseStore) get(sender rights.Identity, id string) (*admission.Entry[*lease], error) {
	if e := s.OpenOf(sender, id); e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("lease %q: %w: it does not exist or has expired", id, endpoint.ErrNotFound)
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
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	out, err := c.leases.add(rights.Sender(r.Context()), host, h, length, int64(c.MaxLeased))
	answerJSON(w, r, out, err)
}

// renewLease handles POST /v1/leases/{id}.
func (c *Component) renewLease(w http.ResponseWriter, r *http.Request) {
	e, err := c.leases.get(rights.Sender(r.Context()), r.PathValue("id"))
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer c.leases.Release(e)
	answerJSON(w, r, describe(e), nil)
}

// endLease handles DELETE /v1/leases/{id}.
func (c *Component) endLease(w http.ResponseWriter, r *http.Request) {
	if _, err := c.leases.RemoveOf(rights.Sender(r.Context()), r.PathValue("id")); err != nil {
		WriteError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
