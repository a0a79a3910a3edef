package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
)

// nameExport gives names to the storages of an export that nobody writes any more.
func (s *Server) nameExport(out *transfer.Export) {
	for i, storage := range out.Storages {
		s.engine.Names.Add(storage)
		out.Handles[i].Name = s.engine.Names.Name(storage)
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
		s.engine.Names.Remove(storage)
	}
	out.Close()
}
