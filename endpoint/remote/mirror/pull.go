package mirror

import (
	"context"
	"errors"
	"fmt"
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
	mf, err := m.source.manifest(ctx, version, m.hash(), m.options.MaxBytes)
	if errors.Is(err, ErrNotFound) && kept != nil {
		err = fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return result, err
	}
	result = Result{
		Name: m.options.Name, Source: m.options.Source, SourceVersion: mf.Version, Digest: mf.Digest().String(), Tensors: len(mf.Tensors), Bytes: mf.Bytes,
	}
	if err := m.checkDigest(mf.Digest()); err != nil {
		return result, err
	}
	if err := m.refreshBase(ctx); err != nil {
		return result, err
	}
	if err := m.digestBase(ctx, mf.Hash, true); err != nil {
		return result, err
	}
	kind := EventUnchanged
	if m.base == nil || m.base.version == 0 || !m.base.is(mf) {
		kind = EventPublished
		err = m.build(ctx, mf, moved, m.options.Source, func(a *modelwire.Arrival) error { return m.fillGateway(ctx, a, moved, &result) })
		if err != nil {
			return result, err
		}
	}
	m.base.lease.end()
	m.base.lease = kept
	if m.options.Peers != nil && m.base.offer == nil {
		tensors, done := m.base.offered()
		m.base.offer = m.options.Peers.offer(m.base.digest(), m.base.manifest.Bytes, done, tensors, nil)
	}
	m.known = knownVersion{mf.ServerID, mf.Version}
	result.Version, result.Unchanged = m.base.version, kind == EventUnchanged
	result.Moved, result.Seconds = m.attempts.moved.Load()-moved, time.Since(begin).Seconds()
	m.emit(Event{Kind: kind, Version: mf.Version, Done: mf.Bytes, Total: mf.Bytes, Moved: result.Moved, Result: &result})
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
	b, err := baseOfOwner(ctx, m.options.Owner, m.options.Name)
	if err != nil || b == nil {
		return err
	}
	err = m.base.close()
	m.base = b
	return err
}

// hash returns the hash function that is requested from a gateway: that of Options.Digest, or the fastest.
func (m *Mirror) hash() modelwire.Hash {
	if m.options.Digest != (modelwire.Digest{}) {
		return m.options.Digest.Hash
	}
	return modelwire.BLAKE3
}

// checkDigest returns an error unless the model has the expected digest.
func (m *Mirror) checkDigest(got modelwire.Digest) error {
	if want := m.options.Digest; want != (modelwire.Digest{}) && got != want {
		return fmt.Errorf("%w: the model has %v, want %v", ErrDigest, got, want)
	}
	return nil
}

// digestBase computes the digests of the base if they are wanted and unknown.
func (m *Mirror) digestBase(ctx context.Context, h modelwire.Hash, wanted bool) error {
	if m.base == nil || !wanted {
		return nil
	}
	return m.base.digestWith(ctx, h, m.options.Known)
}

// fetchOptions returns the options of downloads.
func (m *Mirror) fetchOptions() modelwire.FetchOptions {
	return modelwire.FetchOptions{Workers: m.options.Connections, RangeBytes: m.options.RangeBytes, Again: m.attempts.again}
}

// build allocates memory for the version, calls fill, and publishes it with the given address. The version becomes the
// base.
func (m *Mirror) build(ctx context.Context, mf *modelwire.Manifest, moved int64, address string, fill func(*modelwire.Arrival) error) (err error) {
	a, err := modelwire.NewArrival(m.options.Device, mf, mf.Hash.RangeBytes(m.options.RangeBytes))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.giving.close()
			m.giving = nil
			err = errors.Join(err, a.Close())
		}
	}()
	for _, d := range a.Tensors {
		if d != nil && d.Data() == nil {
			return fmt.Errorf("tensor %q: %w: the CPU cannot address the memory of %s", d.Entry.Name, errors.ErrUnsupported, m.options.Device.Info().Name)
		}
	}
	m.emit(Event{Kind: EventFound, Version: mf.Version, Total: mf.Bytes, Moved: m.attempts.moved.Load() - moved})
	if err = fill(a); err != nil {
		return err
	}
	version, err := m.publish(ctx, mf, a.StateDict(), address)
	if err != nil {
		return err
	}
	sd := a.Take()
	b := newBase(sd, mf, sd.Close)
	b.server, b.version, b.address = m.options.Owner.ServerID(), version, address
	if mf.Digested {
		m.options.Known.Add(modelwire.Version{ServerID: b.server, Name: m.options.Name, Version: version}, mf)
	}
	b.offer, m.giving = m.giving, nil
	old := m.base
	m.base = b
	return old.close()
}

