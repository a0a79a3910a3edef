package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Ping sends a request to the owner and returns the round-trip time. It fails at once if no owner serves.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	l, err := c.conn.ConnectNow(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	_, frame, err := l.RoundTrip(ctx, client.Request{Op: message.OpPing})
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	frame.Files.Close()
	return time.Since(start), nil
}

// List returns the published models and their holders, sorted by name.
func (c *Client) List(ctx context.Context) ([]ModelInfo, error) {
	listed, err := c.conn.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return decodeList(&listed), nil
}

// Info returns the description of one name, or [ErrNotFound] if it is not published.
func (c *Client) Info(ctx context.Context, name string) (ModelInfo, error) {
	var got message.InfoResult
	if err := c.conn.Request(ctx, client.Request{Op: message.OpInfo, Body: message.Info{Name: name}}, &got); err != nil {
		return ModelInfo{}, modelError("info of", name, 0, err)
	}
	info := decodeInfo(got.Model)
	info.Loading = decodeLoading(got.Loading)
	return info, nil
}

// Manifest returns a description of the tensors of a version without attaching them; version 0 means the newest.
func (c *Client) Manifest(ctx context.Context, name string, version uint64) (*module.Manifest, error) {
	var got message.InfoResult
	ask := message.Info{Name: name, Version: version, Manifest: true}
	if err := c.conn.Request(ctx, client.Request{Op: message.OpInfo, Body: ask}, &got); err != nil {
		return nil, modelError("manifest of", name, version, err)
	}
	if got.Manifest == nil {
		return nil, modelError("manifest of", name, version, fmt.Errorf("%w: the answer has none", status.ErrProtocol))
	}
	return codec.DecodeManifest(got.Manifest)
}

// Publish makes sd, which must be in this process's own memory, the next version of name at the owner, and returns its
// number. No bytes are copied: the owner takes the memory, which outlives this process. Publish borrows sd; closing it
// afterwards only unmaps this process's view. Publish waits for work on the devices and freezes the memory: it can no
// longer be mapped writable. Existing mappings stay writable, so the publisher must not write to it afterwards.
//
// Errors: [ErrInvalid] if the name is invalid, [ErrCapability] if the memory cannot be shared in place.
func (c *Client) Publish(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error) {
	version, err := c.publish(ctx, name, sd, opts)
	if err != nil {
		return 0, modelError("publish", name, 0, err)
	}
	return version, nil
}

func (c *Client) publish(ctx context.Context, name string, sd *module.StateDict, opts PublishOptions) (uint64, error) {
	if sd == nil {
		return 0, fmt.Errorf("%w: the state dict is nil", ErrInvalid)
	}
	if opts.Digests {
		if err := knowsDigests(ctx, c.conn); err != nil {
			return 0, err
		}
	}
	if opts.Current != nil {
		if err := knowsConditions(ctx, c.conn); err != nil {
			return 0, err
		}
	}
	part, err := wirePart(ctx, c.conn, false, opts.Part)
	if err != nil {
		return 0, err
	}
	if sd.Closed() { // another reference may hold the memory
		return 0, status.Closed("the state dict")
	}
	if err := module.Freeze(sd); err != nil {
		return 0, status.Unshareable(err)
	}
	out, err := transfer.NewExport(sd)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	body := message.Publish{
		Name: name, Manifest: *out.Columns, Handles: out.Handles, Source: status.ShortText(opts.Source, status.MaxSourceBytes), Digests: opts.Digests, After: opts.After, Current: opts.Current, Part: part,
	}
	if r := opts.Retain; r != nil {
		if err := r.Check(); err != nil {
			return 0, fmt.Errorf("%w: %w", status.ErrInvalid, err)
		}
		body.Retain = &message.Retention{Versions: uint64(r.Versions), Age: r.Age, Bytes: uint64(r.Bytes)}
	}
	ask := client.Request{Op: message.OpPublish, Body: body, Files: out.Files, Storages: out.Storages}
	var done message.Published
	status.Reach("publish exported")
	if err := c.conn.Request(ctx, ask, &done); err != nil {
		return 0, err
	}
	status.Reach("publish answered")
	return done.Version, nil
}

