package engine

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// nameResult names the memory of a cached endpoint's result until the result is released. That memory is immutable,
// because later callers of the endpoint receive it too. Memory that belongs to callers or is part of the arguments is
// skipped.
func (e *Engine) nameResult(r *Result, d *Definition, arguments []*tensor.Storage) {
	if !d.Options.Cached {
		return
	}
	for _, storage := range r.Payload.Storages {
		if _, theirs := storage.Lent(); theirs || transfer.HasStorage(arguments, storage) {
			continue
		}
		e.Names.Add(storage)
		r.named = append(r.named, storage)
	}
	r.names = &e.Names
}

// nameLocal returns the names of the storages of an in-process call, "" for a storage without a name. Memory of
// writable arguments is never named, so such a call runs each time.
func (e *Engine) nameLocal(storages []*tensor.Storage, d *Definition, session uint64) []string {
	names := make([]string, len(storages))
	for i, storage := range storages {
		if d.Options.Writable {
			e.Names.Invalidate(e.Names.Name(storage))
		} else if name := e.Names.Name(storage); name != "" {
			names[i] = transfer.LentKey(name)
		} else if v := storage.Version(); v > 0 {
			names[i] = transfer.SessionKey(session, storage.ID(), v)
		}
	}
	return names
}

// importArguments maps the memory of a call's arguments and returns their names, as [Engine.nameLocal] does.
func (e *Engine) importArguments(handles []message.Handle, files *wire.Files, d *Definition, from Caller) ([]*tensor.Storage, []string, error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil, nil
	}
	if inProcess := transfer.InProcessStorages(files); inProcess != nil {
		storages, err := transfer.ShareInProcess(e.devices, inProcess, driver.ImportOptions{Writable: d.Options.Writable})
		if err != nil {
			return nil, nil, err
		}
		return storages, e.nameLocal(inProcess, d, from.Session), nil
	}
	if d.Options.Writable && transfer.AnyInline(handles) {
		return nil, nil, fmt.Errorf("%w: the function writes to its arguments, which are within the frame: send their memory", driver.ErrReadOnly)
	}
	names := make([]string, len(handles))
	own := func(i int, h message.Handle) *tensor.Storage {
		if d.Options.Writable {
			return nil
		}
		if h.Inline() {
			if d.Options.Cached {
				names[i] = transfer.ContentKey(h.Blob)
			}
			return nil
		}
		if borrowed := e.Names.Borrow(h.Name); borrowed != nil {
			names[i] = transfer.LentKey(h.Name)
			return borrowed
		}
		if h.Version > 0 {
			names[i] = transfer.SessionKey(from.Session, h.Storage, h.Version)
		}
		if h.Kept() {
			return from.Kept.Get(h)
		}
		return nil
	}
	im := transfer.Importer{Devices: e.devices, Opts: driver.ImportOptions{Writable: d.Options.Writable}, Own: own, Inline: from.Inline}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, nil, err
	}
	for i, h := range handles {
		// Memory without a descriptor becomes invalid when its owner releases it. It must not stay mapped after the
		// call.
		if h.Storage != 0 && h.File >= 0 && !d.Options.Writable && h.Name == "" {
			from.Kept.Put(h, storages[i])
		}
	}
	if d.Options.Writable { // the function may write to the named memory
		for _, h := range handles {
			e.Names.Invalidate(h.Name)
		}
	}
	return storages, names, nil
}

// uncached counts a call that was not cached because of the memory of its arguments. It logs the first one of each
// endpoint.
func (e *Engine) uncached(d *Definition) {
	if !d.Options.Cached || d.Uncached.Add(1) > 1 {
		return
	}
	e.log.Debug("calls are not cached because their arguments are in memory that may still be written", "endpoint", d.Name)
}