// publish publishes the version with the SHA-256 of its tensors, if they are known.
func (m *Mirror) publish(ctx context.Context, mf *modelwire.Manifest, sd *module.StateDict, address string) (version uint64, err error) {
	described, storages := sd.Manifest()
	for i := range described.Tensors {
		if mf.Digested && mf.Hash == modelwire.SHA256 {
			described.Tensors[i].Digest = &mf.Tensors[i].Sum // both have the order of the source's manifest
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
func (m *Mirror) fillGateway(ctx context.Context, a *modelwire.Arrival, moved int64, result *Result) error {
	mf := a.Manifest
	defer m.watchProgress(mf.Version, moved, a)()
	if m.options.Peers == nil {
		return m.fill(ctx, a, result)
	}
	model := mf.Digest()
	m.giving = m.options.Peers.offer(model, mf.Bytes, &a.Done, offered(a), newKeptDeltas(mf.Bytes))
	m.picker.Store(m.options.Peers.pick(m, model, &a.Done))
	defer func() {
		m.giving.tell() // before other mirrors see the released slot
		result.FromPeers = m.picker.Load().moved.Load()
		m.picker.Swap(nil).close()
	}()
	return m.fill(ctx, a, result)
}

// fill puts all bytes into place. It copies tensors that the base has and fetches the rest.
func (m *Mirror) fill(ctx context.Context, a *modelwire.Arrival, result *Result) error {
	var list []*modelwire.Destination
	var patches []*patch
	for _, d := range a.Tensors {
		if d == nil {
			continue
		}
		if here := m.base.have(d.Entry.Digest); int64(len(here)) == d.Entry.Bytes {
			if err := d.Write(0, here); err != nil {
				return err
			}
			result.Copied += d.Entry.Bytes
		} else if p := m.base.patchFor(d, m.options.Peers != nil); p != nil {
			patches = append(patches, p)
		} else {
			list = append(list, d)
		}
	}
	if m.giving != nil {
		m.giving.deltas.plan(patches)
	}
	unpatched, err := m.patch(ctx, a.Manifest, patches)
	if err != nil {
		return err
	}
	for _, p := range patches {
		result.Patched += p.Entry.Bytes
	}
	for _, d := range unpatched {
		result.Patched -= d.Entry.Bytes
	}
	f := &fetcher{source: m.source, version: a.Manifest.Version, picker: m.picker.Load()}
	if f.picker != nil {
		f.model = a.Manifest.Digest()
	}
	var downloads []*modelwire.Download
	for _, d := range append(list, unpatched...) {
		downloads = append(downloads, f.download(d))
	}
	return modelwire.Fetch(ctx, downloads, m.fetchOptions())
}

// patch applies patches to tensors of the previous version. It returns the tensors that must be fetched.
func (m *Mirror) patch(ctx context.Context, mf *modelwire.Manifest, patches []*patch) (unpatched []*modelwire.Destination, err error) {
	if len(patches) == 0 {
		return nil, nil
	}
	p := &patcher{source: m.source, version: mf.Version, base: m.base.lease, picker: m.picker.Load()}
	if m.giving != nil {
		p.model, p.kept = mf.Digest(), m.giving.deltas
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
			unpatched = append(unpatched, one.Destination)
		}
	}
	return unpatched, err
}
