package endpoint

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

// versions are the published versions of a server, what their readers are sent, and what clients have published of
// them.
type versions struct {
	log     *slog.Logger
	frame   wire.Limits
	names   *transfer.MemoryNames // of what the server shares
	catalog *catalog.Catalog
	exports exports
	quotas  quotas
	loads   loads
	digests digester
}

// init makes v ready to use. A retained version is kept though nobody reads it.
func (v *versions) init(log *slog.Logger, frame wire.Limits, names *transfer.MemoryNames, retain int) {
	v.log, v.frame, v.names, v.digests.log = log, frame, names, log
	v.catalog = catalog.New(catalog.Options{Retain: retain, Freed: v.freed})
}

// publication is a state dict that is to become a version.
type publication struct {
	name   string
	sd     *module.StateDict
	origin catalog.Origin
	charge *charge // of a client; nil for what the server's own process publishes
	// digests asks for the digests of the version.
	digests bool
}

// publish makes a state dict, which it takes, also when it fails, the next version of a name. On failure what was done
// is undone in reverse order.
func (v *versions) publish(ctx context.Context, p publication) (version uint64, err error) {
	sd := p.sd
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
		v.quotas.bind(*p.charge, sd)
		undo = append(undo, func() error { v.quotas.drop(sd); return nil })
	}
	if err = checkName(p.name); err != nil {
		return 0, err
	}
	if err = context.Cause(ctx); err != nil {
		return 0, err
	}
	if err = v.freeze(p); err != nil {
		return 0, err
	}
	out, err := transfer.NewExport(sd)
	if err != nil {
		return 0, err
	}
	v.nameExport(out)
	undo = append(undo, func() error { v.closeExport(out); return nil })
	if err = v.attachable(p.name, out); err != nil {
		return 0, err
	}
	v.exports.put(sd, out) // before the catalog has it: the first reader may come at once
	if p.digests {
		v.digests.add(sd)
	}
	p.origin.Source = limits.ShortText(p.origin.Source, limits.SourceBytes)
	undo = []func() error{func() error { v.forget(sd); return nil }} // the catalog closes sd
	if version, err = v.catalog.Publish(p.name, sd, p.origin); err != nil {
		return 0, err
	}
	v.digests.published(sd, p.name, version)
	v.loads.published(p.name)
	v.log.Info("published", "name", p.name, "version", version, "tensors", sd.Len(), "source", p.origin.Source)
	return version, nil
}

// freeze closes the memory against new writers. That of a client is mapped read-only here, and can only be found
// frozen.
func (v *versions) freeze(p publication) error {
	err := status.Unshareable(module.Freeze(p.sd))
	if err != nil && p.charge != nil {
		return fmt.Errorf("the publisher has to seal its memory against new writers: %w", err)
	}
	return err
}

// attachable encodes what readers are sent, and refuses a version that no frame could bring to them, before the catalog
// has it.
func (v *versions) attachable(name string, out *transfer.Export) error {
	frame, files := inproc.FrameLimits(v.frame)
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

func (v *versions) withdraw(name string) error {
	if err := v.catalog.Withdraw(name); err != nil {
		return err
	}
	v.log.Info("withdrawn", "name", name)
	return nil
}

// freed is called by the catalog when the memory of a version was freed.
func (v *versions) freed(name string, version uint64, sd *module.StateDict, err error) {
	v.forget(sd)
	if err != nil {
		v.log.Warn("memory was not given back cleanly", "name", name, "version", version, "error", err)
		return
	}
	v.log.Info("freed", "name", name, "version", version)
}

// forget drops what is kept of a state dict that the catalog does not have any more.
func (v *versions) forget(sd *module.StateDict) {
	v.digests.drop(sd)
	if out := v.exports.take(sd); out != nil {
		v.closeExport(out)
	}
	v.quotas.drop(sd)
}

// nameExport gives names to the storages of an export that nobody writes any more.
func (v *versions) nameExport(out *transfer.Export) {
	for i, storage := range out.Storages {
		v.names.Add(storage)
		out.Handles[i].Name = v.names.Name(storage)
	}
}

// closeExport closes an export with names.
func (v *versions) closeExport(out *transfer.Export) {
	for _, storage := range out.Storages {
		v.names.Remove(storage)
	}
	out.Close()
}
