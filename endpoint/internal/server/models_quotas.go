package server

import (
	"fmt"
	"math"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Usage is the part of [status.PublishLimits] in use.
type Usage struct {
	Versions, Storages int   // published
	Bytes, Manifests   int64 // of the storages; cost of the manifests
}

func (u *Usage) add(v Usage, sign int) {
	u.Versions += sign * v.Versions
	u.Storages += sign * v.Storages
	u.Bytes += int64(sign) * v.Bytes
	u.Manifests += int64(sign) * v.Manifests
}

// room returns an error if u plus more would exceed a limit. subject is the subject of the error text.
func room(l status.PublishLimits, u, more Usage, subject string) error {
	switch {
	case u.Versions+more.Versions > l.Versions:
		return status.Exceeded(status.LimitVersions, "%s may have %d versions published, and has %d", subject, l.Versions, u.Versions)
	case u.Storages+more.Storages > l.Storages:
		return status.Exceeded(status.LimitStorages, "%s may have %d storages published, has %d and would have %d more", subject, l.Storages, u.Storages, more.Storages)
	case l.Bytes > 0 && more.Bytes > l.Bytes-u.Bytes:
		return status.Exceeded(status.LimitStorageBytes, "%s may have %d bytes published, has %d and would have %d more", subject, l.Bytes, u.Bytes, more.Bytes)
	case l.ManifestBytes > 0 && more.Manifests > l.ManifestBytes-u.Manifests:
		return status.Exceeded(status.LimitManifestBytes, "the manifests of %s may cost %d bytes, cost %d and would cost %d more", subject, l.ManifestBytes, u.Manifests, more.Manifests)
	}
	return nil
}

// quotas counts publications by session, including sessions that have ended.
type quotas struct {
	mu    sync.Mutex
	total Usage
	by    map[uint64]*Usage // by session
}

// charge is the usage of one version and the session that it belongs to.
type charge struct {
	session uint64
	Usage
}

// usageOf returns the usage of one version without its bytes.
func usageOf(m *message.Manifest, handles []message.Handle, digests bool) Usage {
	u := Usage{Versions: 1, Storages: len(handles), Manifests: ManifestCost(m)}
	if digests {
		u.Manifests += int64(digestCost * m.Len())
	}
	return u
}

// newCharge returns the charge of a publication. It covers all memory of its descriptors, including parts that no
// handle refers to.
func newCharge(session uint64, in *message.Publish, files *wire.Files) (charge, error) {
	c := charge{session: session, Usage: usageOf(&in.Manifest, in.Handles, in.Digests)}
	for _, h := range in.Handles {
		n := max(h.Bytes, uint64(files.Size(int(h.File))))
		if n > math.MaxInt64-uint64(c.Bytes) {
			return charge{}, fmt.Errorf("%w: the publication exceeds %d bytes", wire.ErrProtocol, int64(math.MaxInt64))
		}
		c.Bytes += int64(n)
	}
	return c, nil
}

// The maximum cost in bytes of the parts of a manifest: a tensor with its entry in the state dict, a metadata entry,
// and the rest.
const (
	tensorCost   = 320
	digestCost   = 128 // if the owner computes them
	metadataCost = 128
	manifestCost = 4096
)

// ManifestCost returns the charge for the manifest of a publication. It is an upper bound of the memory of its columns,
// texts and tensors.
func ManifestCost(m *message.Manifest) int64 {
	cost := int64(manifestCost + tensorCost*m.Len() + 2*len(m.Names) + 3*(len(m.Dims)+len(m.Strides)+len(m.Digests)))
	for k, v := range m.Metadata {
		cost += int64(metadataCost + 2*(len(k)+len(v)))
	}
	return cost
}

// take charges a publication, until giveBack.
func (q *quotas) take(c charge, one, all status.PublishLimits) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.by[c.session]
	if u == nil {
		u = new(Usage)
	}
	if err := room(one, *u, c.Usage, "this client"); err != nil {
		return err
	}
	if err := room(all, q.total, c.Usage, "clients"); err != nil {
		return err
	}
	if q.by == nil {
		q.by = map[uint64]*Usage{}
	}
	q.by[c.session] = u
	u.add(c.Usage, 1)
	q.total.add(c.Usage, 1)
	return nil
}

// giveBack reverts take. A zero charge changes nothing.
func (q *quotas) giveBack(c charge) {
	if c == (charge{}) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.by[c.session]
	u.add(c.Usage, -1)
	q.total.add(c.Usage, -1)
	if u.Versions == 0 {
		delete(q.by, c.session)
	}
}

// Use returns the usage of all clients together, and the highest usage by one client in each category.
func (m *Models) Use() (total, most Usage) {
	q := &m.quotas
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, u := range q.by {
		most.Versions, most.Storages = max(most.Versions, u.Versions), max(most.Storages, u.Storages)
		most.Bytes, most.Manifests = max(most.Bytes, u.Bytes), max(most.Manifests, u.Manifests)
	}
	return q.total, most
}
