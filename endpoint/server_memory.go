package endpoint

import (
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// nameExport gives names to the storages of an export that nobody writes any more.
func (s *Server) nameExport(out *transfer.Export) {
	for i, storage := range out.Storages {
		s.loans.Add(storage)
		out.Handles[i].Name = s.loans.Name(storage)
	}
}

// unlend takes back the names of a state dict that is off the books, and closes its export.
func (s *Server) unlend(sd *module.StateDict) {
	if out := s.exports.take(sd); out != nil {
		s.closeExport(out)
	}
}

// closeExport closes an export with names.
func (s *Server) closeExport(out *transfer.Export) {
	for _, storage := range out.Storages {
		s.loans.Remove(storage)
	}
	out.Close()
}

// nameResult notes which memory of a result nobody writes any more, for as long as the result is there: an endpoint that is cached hands the
// same memory to whoever calls it later, so it has given its word for that. Memory of callers that came back in the result is not the
// endpoint's to speak for.
func (s *Server) nameResult(r *result, d *definition, arguments []*tensor.Storage) {
	if !d.options.cached {
		return
	}
	for _, storage := range r.payload.Storages {
		if _, theirs := storage.Lent(); theirs || transfer.HasStorage(arguments, storage) {
			continue
		}
		s.loans.Add(storage)
		r.named = append(r.named, storage)
	}
	r.loans = &s.loans
}

// nameLocal are the names of the storages of a call within the process, empty where there is none. A function that writes its arguments
// runs each time.
func (s *Server) nameLocal(storages []*tensor.Storage, d *definition, session uint64) []string {
	names := make([]string, len(storages))
	for i, storage := range storages {
		if d.options.writable {
			s.loans.Writing(s.loans.Name(storage))
		} else if name := s.loans.Name(storage); name != "" {
			names[i] = transfer.LentKey(name)
		} else if v := storage.Version(); v > 0 {
			names[i] = transfer.SessionKey(session, storage.ID(), v)
		}
	}
	return names
}

// importArguments maps the memory of a call's arguments and names what has a name, as [Server.nameLocal] does.
func (s *Server) importArguments(handles []message.Handle, files *wire.Files, d *definition, ses *session) ([]*tensor.Storage, []string, error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil, nil
	}
	if lent := transfer.LentWith(files); lent != nil {
		storages, err := transfer.Lend(s.devices, lent, driver.ImportOptions{Writable: d.options.writable})
		if err != nil {
			return nil, nil, err
		}
		return storages, s.nameLocal(lent, d, ses.id), nil
	}
	names := make([]string, len(handles))
	own := func(i int, h message.Handle) *tensor.Storage {
		if d.options.writable {
			return nil
		}
		if borrowed := s.loans.Borrow(h.Name); borrowed != nil {
			names[i] = transfer.LentKey(h.Name)
			return borrowed
		}
		if h.Version > 0 {
			names[i] = transfer.SessionKey(ses.id, h.Storage, h.Version)
		}
		if h.Kept() {
			return ses.kept.Get(h)
		}
		return nil
	}
	im := transfer.Importer{Devices: s.devices, Opts: driver.ImportOptions{Writable: d.options.writable}, Own: own}
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, nil, err
	}
	for i, h := range handles {
		if h.Storage != 0 && !h.Kept() && !d.options.writable && h.Name == "" {
			ses.kept.Put(h, storages[i])
		}
	}
	if d.options.writable { // and could be mapped so
		for _, h := range handles {
			s.loans.Writing(h.Name)
		}
	}
	return storages, names, nil
}

// uncached notes that a call was not cached because of the memory of its arguments, once for each endpoint in the log.
func (s *Server) uncached(d *definition) {
	if !d.options.cached || d.uncached.Add(1) > 1 {
		return
	}
	s.log.Debug("calls are not cached whose arguments are in memory that may still be written", "endpoint", d.name)
}
