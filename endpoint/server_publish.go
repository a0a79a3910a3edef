package endpoint

import (
	"context"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Publish makes sd the next version of name and returns its number. It borrows sd as [Client.Publish] does: the server
// references the memory until the version is superseded or withdrawn and its last lease ends, even if the caller closes
// sd. Publish waits for work on the tensors' devices and freezes the memory: it can no longer be mapped writable.
// Existing mappings stay writable, so the publisher must not write to it afterwards. Readers of the previous version
// keep it. Publishers and readers do not wait for each other.
//
// Errors: [ErrInvalid] if the name is invalid, [ErrCapability] with the reason if the memory cannot be shared in place,
// and [wire.ErrTooLarge] if the storages or tensors do not fit one frame.
func (s *Server) Publish(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error) {
	self := catalog.Holder{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), Label: s.core.Label}
	if sd == nil {
		return 0, modelError("publish", name, 0, fmt.Errorf("%w: the state dict is nil", status.ErrInvalid))
	}
	if opts.Retain != nil {
		if err := opts.Retain.Check(); err != nil {
			return 0, modelError("publish", name, 0, fmt.Errorf("%w: %w", status.ErrInvalid, err))
		}
	}
	if err := s.core.MayChangeOwn("publish", "name", name); err != nil {
		return 0, modelError("publish", name, 0, err)
	}
	part := message.Part{Index: uint64(opts.Part.Index), Of: uint64(opts.Part.Of), Key: opts.Part.Key}
	version, err := s.core.Models.Publish(ctx, server.Publication{Part: part, Name: name, StateDict: sd.Alias(), Origin: catalog.Origin{Source: opts.Source, Publisher: self}, Digests: opts.Digests, After: opts.After, SourceID: opts.SourceID, Retain: opts.Retain, Current: opts.Current})
	if err != nil {
		return 0, modelError("publish", name, 0, status.Absent(err))
	}
	s.core.AuditOwn("publish", "name", name, "version", version)
	return version, nil
}

// Rollback publishes the memory of a superseded version again, as [Client.Rollback] does.
func (s *Server) Rollback(ctx context.Context, name string, version uint64) (uint64, error) {
	self := catalog.Holder{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), Label: s.core.Label}
	if err := s.core.MayChangeOwn("rollback", "name", name, "to", version); err != nil {
		return 0, modelError("roll back", name, version, err)
	}
	number, err := s.core.Models.Rollback(ctx, name, version, self, 0)
	if err != nil {
		return 0, modelError("roll back", name, version, status.Absent(err))
	}
	s.core.AuditOwn("rollback", "name", name, "version", number, "to", version)
	return number, nil
}

// Withdraw removes a name from the catalog, so that it can no longer be acquired. Holders keep their version and
// receive an event. Errors: [ErrNotFound], and the cause of ctx if it has ended.
func (s *Server) Withdraw(ctx context.Context, name string) error {
	if err := ended.Cause(ctx); err != nil {
		return modelError("withdraw", name, 0, err)
	}
	if err := s.core.MayChangeOwn("withdraw", "name", name); err != nil {
		return modelError("withdraw", name, 0, err)
	}
	if err := s.core.Models.Withdraw(ctx, name, nil); err != nil {
		return modelError("withdraw", name, 0, err)
	}
	s.core.AuditOwn("withdraw", "name", name)
	return nil
}

// List returns published models with their holders, and models that are being loaded, sorted by name. It fails only if
// ctx has ended.
func (s *Server) List(ctx context.Context) ([]ModelInfo, error) {
	if err := ended.Cause(ctx); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	listed := s.core.Models.List()
	return decodeList(&listed), nil
}

// Digests returns the digests that the server computes for a version, as [Client.Digests] does.
func (s *Server) Digests(ctx context.Context, name string, version uint64) (VersionDigests, error) {
	return s.own.Digests(ctx, name, version)
}

// AnnounceLoad announces that a version of name will be published. source is for people and may be empty. The load
// waits until the first [Load.Progress]. The caller ends it with [Load.Done] after publication, or with [Load.Fail]. A
// later load of the same name replaces it. It fails with [ErrInvalid] if the name is invalid.
func (s *Server) AnnounceLoad(name, source string) (*Load, error) {
	l, err := s.core.Models.Announce(name, source)
	if err != nil {
		return nil, err
	}
	return &Load{l}, nil
}

// Load is a version that a server announces before its bytes are loaded. [Client.List] and [Client.Info] report its
// progress. Its methods are safe for concurrent use. A nil *Load does nothing.
type Load struct{ of *server.Load }

// Progress records that done of total bytes are loaded.
func (l *Load) Progress(done, total int64) {
	if l != nil {
		l.of.Progress(done, total)
	}
}

// Fail records that the load failed, and why. The failure is listed until the name is loaded again or published.
func (l *Load) Fail(err error) {
	if l != nil {
		l.of.Fail(err)
	}
}

// Done removes the load from the list.
func (l *Load) Done() {
	if l != nil {
		l.of.Done()
	}
}
