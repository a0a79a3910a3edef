// Package models is what a server has published: versions and their readers, what these are sent, what clients may
// publish, digests, and loads that are announced; and the operations that clients ask for of it.
package models

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config says what a server publishes with.
type Config struct {
	Log     *slog.Logger          // gets what operators should know
	Frame   wire.Limits           // of the answers to readers
	Devices transfer.Devices      // that clients publish on
	Names   *transfer.MemoryNames // of what the server shares
	Retain  int                   // superseded versions that are kept though nobody reads them
	One     Bounds                // of what one client has published
	All     Bounds                // of what all clients together have
	// Digest computes the digests of a state dict, as [module.Digests] does.
	Digest func(ctx context.Context, sd *module.StateDict, workers int) (map[string]module.Digest, error)
}

// Models are the published versions of a server, what their readers are sent, and what clients have published of them.
// Its methods are safe for concurrent use.
type Models struct {
	Config
	Catalog *catalog.Catalog // names, versions and leases
	exports exports
	quotas  quotas
	loads   loads
	digests digester
}

// New returns a server's models, of which there are none yet.
func New(c Config) *Models {
	m := &Models{Config: c}
	m.digests.of = m
	m.Catalog = catalog.New(catalog.Options{Retain: c.Retain, Freed: m.freed})
	return m
}

// StopDigests ends the computing of digests, and tells those who wait for them.
func (m *Models) StopDigests() { m.digests.close() }

// Close frees what the server owns, when nobody reads it any more and [Models.StopDigests] was called. Errors are those
// of the catalog.
func (m *Models) Close() error {
	m.digests.work.Wait()
	return m.Catalog.Close()
}

// CheckName refuses names that the catalog cannot have.
func CheckName(name string) error {
	if err := catalog.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return nil
}

// List is all that is published, with its holders, and what is being loaded.
func (m *Models) List() (out message.Listed) {
	for _, info := range m.Catalog.List() {
		model := encodeInfo(info)
		m.digests.describe(model.Name, model.Versions)
		out.Models = append(out.Models, model)
	}
	out.Loading = m.loads.list()
	return out
}

// Publication is a state dict that is to become a version.
type Publication struct {
	Name      string            // of the model
	StateDict *module.StateDict // its tensors
	Origin    catalog.Origin    // who publishes it, and from what
	Digests   bool              // are to be computed
	charge    *charge           // of a client; nil for what the server's own process publishes
}

// Publish makes a state dict, which it takes, also when it fails, the next version of a name. On failure what was done
// is undone in reverse order.
func (m *Models) Publish(ctx context.Context, p Publication) (version uint64, err error) {
	sd := p.StateDict
	undo := []func() error{sd.Close}
	defer func() {
		if err == nil {
			return
		}
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
	}()
	if p.charge != nil {
		m.quotas.bind(*p.charge, sd)
		undo = append(undo, func() error { m.quotas.drop(sd); return nil })
	}
	if err = CheckName(p.Name); err != nil {
		return 0, err
	}
	if err = context.Cause(ctx); err != nil {
		return 0, err
	}
	if err = m.freeze(p); err != nil {
		return 0, err
	}
	out, err := transfer.NewExport(sd)
	if err != nil {
		return 0, err
	}
	m.nameExport(out)
	undo = append(undo, func() error { m.closeExport(out); return nil })
	if err = m.attachable(p.Name, out); err != nil {
		return 0, err
	}
	m.exports.put(sd, out) // before the catalog has it: the first reader may come at once
	if p.Digests {
		m.digests.add(sd)
	}
	p.Origin.Source = limits.ShortText(p.Origin.Source, limits.SourceBytes)
	undo = []func() error{func() error { m.forget(sd); return nil }} // the catalog closes sd
	if version, err = m.Catalog.Publish(p.Name, sd, p.Origin); err != nil {
		return 0, err
	}
	m.digests.published(sd, p.Name, version)
	m.loads.published(p.Name)
	m.Log.Info("published", "name", p.Name, "version", version, "tensors", sd.Len(), "source", p.Origin.Source)
	return version, nil
}

// freeze closes the memory against new writers. That of a client is mapped read-only here, and can only be found
// frozen.
func (m *Models) freeze(p Publication) error {
	err := status.Unshareable(module.Freeze(p.StateDict))
	if err != nil && p.charge != nil {
		return fmt.Errorf("the publisher has to seal its memory against new writers: %w", err)
	}
	return err
}

// attachable encodes what readers are sent, and refuses a version that no frame could bring to them, before the catalog
// has it.
func (m *Models) attachable(name string, out *transfer.Export) error {
	frame, files := inproc.FrameLimits(m.Frame)
	if len(out.Files) > files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d, load the model into fewer", status.ErrTooLarge, len(out.Files), files)
	}
	if err := out.Encode(); err != nil {
		return err
	}
	head := message.AppendAcquiredHead(nil, math.MaxUint64, name, math.MaxUint64)
	if n := int64(len(head) + len(out.Tail)); n > frame {
		return fmt.Errorf("%w: the manifest has %d bytes; a frame has at most %d", status.ErrTooLarge, n, frame)
	}
	return nil
}

// Withdraw removes a name. Its error is that of the catalog.
func (m *Models) Withdraw(name string) error {
	if err := m.Catalog.Withdraw(name); err != nil {
		return err
	}
	m.Log.Info("withdrawn", "name", name)
	return nil
}

// freed is called by the catalog when the memory of a version was freed.
func (m *Models) freed(name string, version uint64, sd *module.StateDict, err error) {
	m.forget(sd)
	if err != nil {
		m.Log.Warn("memory was not given back cleanly", "name", name, "version", version, "error", err)
		return
	}
	m.Log.Info("freed", "name", name, "version", version)
}

// forget drops what is kept of a state dict that the catalog does not have any more.
func (m *Models) forget(sd *module.StateDict) {
	m.digests.drop(sd)
	if out := m.exports.take(sd); out != nil {
		m.closeExport(out)
	}
	m.quotas.drop(sd)
}

// nameExport gives names to the storages of an export that nobody writes any more.
func (m *Models) nameExport(out *transfer.Export) {
	for i, storage := range out.Storages {
		m.Names.Add(storage)
		out.Handles[i].Name = m.Names.Name(storage)
	}
}

// closeExport closes an export with names.
func (m *Models) closeExport(out *transfer.Export) {
	for _, storage := range out.Storages {
		m.Names.Remove(storage)
	}
	out.Close()
}
