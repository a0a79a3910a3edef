package server

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// record is one version: a state dict and everything that the server has because of it. A publication creates it and fills
// it step by step, then the catalog owns it. Close releases what is filled, after a failed step and at the end of the
// version alike. Published records are constant, except for the state of stored and digests.
type record struct {
	Publication
	models      *Models
	charge      charge           // of the client that published; zero for the server's own process
	partCharges []charge         // of the publishers of its parts
	export      *transfer.Export // the answer to readers
	parts       []part           // the answers to readers of parts
	stored      *stored          // the memory in the store; nil if it ends with this owner
	digests     *digestJob       // nil if the owner does not compute digests
	pins        pins             // the memory that is pinned for copies to other devices
}

// recordOf returns the record of a version of the server's catalog.
func recordOf(r catalog.Record) *record { return r.(*record) }

// Content implements [catalog.Record].
func (r *record) Content() *module.StateDict { return r.StateDict }

// Close implements [catalog.Record]. The charge is released last, when the memory is.
func (r *record) Close() (err error) {
	m := r.models
	m.digests.drop(r.digests)
	m.keeping.drop(r.stored) // before the files are closed, which the store may read
	if r.export != nil {
		m.closeExport(r.export)
	}
	err = r.pins.close()
	if r.StateDict != nil {
		err = errors.Join(err, r.StateDict.Close())
	}
	m.quotas.giveBack(r.charge)
	for _, c := range r.partCharges {
		m.quotas.giveBack(c)
	}
	return err
}

// usage returns what the publishers are charged for.
func (r *record) usage() (u Usage) {
	u.add(r.charge.Usage, 1)
	for _, c := range r.partCharges {
		u.add(c.Usage, 1)
	}
	return u
}

// usable returns an error if the memory is closed or cannot be made immutable.
func (r *record) usable() error {
	if r.StateDict.Closed() { // another reference may hold the memory
		return status.Closed("the state dict")
	}
	return r.freeze()
}

// check validates what the publisher has set.
func (r *record) check() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if r.After > catalog.MaxAfter {
		return fmt.Errorf("%w: versions continue from a number of at most 2⁵³, not %d", status.ErrInvalid, r.After)
	}
	if !utf8.ValidString(r.SourceID) {
		return fmt.Errorf("%w: the id %q of the source is not UTF-8", status.ErrInvalid, r.SourceID)
	}
	return nil
}

// fill prepares the record for publication: the first reader may arrive at once. The memory is stored while the manifest is
// encoded. The caller closes the record after an error.
func (r *record) fill() (err error) {
	m := r.models
	if err := r.usable(); err != nil {
		return err
	}
	if r.export, err = m.newExport(r.StateDict); err != nil {
		return err
	}
	r.Origin.Source = status.ShortText(r.Origin.Source, status.MaxSourceBytes)
	m.keeping.store(r)
	if err := r.encode(); err != nil {
		return err
	}
	if err := m.keeping.await(r); err != nil {
		return err
	}
	if r.Digests {
		r.digests = m.digests.add(r)
	}
	return nil
}

// freeze makes the memory immutable. Memory of a client is mapped read-only here, so freeze only verifies that the
// client has frozen it.
func (r *record) freeze() error {
	err := status.Unshareable(module.Freeze(r.StateDict))
	if err != nil && r.charge != (charge{}) {
		return fmt.Errorf("the publisher must seal its memory against new writers: %w", err)
	}
	return err
}

// encode encodes the manifest for readers. It fails if the version does not fit in a frame.
func (r *record) encode() error {
	limits, out := r.models.Limits.Wire.WithDefaults(), r.export
	if len(out.Files) > limits.Files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d, load the model into fewer", status.ErrTooLarge, len(out.Files), limits.Files)
	}
	if err := out.Encode(r.Origin.Source); err != nil {
		return err
	}
	if err := r.encodeParts(); err != nil {
		return err
	}
	head := message.AppendAcquiredHead(nil, math.MaxUint64, r.Name, math.MaxUint64, out.Optional)
	if n := int64(len(head) + len(out.Tail)); n > limits.Frame {
		return fmt.Errorf("%w: the manifest has %d bytes; a frame has at most %d", status.ErrTooLarge, n, limits.Frame)
	}
	return nil
}

// newExport exports a state dict and adds its storages to the memory names, which closeExport removes.
func (m *Models) newExport(sd *module.StateDict) (*transfer.Export, error) {
	out, err := transfer.NewExport(sd)
	if err != nil {
		return nil, err
	}
	for i, storage := range out.Storages {
		m.Names.Add(storage)
		out.Handles[i].Name = m.Names.Name(storage)
	}
	return out, nil
}

// closeExport removes the memory names of an export and closes it.
func (m *Models) closeExport(out *transfer.Export) {
	for _, storage := range out.Storages {
		m.Names.Remove(storage)
	}
	out.Close()
}
