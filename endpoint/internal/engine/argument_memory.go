package engine

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// nameResult notes which memory of a result nobody writes any more, for as long as the result is there: an endpoint
// that is cached hands the same memory to whoever calls it later, so it has given its word for that. Memory of callers
// that came back in the result is not the endpoint's to speak for.
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

// nameLocal are the names of the storages of a call within the process, empty where there is none. A function that
// writes its arguments runs each time.
func (e *Engine) nameLocal(storages []*tensor.Storage, d *Definition, session uint64) []string {
	names := make([]string, len(storages))
	for i, storage := range storages {
		if d.Options.Writable {
			e.Names.Writing(e.Names.Name(storage))
		} else if name := e.Names.Name(storage); name != "" {
			names[i] = transfer.LentKey(name)
		} else if v := storage.Version(); v > 0 {
			names[i] = transfer.SessionKey(session, storage.ID(), v)
		}
	}
	return names
}

// importArguments maps the memory of a call's arguments and names what has a name, as [Server.nameLocal] does.
func (e *Engine) importArguments(handles []message.Handle, files *wire.Files, d *Definition, session uint64, kept *transfer.Kept) ([]*tensor.Storage, []string, error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil, nil
	}
	if inProcess := transfer.InProcessStorages(files); inProcess != nil {
		storages, err := transfer.ShareInProcess(e.devices, inProcess, driver.ImportOptions{Writable: d.Options.Writable})
		if err != nil {
			return nil, nil, err
		}
		return storages, e.nameLocal(inProcess, d, session), nil
	}
	names := make([]string, len(handles))
	own := func(i int, h message.Handle) *tensor.Storage {
		if d.Options.Writable {
			return nil
		}
		if borrowed := e.Names.Borrow(h.Name); borrowed != nil {
			names[i] = transfer.LentKey(h.Name)
			return borrowed
		}
		if h.Version > 0 {
			names[i] = transfer.SessionKey(session, h.Storage, h.Version)
		}
		if h.Kept() {
			return kept.Get(h)
		}
		return nil
	}
	im := transfer.Importer{Devices: e.devices, Opts: driver.ImportOptions{Writable: d.Options.Writable}, Own: own}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, nil, err
	}
	for i, h := range handles {
		// Memory without a descriptor ends with its owner's reference, and must not be mapped longer than the call.
		if h.Storage != 0 && h.File >= 0 && !d.Options.Writable && h.Name == "" {
			kept.Put(h, storages[i])
		}
	}
	if d.Options.Writable { // and could be mapped so
		for _, h := range handles {
			e.Names.Writing(h.Name)
		}
	}
	return storages, names, nil
}

// uncached notes that a call was not cached because of the memory of its arguments, once for each endpoint in the log.
func (e *Engine) uncached(d *Definition) {
	if !d.Options.Cached || d.Uncached.Add(1) > 1 {
		return
	}
	e.log.Debug("calls are not cached whose arguments are in memory that may still be written", "endpoint", d.Name)
}
