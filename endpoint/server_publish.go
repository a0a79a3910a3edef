package endpoint

import (
	"context"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/models"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// Publish makes sd the next version of name and returns its number. It borrows sd, as [Client.Publish] does: the server
// refers to the memory until the version is superseded or withdrawn and its last reader has gone, whatever the caller
// closes. Work on the tensors' devices is waited for, and the memory is frozen: from here on nobody can map it
// writable, but mappings that exist stay writable, so the publisher must not write to it. Readers of the version before
// stay on it; nobody waits for anybody.
//
// Errors: [ErrInvalid] for a bad name, [ErrCapability] for memory that cannot be shared in place, with the reason, and
// [wire.ErrTooLarge] for more storages or tensors than one frame can carry to a reader.
func (s *Server) Publish(ctx context.Context, name string, sd *module.StateDict) (uint64, error) {
	return s.PublishWith(ctx, name, sd, PublishOptions{})
}

// PublishWith is Publish with options.
func (s *Server) PublishWith(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error) {
	self := catalog.Holder{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), Label: s.opts.Label}
	if sd == nil {
		return 0, &catalog.NameError{Op: "publish", Name: name, Err: fmt.Errorf("%w: there is no state dict", status.ErrInvalid)}
	}
	version, err := s.models.Publish(ctx, models.Publication{Name: name, StateDict: sd.Clone(), Origin: catalog.Origin{Source: opts.Source, Publisher: self}, Digests: opts.Digests})
	if err != nil {
		return 0, &catalog.NameError{Op: "publish", Name: name, Err: status.Absent(err)}
	}
	return version, nil
}

// Withdraw removes a name from the catalog: nobody can acquire it any more. Holders of a version keep it, and are told.
// Errors: [ErrNotFound], and the cause of a context that has ended.
func (s *Server) Withdraw(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return &catalog.NameError{Op: "withdraw", Name: name, Err: err}
	}
	return s.models.Withdraw(name)
}

// List returns what is published, with its holders, and what is being loaded, in the order of the names. Errors: the
// cause of a context that has ended.
func (s *Server) List(ctx context.Context) ([]ModelInfo, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	listed := s.models.List()
	return decodeList(&listed), nil
}

// Digests are those that the server computes of a version, as [Client.Digests] has them.
func (s *Server) Digests(ctx context.Context, name string, version uint64) (VersionDigests, error) {
	return s.own.Digests(ctx, name, version)
}

// AnnounceLoad tells clients that a version of name is going to be published, from a source that may be empty. It waits
// until the first [Load.Progress]. The caller ends it with [Load.Done] when it has published, or [Load.Fail]; a later
// load of the same name takes its place. Errors: [ErrInvalid] for a bad name.
func (s *Server) AnnounceLoad(name, source string) (*Load, error) {
	l, err := s.models.Announce(name, source)
	if err != nil {
		return nil, err
	}
	return &Load{l}, nil
}