// Rollback publishes the memory of a superseded version as the next version of name, and returns the new number. Nothing
// is copied. Version 0 is the newest superseded version that the owner keeps, so a second Rollback to version 0 returns
// to the version before the first. Readers and followers receive the new version as any other.
//
// Errors: [ErrNotFound] if the owner does not keep the version ([ServerOptions.Retain]), [ErrInvalid] if it is the current
// one, and errors.ErrUnsupported if the owner does not know the operation.
func (c *Client) Rollback(ctx context.Context, name string, version uint64) (uint64, error) {
	var done message.Published
	if err := c.conn.Request(ctx, client.Request{Op: message.OpRollback, Body: message.Rollback{Name: name, Version: version}}, &done); err != nil {
		return 0, modelError("roll back", name, version, err)
	}
	return done.Version, nil
}

// Withdraw removes a name from the owner's catalog, so that it can no longer be acquired. Holders keep their version
// and receive an event.
func (c *Client) Withdraw(ctx context.Context, name string) error {
	return c.withdraw(ctx, message.Withdraw{Name: name})
}

// WithdrawIf is [Client.Withdraw] if the version is the current one of the name. The owner compares and withdraws in one
// step. Errors: [ErrChanged] if another version is current, and errors.ErrUnsupported if the owner cannot compare.
func (c *Client) WithdrawIf(ctx context.Context, name string, version uint64) error {
	if err := knowsConditions(ctx, c.conn); err != nil {
		return modelError("withdraw", name, version, err)
	}
	return c.withdraw(ctx, message.Withdraw{Name: name, Current: &version})
}

func (c *Client) withdraw(ctx context.Context, body message.Withdraw) error {
	if err := c.conn.Request(ctx, client.Request{Op: message.OpWithdraw, Body: body}, nil); err != nil {
		var version uint64
		if body.Current != nil {
			version = *body.Current
		}
		return modelError("withdraw", body.Name, version, err)
	}
	return nil
}

// knowsConditions returns errors.ErrUnsupported if the owner ignores conditions of changes.
func knowsConditions(ctx context.Context, conn *client.Client) error {
	l, err := conn.ForRequest(ctx)
	if err == nil && !l.Conditions {
		err = fmt.Errorf("%w: the owner's version does not compare the current version", errors.ErrUnsupported)
	}
	return err
}

// PublishOptions describes a publication beyond its tensors.
type PublishOptions struct {
	// Source is the origin of the tensors, usually a file, for people. It is truncated to 1 KiB. Bytes that are not UTF-8
	// are shown escaped, such as `caf\xe9`.
	Source string
	// Digests requests that the owner compute the digest of each tensor and of the whole in the background. The version
	// is published at once; [Client.Digests] waits for them, and [VersionInfo] reports their state. The owner computes
	// one version at a time on one processor, and stops when the version is freed. It reads the bytes itself and
	// ignores digests from [module.AddDigests]. If the owner does not support this, publication fails with
	// errors.ErrUnsupported.
	Digests bool
	// After makes the number of the version greater than After, at most 2⁵³. It lets numbers continue after an owner's
	// restart ([FollowOptions.RefuseOlder]). Owners that do not support it ignore it.
	After uint64
	// Retain replaces the retention of superseded versions of the name, until it is withdrawn or published with another
	// one. Nil leaves it. Owners that do not support it ignore it.
	Retain *Retention
	// Current, if not nil, is the number of the version that must be current, 0 for a name that is not published. The owner
	// compares and publishes in one step. If another version is current, the error is [ErrChanged]. Owners that cannot
	// compare are refused with errors.ErrUnsupported.
	Current *uint64
	// Part makes this one part of the next version, which all parts complete. Publish returns when the last part is
	// published: then the version becomes current, for all parts at once. Until then readers keep the previous one. If the
	// publisher ends or ctx ends before that, the part is removed. Owners that do not support parts are refused with
	// errors.ErrUnsupported.
	//
	// All publishers get the version's number or the same error. They get [ErrIncomplete] if parts are still missing after
	// some minutes ([Limits].PartTime) or the name is withdrawn, and [ErrPart] if a part does not fit: another Of or Key, an
	// index twice, or a name whose current version has another number of parts. The parts of a version come from one user.
	// A part counts as a version in the limits of its publisher. After is the highest of all parts, Digests that of any,
	// Retain, Source and SourceID those of the lowest index that has one, and Current must be the same.
	Part Part
	// SourceID identifies the content of the source, for example the size and modification time of a file. A server
	// keeps it with the version ([ServerOptions.Keep], [Server.Adopted]). A version without one inherits that of the
	// version it replaces. It is UTF-8. Clients do not send it.
	SourceID string
}
