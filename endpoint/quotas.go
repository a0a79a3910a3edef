package endpoint

import (
	"fmt"
	"math"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// PublishLimits bound what clients may have published. A version counts from its publication until its memory is freed,
// so one that was superseded or withdrawn counts as long as somebody reads it. What the owner publishes itself does not
// count.
type PublishLimits struct {
	// Versions is how many there may be, whatever their names.
	Versions int
	// Storages is how many storages they may have together. Each costs the owner a descriptor and a mapping.
	Storages int
	// Bytes is how much memory they may have together, by the sizes of their files: what is sparse counts as a whole.
	Bytes int64
	// ManifestBytes is what the names and the places of their tensors may cost the owner, by [ManifestCost].
	ManifestBytes int64
}

// usage is what of it is in use.
type usage struct {
	versions, storages int
	bytes, manifests   int64
}

func (u *usage) add(v usage, sign int) {
	u.versions += sign * v.versions
	u.storages += sign * v.storages
	u.bytes += int64(sign) * v.bytes
	u.manifests += int64(sign) * v.manifests
}

// room says whether more fits beside u, or which limit it would break. subject is that of the sentence.
func (l *PublishLimits) room(u, more usage, subject string) error {
	switch {
	case u.versions+more.versions > l.Versions:
		return limits.Exceeded(limits.Versions, "%s may have %d versions published, and has %d", subject, l.Versions, u.versions)
	case u.storages+more.storages > l.Storages:
		return limits.Exceeded(limits.Storages, "%s may have %d storages published, has %d and would have %d more", subject, l.Storages, u.storages, more.storages)
	case l.Bytes > 0 && more.bytes > l.Bytes-u.bytes:
		return limits.Exceeded(limits.StorageBytes, "%s may have %d bytes published, has %d and would have %d more", subject, l.Bytes, u.bytes, more.bytes)
	case l.ManifestBytes > 0 && more.manifests > l.ManifestBytes-u.manifests:
		return limits.Exceeded(limits.ManifestBytes, "the manifests of %s may cost %d bytes, cost %d and would cost %d more", subject, l.ManifestBytes, u.manifests, more.manifests)
	}
	return nil
}

// quotas count what clients have published, by session, that of clients that have gone included.
type quotas struct {
	mu      sync.Mutex
	total   usage
	by      map[uint64]*usage // by session
	charges map[*module.StateDict]charge
}

// charge is what one version counts, and for whom.
type charge struct {
	session uint64
	usage
}

// newCharge is what a publication would count: all the memory that its descriptors keep, also what its handles do not
// speak of.
func newCharge(session uint64, in *message.Publish, files *wire.Files) (charge, error) {
	c := charge{session: session, usage: usage{versions: 1, storages: len(in.Handles), manifests: ManifestCost(&in.Manifest)}}
	if in.Digests {
		c.manifests += int64(digestCost * in.Manifest.Len())
	}
	for _, h := range in.Handles {
		n := max(h.Bytes, uint64(files.Size(int(h.File))))
		if n > math.MaxInt64-uint64(c.bytes) {
			return charge{}, fmt.Errorf("%w: a publication of more than %d bytes", wire.ErrProtocol, int64(math.MaxInt64))
		}
		c.bytes += int64(n)
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
func (q *quotas) take(c charge, limits *Limits) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.by[c.session]
	if u == nil {
		u = new(usage)
	}
	if err := limits.Publish.room(*u, c.usage, "this client"); err != nil {
		return err
	}
	if err := limits.PublishTotal.room(q.total, c.usage, "clients"); err != nil {
		return err
	}
	if q.by == nil {
		q.by, q.charges = map[uint64]*usage{}, map[*module.StateDict]charge{}
	}
	q.by[c.session] = u
	u.add(c.usage, 1)
	q.total.add(c.usage, 1)
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
	u.add(c.usage, -1)
	q.total.add(c.usage, -1)
	if u.versions == 0 {
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
