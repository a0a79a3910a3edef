package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/models"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
)

// VersionWriter is the next version of a name while it is being written: tensors in new, zeroed memory that only this
// process can see, to be filled in place by what only this process can compute, such as an engine's own layout, a
// quantised copy or a shard. [VersionWriter.Commit] makes it the next version; readers of the version before it never
// wait. Nothing of it is left after [VersionWriter.Abort], nor after the process was killed before Commit.
//
// The memory is shared memory from its first byte on and is handed over, not copied: after Commit it is the server's,
// and outlives the process that wrote it. Which process asked the kernel for it makes no difference to that, so no
// writable memory is ever shared with another process.
//
// Methods may be called from any goroutine, but Commit only when nobody writes any more.
type VersionWriter struct {
	name    string
	sd      *module.StateDict
	publish publishFunc

	mu      sync.Mutex
	version uint64 // once it is committed
	ended   bool   // committed or aborted
}

// NewVersion begins the next version of name, to be committed to the client's owner. Tensors without a device of their
// own are on the client's first one. The caller ends it with [VersionWriter.Commit] or [VersionWriter.Abort].
//
// Errors: [ErrInvalid] for a bad name, [ErrConfiguration] for a client without devices, the cause of ctx where there is
// no owner until it ends, and those of [module.New]. Nothing is allocated before all of that was checked.
func (c *Client) NewVersion(ctx context.Context, name string, specs []module.NamedSpec) (*VersionWriter, error) {
	if _, err := c.conn.Connected(ctx); err != nil {
		return nil, fmt.Errorf("new version of %s: %w", status.Shown(name), err)
	}
	return newVersionWriter(name, c.opts.Devices, specs, c.PublishWith)
}

// NewVersion begins the next version of name at this server. Tensors without a device of their own are on the server's
// first one. The caller ends it with [VersionWriter.Commit] or [VersionWriter.Abort]. Errors: [ErrInvalid] for a bad
// name, [ErrConfiguration] for a server without devices, [ErrServerClosed], and those of [module.New].
func (s *Server) NewVersion(ctx context.Context, name string, specs []module.NamedSpec) (*VersionWriter, error) {
	err := context.Cause(ctx)
	if err == nil && s.sessions.Stopped() {
		err = status.ErrServerClosed
	}
	if err != nil {
		return nil, fmt.Errorf("new version of %s: %w", status.Shown(name), err)
	}
	return newVersionWriter(name, s.opts.Devices, specs, s.PublishWith)
}

// publishFunc makes sd, which it borrows, the next version of name.
type publishFunc func(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error)

func newVersionWriter(name string, devices []driver.Device, specs []module.NamedSpec, publish publishFunc) (*VersionWriter, error) {
	err := models.CheckName(name)
	if err == nil && len(devices) == 0 {
		err = status.Configuration(fmt.Errorf("%w: there is no device for the tensors: set Devices in the options", status.ErrInvalid))
	}
	var sd *module.StateDict
	if err == nil {
		sd, err = module.New(devices[0], specs)
	}
	if err != nil {
		return nil, fmt.Errorf("new version of %s: %w", status.Shown(name), err)
	}
	return &VersionWriter{name: name, sd: sd, publish: publish}, nil
}

// StateDict are the tensors to fill. Borrowed: they are valid and writable until Commit or Abort.
func (w *VersionWriter) StateDict() *module.StateDict { return w.sd }

// Commit makes what was written the next version of the name and returns its number. Before it is published the memory
// is sealed, where it can be ([tensor.Storage.Seal]): the kernel then refuses all writes, also those of this process,
// so that readers need not trust it. After that the tensors are closed. Where the publication is refused or its owner
// is gone, the tensors stay, sealed, and Commit can be tried again; an owner that went away after it was asked may have
// the version. A second Commit returns the same number. Errors: those of [Client.PublishWith], and [ErrClosed] after
// Abort.
func (w *VersionWriter) Commit(ctx context.Context, opts PublishOptions) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.version != 0:
		return w.version, nil
	case w.ended:
		return 0, fmt.Errorf("commit %s: %w", status.Shown(w.name), status.ErrClosed)
	}
	if err := w.seal(); err != nil {
		return 0, fmt.Errorf("commit %s: %w", status.Shown(w.name), err)
	}
	version, err := w.publish(ctx, w.name, w.sd, opts)
	if err != nil {
		return 0, err
	}
	w.version, w.ended = version, true
	return version, w.sd.Close()
}

// seal closes the memory against all writers, this process included.
func (w *VersionWriter) seal() error {
	for _, s := range w.sd.Storages() {
		var cannot *driver.UnsupportedError
		if err := s.Seal(); err != nil && !errors.As(err, &cannot) { // memory of other kinds is frozen when it is published
			return err
		}
	}
	return nil
}

// Abort gives the memory back. After Commit, and the second time, it does nothing.
func (w *VersionWriter) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	w.ended = true
	return w.sd.Close()
}
