package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Publish makes sd the next version of name and returns its number. It borrows sd, as [Client.Publish] does: the server
// refers to the memory until the version is superseded or withdrawn and its last reader has gone, whatever the caller
// closes. Work on the tensors' devices is waited for, and the memory is frozen: from here on nobody can map it writable,
// but mappings that exist stay writable, so the publisher must not write to it. Readers of the version before stay on
// it; nobody waits for anybody.
//
// Errors: [ErrInvalid] for a bad name, [ErrCapability] for memory that cannot be shared in place, with the reason, and
// [wire.ErrTooLarge] for more storages or tensors than one frame can carry to a reader.
func (s *Server) Publish(ctx context.Context, name string, sd *module.StateDict) (uint64, error) {
	return s.PublishWith(ctx, name, sd, PublishOptions{})
}

// PublishOptions say what is published beside the tensors. The zero value says nothing.
type PublishOptions struct {
	// Source is where the tensors come from, usually a file, shown to people. What is beyond 1 KiB is cut off.
	Source string
}

// PublishWith is Publish with options.
func (s *Server) PublishWith(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error) {
	self := catalog.Holder{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), Label: s.opts.Label}
	if sd == nil {
		return 0, &catalog.NameError{Op: "publish", Name: name, Err: fmt.Errorf("%w: there is no state dict", status.ErrInvalid)}
	}
	return s.publish(ctx, name, sd.Clone(), catalog.Origin{Source: opts.Source, Publisher: self})
}

// publish makes sd, which it takes, also when it fails, the next version of name.
func (s *Server) publish(ctx context.Context, name string, sd *module.StateDict, origin catalog.Origin) (uint64, error) {
	origin.Source = shortText(origin.Source, limits.SourceBytes)
	version, err := s.record(ctx, name, sd, origin)
	if err != nil {
		return 0, &catalog.NameError{Op: "publish", Name: name, Err: status.Absent(err)}
	}
	s.loads.published(name)
	s.log.Info("published", "name", name, "version", version, "tensors", sd.Len(), "source", origin.Source)
	return version, nil
}

// record makes sd ready for readers and puts it on the books. It takes sd.
func (s *Server) record(ctx context.Context, name string, sd *module.StateDict, origin catalog.Origin) (uint64, error) {
	err := checkName(name)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = status.Unshareable(module.Freeze(sd))
	}
	if err != nil {
		return 0, errors.Join(err, sd.Close())
	}
	out, err := transfer.NewExport(sd)
	if err != nil {
		return 0, errors.Join(err, sd.Close())
	}
	s.nameExport(out)
	if err := s.attachable(name, out); err != nil {
		s.closeExport(out)
		return 0, errors.Join(err, sd.Close())
	}
	s.exports.put(sd, out) // before the books: the first reader may come at once
	version, err := s.books.Publish(name, sd, origin)
	if err != nil {
		s.unlend(sd)
	}
	return version, err
}

// attachable encodes what readers are sent, and refuses a version that no frame could bring to them, before it is on
// the books.
func (s *Server) attachable(name string, out *transfer.Export) error {
	frame, files := inproc.FrameLimits(s.opts.Limits.Wire)
	if len(out.Files) > files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d, load the model into fewer", status.ErrTooLarge, len(out.Files), files)
	}
	if err := out.Encode(); err != nil {
		return err
	}
	head := message.AppendAcquiredHead(nil, math.MaxUint64, name, math.MaxUint64)
	if n := int64(len(head) + len(out.Tail)); n > frame {
		return fmt.Errorf("%w: the manifest has %d bytes; a frame has at most %d", status.ErrTooLarge, n, frame)
	}
	return nil
}

// checkName refuses names that the books cannot have.
func checkName(name string) error {
	if err := catalog.CheckName(name); err != nil {
		return fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return nil
}

// Withdraw takes a name off the books: nobody can acquire it any more. Holders of a version keep it, and are told.
// Errors: [ErrNotFound], and the cause of a context that has ended.
func (s *Server) Withdraw(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return &catalog.NameError{Op: "withdraw", Name: name, Err: err}
	}
	return s.withdraw(name)
}

func (s *Server) withdraw(name string) error {
	if err := s.books.Withdraw(name); err != nil {
		return err
	}
	s.log.Info("withdrawn", "name", name)
	return nil
}

// List returns what is published, with its holders, and what is being loaded, in the order of the names. Errors: the
// cause of a context that has ended.
func (s *Server) List(ctx context.Context) ([]ModelInfo, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	listed := listAll(s)
	return decodeList(&listed), nil
}

// listAll is the answer to a list request.
func listAll(s *Server) (out message.Listed) {
	for _, info := range s.books.List() {
		out.Models = append(out.Models, encodeInfo(info))
	}
	out.Loading = s.loads.list()
	return out
}

// AnnounceLoad tells clients that a version of name is going to be published, from a source that may be empty. It waits
// until the first [Load.Progress]. The caller ends it with [Load.Done] when it has published, or [Load.Fail]; a later
// load of the same name takes its place. Errors: [ErrInvalid] for a bad name.
func (s *Server) AnnounceLoad(name, source string) (*Load, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	l := &Load{&s.loads, name}
	s.loads.put(l, message.Loading{Name: name, State: message.LoadWaiting, Source: message.CutText(source, message.MaxErrorMessage)})
	return l, nil
}
