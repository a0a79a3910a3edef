package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// maxRestarts limits how often a pull restarts because the source has removed its version.
const maxRestarts = 5

// Pull fetches the source's version (the newest unless the source names one) and publishes it, unless it equals the
// owner's newest version. After an error the owner is unchanged. Errors: ErrSource, ErrDigest, ErrTooLarge,
// ErrNotFound, ErrDenied, ErrStalled, connection errors, and those of endpoint.Client.Publish.
func (m *Mirror) Pull(ctx context.Context) (Result, error) {
	for restart := 0; ; restart++ {
		result, err := m.pullOnce(ctx)
		if !errors.Is(err, errChanged) || restart == maxRestarts || ctx.Err() != nil {
			return result, err
		}
		m.attempts.retry(err)
	}
}

// pullOnce makes one attempt to pull one version.
func (m *Mirror) pullOnce(ctx context.Context) (Result, error) {
	if m.place != nil {
		return m.pullPlace(ctx)
	}
	return m.pullGateway(ctx)
}

// pullGateway makes one attempt to pull one version from a gateway.
func (m *Mirror) pullGateway(ctx context.Context) (result Result, err error) {
	begin, moved := time.Now(), m.attempts.moved.Load()
	kept, err := m.source.takeLease(ctx, m.source.version, m.options.Lease)
	if err != nil {
		return result, err
	}
	defer func() {
		if err != nil {
			kept.end()
		}
	}()
	version := m.source.version
	if kept != nil {
		version = kept.Version
	}
	mf, err := m.source.manifest(ctx, version, m.options.MaxBytes)
	if errors.Is(err, ErrNotFound) && kept != nil {
		err = fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return result, err
	}
	result = Result{
		Name: m.options.Name, Source: m.options.Source, SourceVersion: mf.version, Digest: mf.digest().String(), Tensors: len(mf.tensors), Bytes: mf.bytes,
	}
	if want := m.options.Digest; want != (module.Digest{}) && mf.digest() != want {
		return result, fmt.Errorf("%w: the model has %v, want %v", ErrDigest, mf.digest(), want)
	}
	if err := m.refreshBase(ctx); err != nil {
		return result, err
	}
	kind := EventUnchanged
	if m.base == nil || m.base.version == 0 || !m.base.is(mf) {
		kind = EventPublished
		err = m.build(ctx, mf, moved, m.options.Source, func(sd *module.StateDict) error { return m.fillGateway(ctx, mf, sd, moved, &result) })
		if err != nil {
			return result, err
		}
	}
	m.base.lease.end()
	m.base.lease = kept
	if m.options.Peers != nil && m.base.offer == nil {
		tensors, done := m.base.offered()
		m.base.offer = m.options.Peers.offer(m.base.digest, m.base.bytes, done, tensors, nil)
	}
	m.known = knownVersion{mf.server, mf.version}
	result.Version, result.Unchanged = m.base.version, kind == EventUnchanged
	result.Moved, result.Seconds = m.attempts.moved.Load()-moved, time.Since(begin).Seconds()
	m.emit(Event{Kind: kind, Version: mf.version, Done: mf.bytes, Total: mf.bytes, Moved: result.Moved, Result: &result})
	return result, nil
}

// refreshBase updates the base with the owner's current version. If another owner has replaced the previous one, the
// old base can still be copied from.
func (m *Mirror) refreshBase(ctx context.Context) error {
	info, err := m.options.Owner.Info(ctx, m.options.Name)
	if err != nil && !errors.Is(err, endpoint.ErrNotFound) {
		return err
	}
	if b := m.base; b != nil && info.Current == b.version && b.server == m.options.Owner.ServerID() {
		return nil
	}
	if info.Current == 0 {
		if m.base != nil {
			m.base.version = 0
		}
		return nil
	}
	b, err := baseOfOwner(ctx, m.options.Owner, m.options.Name, m.place == nil || m.wantsDigests())
	if err != nil || b == nil {
		return err
	}
	err = m.base.close()
	m.base = b
	return err
}

// build allocates memory for the version, calls fill, and publishes it with the given address. The version becomes the
// base.
func (m *Mirror) build(ctx context.Context, mf *manifest, moved int64, address string, fill func(*module.StateDict) error) (err error) {
	sd, err := module.Empty(m.options.Device, mf.specs()) // fill writes all of it
	if err != nil {
		return err
	}
	sd.Metadata = mf.metadata
	defer func() {
		if err != nil {
			m.giving.close()
			m.giving = nil
			err = errors.Join(err, sd.Close())
		}
	}()
	m.emit(Event{Kind: EventFound, Version: mf.version, Total: mf.bytes, Moved: m.attempts.moved.Load() - moved})
	if err = fill(sd); err != nil {
		return err
	}
	version, err := m.publish(ctx, mf, sd, address)
	if err != nil {
		return err
	}
	b := newBase(sd, mf, sd.Close)
	b.server, b.version, b.address = m.options.Owner.ServerID(), version, address
	b.offer, m.giving = m.giving, nil
	old := m.base
	m.base = b
	return old.close()
}

