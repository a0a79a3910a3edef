package endpoint

import (
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// export is what readers of one version are sent: its manifest, one handle and one descriptor for each storage. It is made once, when the
// version is published, so that an attach costs neither a system call for each tensor nor one for each storage.
type export struct {
	columns  *message.Manifest // of a publisher; nil once it was encoded
	tail     []byte            // what answers to readers have in common; nil before it was encoded
	manifest []byte            // the manifest in tail
	handles  []message.Handle
	files    []*os.File        // owned
	storages []*tensor.Storage // borrowed, from who keeps the export
}

// newExport exports the storages of a state dict, which it borrows.
func newExport(sd *module.StateDict) (*export, error) {
	manifest, storages := sd.Manifest()
	encoded, err := encodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	out, err := exportStorages(storages)
	if err != nil {
		return nil, err
	}
	out.columns, out.storages = encoded, storages
	return out, nil
}

// exportStorages makes a handle for each storage. It borrows them.
func exportStorages(storages []*tensor.Storage) (*export, error) {
	out := &export{storages: storages}
	for i, s := range storages {
		if err := out.add(s); err != nil {
			out.close()
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
	}
	return out, nil
}

// add exports one storage.
func (out *export) add(s *tensor.Storage) error {
	h, err := s.Memory().Export()
	if err != nil {
		return incapable(err)
	}
	file := int32(-1)
	if h.File != nil {
		file = int32(len(out.files))
		out.files = append(out.files, h.File)
	}
	out.handles = append(out.handles, message.Handle{
		Kind: string(h.Kind), Device: message.UUID(h.Device), Bytes: uint64(h.Bytes), Offset: uint64(h.Offset),
		Blob: h.Blob, File: file,
	})
	return nil
}

// encode makes what all readers are sent, once.
func (out *export) encode() (err error) {
	out.tail, out.manifest, err = message.MarshalAcquiredTail(out.columns, out.handles)
	out.columns = nil
	return err
}

// close closes the descriptors. Who has imported the memory keeps it.
func (out *export) close() {
	for _, f := range out.files {
		f.Close()
	}
}

// importer maps what a peer exported.
type importer struct {
	devices deviceSet
	opts    driver.ImportOptions
	// socket is where the peer serves, if this is its client: by it and the names that the peer gives, the memory is known to be the peer's.
	socket string
	// own returns this process's own memory for a handle, which the importer takes, or nil to import what came with the handle. It may be nil.
	own func(i int, h message.Handle) *tensor.Storage
}

// stateDict makes a state dict of what a peer exported. It borrows the files that it does not take, and trusts
// nothing: the manifest, every handle and every descriptor are checked.
func (im importer) stateDict(m *message.Manifest, handles []message.Handle, files *wire.Files) (*module.StateDict, error) {
	manifest, err := decodeManifest(m)
	if err != nil {
		return nil, err
	}
	storages, err := im.storages(handles, files)
	if err != nil {
		return nil, err
	}
	defer closeStorages(storages) // the state dict has references of its own
	sd, err := module.FromManifest(manifest, storages)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return sd, nil
}

// storages maps what a peer exported. It borrows the files that it does not take. The caller closes the storages.
func (im importer) storages(handles []message.Handle, files *wire.Files) (_ []*tensor.Storage, err error) {
	if len(handles) == 0 && files.Len() == 0 {
		return nil, nil
	}
	if lent := lentWith(files); lent != nil {
		return lend(im.devices, lent, im.opts)
	}
	if err := message.ValidateHandles(handles, files.Len()); err != nil {
		return nil, err
	}
	storages := make([]*tensor.Storage, 0, len(handles))
	defer func() {
		if err != nil {
			closeStorages(storages)
		}
	}()
	for i, h := range handles {
		s, err := im.storage(i, h, files)
		if err != nil {
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		storages = append(storages, s)
	}
	return storages, nil
}

func (im importer) storage(i int, h message.Handle, files *wire.Files) (*tensor.Storage, error) {
	if im.own != nil {
		if s := im.own(i, h); s != nil {
			return s, nil
		}
	}
	mem, err := importMemory(im.devices, h, files, im.opts)
	if err != nil {
		return nil, err
	}
	name := ""
	if im.socket != "" && h.Name != "" {
		name = lender(im.socket, h.Name)
	}
	return tensor.NewLentStorage(mem, name), nil
}

func closeStorages(storages []*tensor.Storage) {
	for _, s := range storages {
		s.Close()
	}
}

// importMemory maps one handle of a peer.
func importMemory(devices deviceSet, h message.Handle, files *wire.Files, opts driver.ImportOptions) (driver.Memory, error) {
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
	return mem, incapable(err)
}

// exports are a server's exports by the state dict they belong to.
type exports struct {
	mu sync.RWMutex
	by map[*module.StateDict]*export
}

// put keeps an export until its state dict is dropped. It takes out.
func (x *exports) put(sd *module.StateDict, out *export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil {
		x.by = map[*module.StateDict]*export{}
	}
	x.by[sd] = out
}

// of returns the export of a state dict that the caller holds a lease on, borrowed for as long as that lasts.
func (x *exports) of(sd *module.StateDict) *export {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.by[sd]
}

// take returns the export of a state dict that is off the books, or nil. The caller closes it.
func (x *exports) take(sd *module.StateDict) *export {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.by[sd]
	delete(x.by, sd)
	return out
}
