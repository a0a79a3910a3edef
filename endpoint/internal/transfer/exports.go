// Package transfer shares memory with other processes. It exports storages, imports the storages of peers, and shares storages
// within the process.
package transfer

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Export holds the answer to readers of a version: its manifest, and a handle and a descriptor for each storage. It is
// created once, on publication, so an attach needs no system calls for tensors or storages.
type Export struct {
	Columns  *message.Manifest // set by a publisher; nil after Encode
	Tail     []byte            // common part of the answers to readers; nil before Encode
	Optional int               // number of optional fields in Tail
	Digest   []byte            // of the whole version, for the export of a part; nil for none
	Manifest []byte            // the manifest in Tail
	Handles  []message.Handle  // one for each storage
	Files    []*os.File        // owned
	Storages []*tensor.Storage // borrowed from the owner of the export
}

// NewExport exports the storages of a state dict, which it borrows.
func NewExport(sd *module.StateDict) (*Export, error) {
	manifest, storages := sd.Manifest()
	encoded, err := codec.EncodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	out, err := ExportStorages(storages)
	if err != nil {
		return nil, err
	}
	out.Columns, out.Storages = encoded, storages
	return out, nil
}

// ExportStorages creates a handle for each storage. It borrows them.
func ExportStorages(storages []*tensor.Storage) (*Export, error) {
	out := &Export{Storages: storages}
	for i, s := range storages {
		if err := out.add(s); err != nil {
			out.Close()
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return out, nil
}

// add exports one storage.
func (out *Export) add(s *tensor.Storage) error {
	h, err := s.Memory().Export()
	if err != nil {
		return status.Unshareable(err)
	}
	file := int32(-1)
	if h.File != nil {
		file = int32(len(out.Files))
		out.Files = append(out.Files, h.File)
	}
	out.Handles = append(out.Handles, handleOf(h, file))
	return nil
}

// Part returns the export of some tensors of the same storages. It borrows the descriptors and storages of out, so it must
// not be closed. It borrows sd.
func (out *Export) Part(sd *module.StateDict) (*Export, error) {
	manifest, storages := sd.Manifest()
	columns, err := codec.EncodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	part := &Export{Columns: columns, Storages: storages}
	for _, s := range storages {
		i := slices.Index(out.Storages, s)
		if i < 0 {
			return nil, fmt.Errorf("%w: a storage of a part is not exported", status.ErrInvalid)
		}
		h := out.Handles[i]
		if h.File >= 0 {
			part.Files = append(part.Files, out.Files[h.File])
			h.File = int32(len(part.Files) - 1)
		}
		part.Handles = append(part.Handles, h)
	}
	return part, nil
}

// Encode encodes the common part of the answers to readers. source is the source of the publication.
func (out *Export) Encode(source string) (err error) {
	if source != "" {
		out.Optional++
	}
	if len(out.Digest) > 0 {
		out.Optional++
	}
	out.Tail, out.Manifest, err = message.MarshalAcquiredTail(out.Columns, out.Handles, source, out.Digest)
	out.Columns = nil
	return err
}

// Close closes the descriptors. Importers keep their mappings.
func (out *Export) Close() {
	for _, f := range out.Files {
		f.Close()
	}
}

// Importer maps memory that a peer exported.
type Importer struct {
	// Devices are the devices on which memory can be mapped. Opts are the options of each mapping.
	Devices Devices
	Opts    driver.ImportOptions
	// Socket is the peer's socket if the peer is a server. With the peer's names it identifies memory that belongs to
	// the peer.
	Socket string
	// Own returns this process's memory for a handle, which the importer takes, or nil to import the handle. Own may be
	// nil.
	Own func(i int, h message.Handle) *tensor.Storage
	// Slabs holds the numbered memory of the connection. It is nil if handles must not have numbers of the owner.
	Slabs *SlabMappings
	// Inline permits memory within the frame.
	Inline bool
}

// StateDict imports a state dict. It borrows the files that it does not take. It validates the manifest, every handle
// and every descriptor.
func (im Importer) StateDict(m *message.Manifest, handles []message.Handle, files *wire.Files) (*module.StateDict, error) {
	manifest, err := codec.PrepareManifest(m)
	if err != nil {
		return nil, err
	}
	return im.Attach(manifest, handles, files)
}

// Attach is StateDict for a validated manifest.
func (im Importer) Attach(manifest *module.Prepared, handles []message.Handle, files *wire.Files) (*module.StateDict, error) {
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, err
	}
	defer CloseStorages(storages) // the state dict has its own references
	sd, err := manifest.StateDict(storages)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return sd, nil
}

// Storages maps the exported memory. It borrows the files that it does not take. The caller closes the storages.
func (im Importer) Storages(handles []message.Handle, files *wire.Files) (_ []*tensor.Storage, err error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil
	}
	if inProcess := InProcessStorages(files); inProcess != nil {
		return ShareInProcess(im.Devices, inProcess, im.Opts)
	}
	if err := message.ValidateHandles(handles, files.Len()); err != nil {
		return nil, err
	}
	storages := make([]*tensor.Storage, 0, len(handles))
	defer func() {
		if err != nil {
			CloseStorages(storages)
		}
	}()
	for i, h := range handles {
		s, err := im.storage(i, h, files)
		if err != nil {
			if im.Slabs != nil {
				im.Slabs.Refuse(handles[i+1:])
			}
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		storages = append(storages, s)
	}
	return storages, nil
}

func (im Importer) storage(i int, h message.Handle, files *wire.Files) (*tensor.Storage, error) {
	if im.Own != nil {
		if s := im.Own(i, h); s != nil {
			return s, nil
		}
	}
	if h.Inline() {
		if !im.Inline {
			return nil, errInlineNotAgreed
		}
		return inlineStorage(im.Devices, &h)
	}
	if h.Kept() {
		if im.Slabs != nil {
			return im.Slabs.Repeated(h)
		}
		return nil, fmt.Errorf("%w: memory %d is not kept, send its descriptor", status.ErrNotKept, h.Storage)
	}
	if h.Slab != 0 && im.Slabs != nil {
		if im.slabbed(h) {
			return im.Slabs.Storage(im.Devices, h, files)
		}
		im.Slabs.Refuse([]message.Handle{h}) // imported without the slab, which is returned at once
	}
	mem, err := importMemory(im.Devices, h, files, im.Opts)
	if err != nil {
		if im.Slabs != nil && h.Storage != 0 {
			im.Slabs.Refuse([]message.Handle{h})
		}
		return nil, err
	}
	name := ""
	if im.Socket != "" && h.Name != "" {
		name = lender(im.Socket, h.Name)
	}
	s := tensor.NewLentStorage(mem, name)
	if im.Slabs != nil {
		return im.Slabs.Keep(h, s)
	}
	return s, nil
}

// slabbed reports whether the slab of a handle is mapped or can be mapped.
func (im Importer) slabbed(h message.Handle) bool {
	if h.File < 0 {
		return true
	}
	_, can := im.Devices[driver.UUID(h.Device)].(driver.Slabber)
	return can
}

// CloseStorages closes each storage.
func CloseStorages(storages []*tensor.Storage) {
	for _, s := range storages {
		s.Close()
	}
}

// importMemory maps one handle of a peer.
func importMemory(devices Devices, h message.Handle, files *wire.Files, opts driver.ImportOptions) (driver.Memory, error) {
	dev, err := devices.Find(driver.UUID(h.Device))
	if err != nil {
		return nil, err
	}
	handle := driver.Handle{
		Kind: driver.HandleKind(h.Kind), Device: driver.UUID(h.Device), Bytes: int64(h.Bytes), Offset: int64(h.Offset), Blob: h.Blob,
	}
	if h.File >= 0 {
		handle.File = files.Take(int(h.File))
	}
	defer handle.Close()
	mem, err := dev.Import(handle, opts)
	return mem, status.Unshareable(err)
}

// NewID returns 128 random bits in hexadecimal, which identify a server, an object or memory and cannot be guessed.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
