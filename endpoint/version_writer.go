package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
)

// VersionWriter is the next version of a name while this process writes it. Its tensors are in new, zeroed memory that
// only this process can access. Use it for tensors that this process computes, such as an engine's private layout, a
// quantised copy or a shard. [VersionWriter.Commit] makes it the next version; readers of the previous version never
// wait. After [VersionWriter.Abort], or if the process is killed before Commit, all of it is freed.
//
// The memory is shared memory from the start. Commit transfers it to the server without a copy, so it outlives the
// writing process. Writable memory is never shared with another process.
//
// Methods are safe for concurrent use, but all writes must be finished before Commit.
type VersionWriter struct {
	name    string
	sd      *module.StateDict
	publish publishFunc

	mu      sync.Mutex
	version uint64 // set by Commit
	ended   bool   // committed or aborted
}

// NewVersion creates the next version of name, to be committed to the client's owner. Tensors without a device are
// allocated on the client's first device. The caller ends it with [VersionWriter.Commit] or [VersionWriter.Abort].
//
// Errors: [ErrInvalid] if the name is invalid, [ErrConfiguration] if the client has no devices, those of the connection
// if no owner serves, and those of [module.New]. All are checked before memory is allocated.
func (c *Client) NewVersion(ctx context.Context, name string, specs []module.NamedSpec) (*VersionWriter, error) {
	if _, err := c.conn.ForRequest(ctx); err != nil {
		return nil, modelError("new version of", name, 0, err)
	}
	return newVersionWriter(name, c.opts.Devices, specs, c.Publish)
}

// NewVersion creates the next version of name at this server. Tensors without a device are allocated on the server's
// first device. The caller ends it with [VersionWriter.Commit] or [VersionWriter.Abort]. Errors: [ErrInvalid] if the
// name is invalid, [ErrConfiguration] if the server has no devices, [ErrServerClosed], and those of [module.New].
func (s *Server) NewVersion(ctx context.Context, name string, specs []module.NamedSpec) (*VersionWriter, error) {
	err := ended.Cause(ctx)
	if err == nil && s.core.Sessions.Stopped() {
		err = status.ErrServerClosed
	}
	if err != nil {
		return nil, modelError("new version of", name, 0, err)
	}
	return newVersionWriter(name, s.core.Devices, specs, s.Publish)
}

// publishFunc publishes sd, which it borrows, as the next version of name.
type publishFunc func(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error)

func newVersionWriter(name string, devices []driver.Device, specs []module.NamedSpec, publish publishFunc) (*VersionWriter, error) {
	err := server.CheckName(name)
	if err == nil && len(devices) == 0 {
		err = status.Configuration(fmt.Errorf("%w: there is no device for the tensors: set Devices in the options", status.ErrInvalid))
	}
	var sd *module.StateDict
	if err == nil {
		sd, err = module.New(devices[0], specs)
	}
	if err != nil {
		return nil, modelError("new version of", name, 0, err)
	}
	return &VersionWriter{name: name, sd: sd, publish: publish}, nil
}

// StateDict returns the tensors to fill. They are borrowed, and valid and writable until Commit or Abort.
func (w *VersionWriter) StateDict() *module.StateDict { return w.sd }

// Commit publishes the written tensors as the next version of the name, and returns its number. It first seals the
// memory if possible ([tensor.Storage.Seal]): the kernel then refuses all writes, including this process's, so readers
// need not trust it. After publication the tensors are closed. If publication is refused or the owner is gone, the
// tensors stay sealed and Commit can be retried; an owner that exited after it received the request may have published
// the version. After success, Commit returns the same number again. Errors: those of [Client.Publish], and
// [ErrClosed] after Abort.
func (w *VersionWriter) Commit(ctx context.Context, opts PublishOptions) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.version != 0:
		return w.version, nil
	case w.ended:
		return 0, status.Closed("the writer of " + status.Shown(w.name))
	}
	if err := w.seal(); err != nil {
		return 0, modelError("commit", w.name, 0, err)
	}
	version, err := w.publish(ctx, w.name, w.sd, opts)
	if err != nil {
		return 0, err
	}
	w.version, w.ended = version, true
	return version, w.sd.Close()
}

// seal closes the memory to all writers, including this process.
func (w *VersionWriter) seal() error {
	for _, s := range w.sd.Storages() {
		var cannot *driver.UnsupportedError
		if err := s.Seal(); err != nil && !errors.As(err, &cannot) { // other kinds of memory are frozen at publication
			return err
		}
	}
	return nil
}

// Abort frees the memory. After Commit or an earlier Abort, it does nothing.
func (w *VersionWriter) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	w.ended = true
	return w.sd.Close()
}
