package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// PlaceOn is a device on which a server makes placements. Package endpoint documents the same type.
type PlaceOn struct {
	Device driver.Device // one of the server
	Budget int64         // bytes; 0 means the memory of the device
	Keep   time.Duration // without leases
}

// places returns the devices for the catalog, with the defaults of the budgets.
func places(on []PlaceOn, devices map[driver.UUID]driver.Device) ([]catalog.Place, error) {
	var list []catalog.Place
	seen := map[driver.UUID]bool{}
	for _, p := range on {
		if p.Device == nil {
			return nil, status.Configuration(fmt.Errorf("%w: placements without a device", status.ErrInvalid))
		}
		info := p.Device.Info()
		if p.Budget == 0 {
			p.Budget, _ = p.Device.MemoryLimit()
		}
		switch {
		case devices[info.UUID] == nil:
			return nil, status.Configuration(fmt.Errorf("%w: placements on %s: it is not a device of this server", status.ErrInvalid, info))
		case seen[info.UUID]:
			return nil, status.Configuration(fmt.Errorf("%w: placements on %s are configured twice", status.ErrInvalid, info))
		case p.Budget <= 0 || p.Keep < 0:
			return nil, status.Configuration(fmt.Errorf("%w: placements on %s: a budget of %d bytes, kept for %v", status.ErrInvalid, info, p.Budget, p.Keep))
		}
		seen[info.UUID] = true
		list = append(list, catalog.Place{Device: info, Budget: p.Budget, Keep: p.Keep})
	}
	return list, nil
}

// placer makes the placements of versions: copies on other devices. The catalog has their records. Each placement is
// made in one goroutine, one at a time on each device, so the memory of a cancelled one is freed before the next one is
// allocated.
type placer struct {
	of     *Models
	turns  map[driver.UUID]chan struct{} // holds a token while a copy to the device runs
	ctx    context.Context               // ends with the server
	stop   context.CancelCauseFunc
	remove []func() // ends the registrations with the devices

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // added to under mu while not closed
}

// start prepares the devices for placements.
func (p *placer) start(m *Models, on []catalog.Place) {
	p.of, p.turns = m, map[driver.UUID]chan struct{}{}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	for _, place := range on {
		uuid := place.Device.UUID
		p.turns[uuid] = make(chan struct{}, 1)
		p.remove = append(p.remove, m.Devices[uuid].OnRefused(func(bytes int64) bool { return m.Catalog.Reclaim(uuid, bytes) > 0 }))
	}
}

// close cancels all copies and waits for their ends.
func (p *placer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop(status.ErrServerClosing)
	p.work.Wait()
	for _, remove := range p.remove {
		remove()
	}
}

// begin adds a copy to the work, unless the server is closing.
func (p *placer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Add(1)
	}
	return !p.closed
}

// lease returns a second lease of the version on a device, for a client that holds the first one; the first itself if the
// version is on the device. If there is no placement, it starts one. The caller owns the result and waits for it.
func (p *placer) lease(c *client, held *catalog.Lease, device driver.UUID) (*catalog.Lease, error) {
	origin := recordOf(held.Record())
	bytes, err := bytesElsewhere(origin.export.Storages, device, p.of.Devices[device])
	if bytes == 0 && err == nil {
		return held, nil
	}
	if err != nil {
		return nil, err
	}
	if !p.begin() {
		return nil, status.ErrServerClosing
	}
	ctx, stop := context.WithCancelCause(p.ctx)
	most := p.of.Limits.PlacementBytes
	if c.session.Own {
		most = 0
	}
	placed, made, err := p.of.Catalog.Place(held, device, bytes, most, func() { stop(catalog.ErrUnplaced) })
	if err != nil || !made {
		stop(nil)
		p.work.Done()
		return placed, placeError(err, device)
	}
	from := origin.StateDict.Alias() // the version may be freed during the copy
	go func() {
		defer p.work.Done()
		defer stop(nil)
		p.make(ctx, placed, origin, from, p.of.Devices[device])
	}()
	return placed, nil
}

// placeError converts an error of [catalog.Catalog.Place] for clients, without its operation and name.
func placeError(err error, device driver.UUID) error {
	switch err = status.Absent(err); {
	case errors.Is(err, catalog.ErrNoPlace):
		return noPlace(device)
	case errors.Is(err, catalog.ErrNoRoom), errors.Is(err, catalog.ErrHolderFull):
		return status.Exceeded(status.LimitPlacementBytes, "%w", err)
	}
	return err
}

func noPlace(device driver.UUID) error {
	return &driver.UnsupportedError{Feature: "a placement on device " + device.String(), Reason: "the owner makes none there",
		Requires: "an owner that is started with serve --place (ServerOptions.Placements)"}
}

// bytesElsewhere returns the bytes of a placement: the sum of the storages that are on other devices, as the device
// allocates them.
func bytesElsewhere(storages []*tensor.Storage, device driver.UUID, dev driver.Device) (sum int64, err error) {
	for _, s := range storages {
		if s.Memory().Device().Info().UUID == device {
			continue
		}
		if dev == nil {
			return 0, noPlace(device)
		}
		unit := max(dev.Info().Granularity, 1)
		sum += max((s.Bytes()+unit-1)/unit, 1) * unit
	}
	return sum, nil
}

// make makes a placement and passes it to the catalog. It takes from, an alias of the version.
func (p *placer) make(ctx context.Context, l *catalog.Lease, origin *record, from *module.StateDict, dev driver.Device) {
	m, info := p.of, dev.Info()
	turn := p.turns[info.UUID]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
	}
	start := time.Now()
	r, err := p.copy(ctx, origin, from, dev)
	err = errors.Join(err, from.Close())
	took := time.Since(start)
	log := m.Log.With("name", l.Name, "version", l.Version, "device", info.String())
	if err != nil {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
		if ctx.Err() == nil {
			log.Warn("placement not made", "error", err)
		}
		m.Catalog.Placed(l, nil, took, err)
		return
	}
	bytes := r.StateDict.Bytes() // before the catalog may close it
	m.Catalog.Placed(l, r, took, nil)
	log.Info("placed", "bytes", bytes, "took", took)
}

