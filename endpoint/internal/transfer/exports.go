// Package transfer hands memory to other processes and maps theirs: exports, imports, and storages that are shared
// within the process.
package transfer

import (
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Export is what readers of one version are sent: its manifest, one handle and one descriptor for each storage. It is
// made once, when the version is published, so that an attach costs neither a system call for each tensor nor one for
// each storage.
type Export struct {
	Columns  *message.Manifest // of a publisher; nil once it was encoded
	Tail     []byte            // what answers to readers have in common; nil before it was encoded
	Manifest []byte            // the manifest in tail
	Handles  []message.Handle  // one for each storage
	Files    []*os.File        // owned
	Storages []*tensor.Storage // borrowed, from who keeps the export
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

// ExportStorages makes a handle for each storage. It borrows them.
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

// Encode makes what all readers are sent, once.
func (out *Export) Encode() (err error) {
	out.Tail, out.Manifest, err = message.MarshalAcquiredTail(out.Columns, out.Handles)
	out.Columns = nil
	return err
}

// Close closes the descriptors. Who has imported the memory keeps it.
func (out *Export) Close() {
	for _, f := range out.Files {
		f.Close()
	}
}

// Importer maps what a peer exported.
type Importer struct {
	// Devices are what memory can be mapped on, Opts how it is mapped.
	Devices Devices
	Opts    driver.ImportOptions
	// Socket is where the peer serves, if this is its client: by it and the names that the peer gives, the memory is
	// known to be the peer's.
	Socket string
	// Own returns this process's own memory for a handle, which the importer takes, or nil to import what came with the
	// handle. It may be nil.
	Own func(i int, h message.Handle) *tensor.Storage
	// Slabs are those of the connection that the handles came by; nil where they may not name any.
	Slabs *SlabMappings
}

// StateDict makes a state dict of what a peer exported. It borrows the files that it does not take, and trusts
// nothing: the manifest, every handle and every descriptor are checked.
func (im Importer) StateDict(m *message.Manifest, handles []message.Handle, files *wire.Files) (*module.StateDict, error) {
	manifest, err := codec.PrepareManifest(m)
	if err != nil {
		return nil, err
	}
	return im.Attach(manifest, handles, files)
}

// Attach is StateDict for a manifest that was checked before.
func (im Importer) Attach(manifest *module.Prepared, handles []message.Handle, files *wire.Files) (*module.StateDict, error) {
	storages, err := im.Storages(handles, files)
	if err != nil {
		return nil, err
	}
	defer CloseStorages(storages) // the state dict has references of its own
	sd, err := manifest.StateDict(storages)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return sd, nil
}

// Storages maps what a peer exported. It borrows the files that it does not take. The caller closes the storages.
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
	if h.Kept() {
		return nil, fmt.Errorf("%w: the handle has the number %d and no memory", status.ErrNotKept, h.Storage)
	}
	if h.Slab != 0 && im.Slabs != nil {
		if im.slabbed(h) {
			return im.Slabs.Storage(im.Devices, h, files)
		}
		im.Slabs.Refuse([]message.Handle{h}) // its memory is mapped for this once
	}
	mem, err := importMemory(im.Devices, h, files, im.Opts)
	if err != nil {
		return nil, err
	}
	name := ""
	if im.Socket != "" && h.Name != "" {
		name = lender(im.Socket, h.Name)
	}
	return tensor.NewLentStorage(mem, name), nil
}

// slabbed reports whether a handle of a slab names one that is mapped, or that can be.
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
	dev, err := devices.find(driver.UUID(h.Device))
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
