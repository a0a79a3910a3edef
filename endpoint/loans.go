package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// What a call's result is cached under includes the memory of its arguments, by names that keep two promises: whoever has the same name has
// the same memory, and its bytes are the same as long as the name is. There are three kinds.
//
// Memory that this server lent and that nobody writes any more, which are published versions and the results of endpoints that are cached, has a
// name that the server gave it (loans). A client that passes it back sends the name along. It need not be believed: the name cannot be guessed, so who has it
// was given the memory, and what the function gets is the server's own memory of that name, not what came with the claim. So a false
// claim gives the true result of another call, to the one who made it and to all others alike. Of such names all sessions get the same results.
//
// Memory that a client writes and counts the versions of (tensor.Storage.Touch) is named by the session, the client's number for the storage and
// the version. All of that is the client's word and nobody could check it, so it counts for the calls of its own session only.
//
// Memory that the system lets nobody write any more has a name of the system's (driver.Identifier). On CUDA there is none such: whether a
// mapping can be written is each importer's choice.
//
// All other memory has no name, and a call with it runs each time.

// loans are the storages that a server lent and that nobody writes any more.
type loans struct {
	mu     sync.RWMutex
	byName map[string]*loan
	of     map[*tensor.Storage]*loan
}

// loan is one of them.
type loan struct {
	name    string
	storage *tensor.Storage // alive while the loan is there
	uses    int             // versions and results that it is part of
	written bool            // somebody was allowed to write it after all
}

// add gives a storage a name, if it has none. It borrows s until the same number of removes.
func (l *loans) add(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.byName, l.of = map[string]*loan{}, map[*tensor.Storage]*loan{}
	}
	s = s.Origin()
	n := l.of[s]
	if n == nil {
		n = &loan{name: newID(), storage: s}
		l.byName[n.name], l.of[s] = n, n
	}
	n.uses++
}

// remove takes one add back.
func (l *loans) remove(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = s.Origin()
	n := l.of[s]
	if n.uses--; n.uses == 0 {
		delete(l.of, s)
		delete(l.byName, n.name)
	}
}

// name is the name of a storage; empty where it has none.
func (l *loans) name(s *tensor.Storage) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.of[s.Origin()]; n != nil && !n.written {
		return n.name
	}
	return ""
}

// find returns the storage of that name with a reference that the caller gives back; nil where there is none.
func (l *loans) find(name string) *tensor.Storage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.byName[name]; n != nil && !n.written {
		return n.storage.Retain()
	}
	return nil
}

// writing notes that a function may write to the storage of that name, if there is one: it does not keep its bytes any more.
func (l *loans) writing(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byName[name]; n != nil {
		n.written = true
	}
}

// borrow returns the memory that the server lent under a name, as an argument has it: mapped for reading only, where the kind of memory
// allows its owner to map it again. Nil where no memory has the name. The caller closes it.
func (l *loans) borrow(name string) *tensor.Storage {
	s := l.find(name)
	switch {
	case s == nil:
		return nil
	case s.Refs() == 0: // it was closed before it got here
		return nil
	}
	again, err := remap(s)
	if err != nil { // legacy memory of CUDA cannot be imported by its own process
		return s.ReadOnly()
	}
	s.Close()
	return again
}

// remap maps the memory of a storage once more, for reading.
func remap(s *tensor.Storage) (*tensor.Storage, error) {
	h, err := s.Memory().Export()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	mem, err := s.Memory().Device().Import(h, driver.ImportOptions{})
	if err != nil {
		return nil, err
	}
	return tensor.NewStorage(mem), nil
}

// nameExport gives names to the storages of an export that nobody writes any more.
func (s *Server) nameExport(out *export) {
	for i, storage := range out.storages {
		s.loans.add(storage)
		out.handles[i].Name = s.loans.name(storage)
	}
}

// hasStorage tells whether s or another view of it is in the list.
func hasStorage(list []*tensor.Storage, s *tensor.Storage) bool {
	return slices.ContainsFunc(list, func(other *tensor.Storage) bool { return other.Origin() == s.Origin() })
}

// unlend takes back the names of a state dict that is off the books, and closes its export.
func (s *Server) unlend(sd *module.StateDict) {
	if out := s.exports.take(sd); out != nil {
		s.closeExport(out)
	}
}

// closeExport closes an export with names.
func (s *Server) closeExport(out *export) {
	for _, storage := range out.storages {
		s.loans.remove(storage)
	}
	out.close()
}

// nameResult notes which memory of a result nobody writes any more, for as long as the result is there: an endpoint that is cached hands the
// same memory to whoever calls it later, so it has given its word for that. Memory of callers that came back in the result is not the
// endpoint's to speak for.
func (s *Server) nameResult(r *result, d *definition, arguments []*tensor.Storage) {
	if !d.options.cached {
		return
	}
	for _, storage := range r.payload.storages {
		if _, theirs := storage.Lent(); theirs || hasStorage(arguments, storage) {
			continue
		}
		s.loans.add(storage)
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
			s.loans.writing(s.loans.name(storage))
		} else if name := s.loans.name(storage); name != "" {
			names[i] = lentKey(name)
		} else if v := storage.Version(); v > 0 {
			names[i] = sessionKey(session, storage.ID(), v)
		}
	}
	return names
}

func lentKey(name string) string { return "lent:" + name }

func sessionKey(session, storage, version uint64) string {
	return fmt.Sprintf("session:%d:%d:%d", session, storage, version)
}

// importArguments maps the memory of a call's arguments and names what has a name, as [Server.nameLocal] does.
func (s *Server) importArguments(handles []message.Handle, files *wire.Files, d *definition, session uint64) ([]*tensor.Storage, []string, error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil, nil
	}
	if lent := lentWith(files); lent != nil {
		storages, err := lend(s.devices, lent, driver.ImportOptions{Writable: d.options.writable})
		if err != nil {
			return nil, nil, err
		}
		return storages, s.nameLocal(lent, d, session), nil
	}
	names := make([]string, len(handles))
	own := func(i int, h message.Handle) *tensor.Storage {
		if d.options.writable {
			return nil
		}
		if borrowed := s.loans.borrow(h.Name); borrowed != nil {
			names[i] = lentKey(h.Name)
			return borrowed
		}
		if h.Version > 0 {
			names[i] = sessionKey(session, h.Storage, h.Version)
		}
		return nil
	}
	im := importer{devices: s.devices, opts: driver.ImportOptions{Writable: d.options.writable}, own: own}
	storages, err := im.storages(handles, files)
	if err != nil {
		return nil, nil, err
	}
	if d.options.writable { // and could be mapped so
		for _, h := range handles {
			s.loans.writing(h.Name)
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

// lender is how a client knows the memory that the owner behind a socket calls name. The socket is part of it: what one owner says is not
// repeated to another.
func lender(socket, name string) string { return socket + "\x00" + name }

// claim tells the owner behind a socket what it, or this client, calls the storages of an export.
func (out *export) claim(storages []*tensor.Storage, socket string) {
	for i, s := range storages {
		h := &out.handles[i]
		name, _ := s.Lent()
		if name, ok := strings.CutPrefix(name, lender(socket, "")); ok {
			h.Name = name
		}
		if v := s.Version(); v > 0 {
			h.Storage, h.Version = s.ID(), v
		}
	}
}