// copy returns the record of a placement. After an error it may return a record, which the caller closes.
func (p *placer) copy(ctx context.Context, origin *record, from *module.StateDict, dev driver.Device) (r *record, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	status.Reach("placement begun")
	manifest, storages := from.Manifest()
	info := dev.Info()
	var made []*tensor.Storage
	defer func() { // the state dict has its own references
		for _, s := range made {
			err = errors.Join(err, s.Close())
		}
	}()
	for i, s := range storages {
		if s.Memory().Device().Info().UUID == info.UUID {
			continue
		}
		mem, err := dev.Alloc(s.Bytes())
		if err != nil {
			return nil, fmt.Errorf("placement on %s: %w", info, err)
		}
		storages[i] = tensor.NewStorage(mem)
		made = append(made, storages[i])
		manifest.Storages[i].Device, manifest.Storages[i].DeviceType = info.UUID, info.Type
		if err := p.copyStorage(ctx, origin, mem, s); err != nil {
			return nil, fmt.Errorf("placement on %s: %w", info, err)
		}
	}
	sd, err := module.FromManifest(manifest, storages)
	if err != nil {
		return nil, err
	}
	r = &record{models: p.of, Publication: Publication{Name: origin.Name, StateDict: sd, Origin: origin.Origin}}
	if err := r.freeze(); err != nil {
		return r, err
	}
	if r.export, err = p.of.newExport(sd); err != nil {
		return r, err
	}
	status.Reach("placement copied")
	return r, r.encode()
}

// copyStorage copies one storage to memory of another device, by pinned memory if one of both is on the host.
func (p *placer) copyStorage(ctx context.Context, origin *record, to driver.Memory, from *tensor.Storage) error {
	pinned, unpin := driver.Pinned(nil), func() {}
	if _, host := from.Memory().(driver.Mapped); host {
		pinned = origin.pins.pin(from, to.Device())
	} else if mem, host := to.(driver.Mapped); host {
		if pinned = pinHost(from.Memory().Device(), mem); pinned != nil {
			unpin = func() { _ = pinned.Close() } // the memory is complete
		}
	}
	defer unpin()
	return driver.Copy(ctx, to, from.Memory(), pinned, from.Bytes(), nil)
}

// pinHost pins host memory for copies of a device. It returns nil if that is not possible: the copy then is slower.
func pinHost(dev driver.Device, mem driver.Mapped) driver.Pinned {
	by, can := dev.(driver.Pinner)
	if !can {
		return nil
	}
	pinned, err := by.PinHost(mem)
	if err != nil {
		return nil
	}
	return pinned
}

// pins holds the pinned memory of a version on the host. Each storage is pinned once, at the first placement, until the
// version is freed.
type pins struct {
	mu     sync.Mutex
	by     map[*tensor.Storage]driver.Pinned
	closed bool
}

// pin returns the pinned memory of a storage, or nil if it cannot be pinned. The result is borrowed.
func (p *pins) pin(s *tensor.Storage, dev driver.Device) driver.Pinned {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if pinned := p.by[s]; pinned != nil {
		return pinned
	}
	mem, mapped := s.Memory().(driver.Mapped)
	if !mapped {
		return nil
	}
	pinned := pinHost(dev, mem)
	if pinned != nil {
		if p.by == nil {
			p.by = map[*tensor.Storage]driver.Pinned{}
		}
		p.by[s] = pinned
	}
	return pinned
}

// close unpins all memory.
func (p *pins) close() (err error) {
	p.mu.Lock()
	p.closed = true
	by := p.by
	p.by = nil
	p.mu.Unlock()
	for _, pinned := range by {
		err = errors.Join(err, pinned.Close())
	}
	return err
}

// unplaced is the catalog's callback after it freed a placement.
func (m *Models) unplaced(name string, version uint64, device driver.Info, err error) {
	if err != nil {
		m.Log.Warn("memory of a placement not freed cleanly", "name", name, "version", version, "device", device.String(), "error", err)
		return
	}
	m.Log.Info("placement freed", "name", name, "version", version, "device", device.String())
}

// encodePlacements converts the placements of a version to their wire form.
func encodePlacements(list []catalog.PlacementInfo) (out []message.Placement) {
	for _, p := range list {
		out = append(out, message.Placement{
			Device: codec.EncodeDevice(p.Device), Bytes: uint64(p.Bytes), Making: p.Made.IsZero(), MadeAt: nanoseconds(p.Made),
			Hits: p.Hits, Holders: uint64(p.Holders), UnusedSince: nanoseconds(p.Unused),
		})
	}
	return out
}

// nanoseconds returns the time since 1970; 0 for the zero time.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Placements describes the devices on which the server makes placements.
func (m *Models) Placements() (out []message.PlacementDevice) {
	for _, s := range m.Catalog.PlaceStats() {
		out = append(out, message.PlacementDevice{
			Device: codec.EncodeDevice(s.Device), Budget: uint64(s.Budget), Keep: int64(s.Keep), Bytes: uint64(s.Bytes), Placements: uint64(s.Placements),
			Hits: s.Hits, Copies: s.Copies, CopiedBytes: uint64(s.CopiedBytes), CopyTime: int64(s.CopyTime), Evictions: s.Evictions, Failures: s.Failures,
		})
	}
	return out
}