// publish publishes the version with the digests of its tensors, if they are known.
func (m *Mirror) publish(ctx context.Context, mf *manifest, sd *module.StateDict, address string) (version uint64, err error) {
	described, storages := sd.Manifest()
	for i := range described.Tensors {
		if mf.digested {
			described.Tensors[i].Digest = &mf.tensors[i].digest // both have the order of the source's manifest
		}
	}
	named, err := module.FromManifest(described, storages)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, named.Close()) }()
	return m.options.Owner.Publish(ctx, m.options.Name, named, endpoint.PublishOptions{Source: address})
}

// fillGateway is fill with other mirrors: it offers them the received data and fetches from them.
func (m *Mirror) fillGateway(ctx context.Context, mf *manifest, sd *module.StateDict, moved int64, result *Result) error {
	var done atomic.Int64
	defer m.watchProgress(mf.version, mf.bytes, moved, &done)()
	if m.options.Peers == nil {
		return m.fill(ctx, mf, sd, &done, nil, result)
	}
	model, offered := mf.digest(), map[module.Digest]*offeredTensor{}
	for i := range mf.tensors {
		one := &mf.tensors[i]
		if one.TiedTo != "" || one.bytes == 0 {
			continue
		}
		at, err := slotOf(sd, one)
		if err != nil {
			return err
		}
		offered[one.digest] = &offeredTensor{at.data, newArrivals(one.bytes, min(m.options.RangeBytes, one.bytes))}
	}
	m.giving = m.options.Peers.offer(model, mf.bytes, &done, offered, newKeptDeltas(mf.bytes))
	m.picker.Store(m.options.Peers.pick(m, model, &done))
	defer func() {
		m.giving.tell() // before other mirrors see the released slot
		result.FromPeers = m.picker.Load().moved.Load()
		m.picker.Swap(nil).close()
	}()
	return m.fill(ctx, mf, sd, &done, offered, result)
}

// fill puts all bytes into place. It copies tensors that the base has and fetches the rest.
func (m *Mirror) fill(ctx context.Context, mf *manifest, sd *module.StateDict, done *atomic.Int64, offered map[module.Digest]*offeredTensor, result *Result) error {
	var list []*download
	var patches []*patch
	for i := range mf.tensors {
		one := &mf.tensors[i]
		if one.TiedTo != "" || one.bytes == 0 {
			continue
		}
		at, err := slotOf(sd, one)
		if err != nil {
			return err
		}
		d := &download{slot: at, entry: one, done: done, offered: offeredAs(offered, one.digest, at.data)}
		if here := m.base.have(one.digest); int64(len(here)) == one.bytes {
			if err := d.copyFrom(here); err != nil {
				return err
			}
			result.Copied += one.bytes
			done.Add(one.bytes)
			d.offered.markReceived(0, one.bytes)
			continue
		}
		if p := m.base.patchFor(d, m.options.Peers != nil); p != nil {
			patches = append(patches, p)
		} else {
			list = append(list, d)
		}
	}
	if m.giving != nil {
		m.giving.deltas.plan(patches)
	}
	unpatched, err := m.patch(ctx, mf, patches)
	if err != nil {
		return err
	}
	for _, p := range patches {
		result.Patched += p.entry.bytes
	}
	for _, d := range unpatched {
		result.Patched -= d.entry.bytes
	}
	list = append(list, unpatched...)
	f := &fetcher{source: m.source, version: mf.version, rangeBytes: m.options.RangeBytes, workers: m.options.Connections, picker: m.picker.Load()}
	if f.picker != nil {
		f.model = mf.digest()
	}
	return f.fetch(ctx, list)
}

// patch applies patches to tensors of the previous version. It returns the tensors that must be fetched.
func (m *Mirror) patch(ctx context.Context, mf *manifest, patches []*patch) (unpatched []*download, err error) {
	if len(patches) == 0 {
		return nil, nil
	}
	p := &patcher{source: m.source, version: mf.version, base: m.base.lease, picker: m.picker.Load()}
	if m.giving != nil {
		p.model, p.kept = mf.digest(), m.giving.deltas
	}
	failed := make([]bool, len(patches))
	err = modelwire.Parallel(ctx, m.options.Connections, len(patches), func(ctx context.Context, i int) error {
		err := p.run(ctx, patches[i])
		if failed[i] = errors.Is(err, errNoPatch); failed[i] {
			m.attempts.retry(err)
			return nil
		}
		return err
	})
	for i, one := range patches {
		if failed[i] {
			unpatched = append(unpatched, one.download)
		}
	}
	return unpatched, err
}

// have returns memory that contains the bytes with that digest; nil if there is none.
func (b *base) have(d module.Digest) []byte {
	if b == nil {
		return nil
	}
	return b.byDigest[d]
}
