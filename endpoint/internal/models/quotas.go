package models

import (
	"fmt"
	"math"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Bounds are those of what clients may have published, as the limits of the server say.
type Bounds struct {
	Versions      int   // whatever their names
	Storages      int   // of them together
	Bytes         int64 // of the storages
	ManifestBytes int64 // that the manifests cost
}

// Usage is what of it is in use.
type Usage struct {
	Versions, Storages int   // published
	Bytes, Manifests   int64 // of the storages, and what the manifests cost
}

func (u *Usage) add(v Usage, sign int) {
	u.Versions += sign * v.Versions
	u.Storages += sign * v.Storages
	u.Bytes += int64(sign) * v.Bytes
	u.Manifests += int64(sign) * v.Manifests
}

// room says whether more fits beside u, or which limit it would break. subject is that of the sentence.
func (l *Bounds) room(u, more Usage, subject string) error {
	switch {
	case u.Versions+more.Versions > l.Versions:
		return limits.Exceeded(limits.Versions, "%s may have %d versions published, and has %d", subject, l.Versions, u.Versions)
	case u.Storages+more.Storages > l.Storages:
		return limits.Exceeded(limits.Storages, "%s may have %d storages published, has %d and would have %d more", subject, l.Storages, u.Storages, more.Storages)
	case l.Bytes > 0 && more.Bytes > l.Bytes-u.Bytes:
		return limits.Exceeded(limits.StorageBytes, "%s may have %d bytes published, has %d and would have %d more", subject, l.Bytes, u.Bytes, more.Bytes)
	case l.ManifestBytes > 0 && more.Manifests > l.ManifestBytes-u.Manifests:
		return limits.Exceeded(limits.ManifestBytes, "the manifests of %s may cost %d bytes, cost %d and would cost %d more", subject, l.ManifestBytes, u.Manifests, more.Manifests)
	}
	return nil
}

// quotas count what clients have published, by session, that of clients that have gone included.
type quotas struct {
	mu      sync.Mutex
	total   Usage
	by      map[uint64]*Usage // by session
	charges map[*module.StateDict]charge
}

// charge is what one version counts, and for whom.
type charge struct {
	session uint64
	Usage
}

// newCharge is what a publication would count: all the memory that its descriptors keep, also what its handles do not
// speak of.
func newCharge(session uint64, in *message.Publish, files *wire.Files) (charge, error) {
	c := charge{session: session, Usage: Usage{Versions: 1, Storages: len(in.Handles), Manifests: ManifestCost(&in.Manifest)}}
	if in.Digests {
		c.Manifests += int64(digestCost * in.Manifest.Len())
	}
	for _, h := range in.Handles {
		n := max(h.Bytes, uint64(files.Size(int(h.File))))
		if n > math.MaxInt64-uint64(c.Bytes) {
			return charge{}, fmt.Errorf("%w: a publication of more than %d bytes", wire.ErrProtocol, int64(math.MaxInt64))
		}
		c.Bytes += int64(n)
	}
	return c, nil
}

// What the parts of a manifest cost an owner at most, in bytes: the tensor and its entry in the state dict, a metadata
// entry, and the rest.
const (
	tensorCost   = 320
	digestCost   = 128 // where the owner computes them
	metadataCost = 128
	manifestCost = 4096
)

// ManifestCost is what an owner is charged for the manifest of a publication: at least the memory that its columns,
// texts and tensors take there.
func ManifestCost(m *message.Manifest) int64 {
	cost := int64(manifestCost + tensorCost*m.Len() + 2*len(m.Names) + 3*(len(m.Dims)+len(m.Strides)+len(m.Digests)))
	for k, v := range m.Metadata {
		cost += int64(metadataCost + 2*(len(k)+len(v)))
	}
	return cost
}

// take makes room for a publication. The caller gives it back, or binds it to the version that it becomes.
func (q *quotas) take(c charge, one, all *Bounds) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.by[c.session]
	if u == nil {
		u = new(Usage)
	}
	if err := one.room(*u, c.Usage, "this client"); err != nil {
		return err
	}
	if err := all.room(q.total, c.Usage, "clients"); err != nil {
		return err
	}
	if q.by == nil {
		q.by, q.charges = map[uint64]*Usage{}, map[*module.StateDict]charge{}
	}
	q.by[c.session] = u
	u.add(c.Usage, 1)
	q.total.add(c.Usage, 1)
	return nil
}

// giveBack undoes take.
func (q *quotas) giveBack(c charge) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveBackLocked(c)
}

func (q *quotas) giveBackLocked(c charge) {
	u := q.by[c.session]
	u.add(c.Usage, -1)
	q.total.add(c.Usage, -1)
	if u.Versions == 0 {
		delete(q.by, c.session)
	}
}

// bind makes a charge that of a state dict, to be given back when that is dropped.
func (q *quotas) bind(c charge, sd *module.StateDict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.charges[sd] = c
}

// drop gives back what a state dict was charged, if it was.
func (q *quotas) drop(sd *module.StateDict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c, ok := q.charges[sd]; ok {
		delete(q.charges, sd)
		q.giveBackLocked(c)
	}
}

// Use is what clients have published: all together, and the most that one has of each.
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
