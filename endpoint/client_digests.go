package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// VersionDigests holds the digests of a version, as computed by its owner.
type VersionDigests struct {
	// Version is the number of the version.
	Version uint64
	// Whole is the result of [module.StateDictDigest] for the version.
	Whole module.Digest
	// Tensors maps tensor names to digests, as [module.Digests] computes them.
	Tensors map[string]module.Digest
}

// Digests returns the digests that the owner computes for a version; 0 means the newest. They must have been requested
// at publication ([PublishOptions]). Digests waits until they are computed and does not keep the version alive. Errors:
// [ErrNotFound] if the version does not exist, is freed meanwhile, or was published without digests;
// [errors.ErrUnsupported] if the owner does not compute digests; the cause of ctx.
func (c *Client) Digests(ctx context.Context, name string, version uint64) (VersionDigests, error) {
	got, err := c.digests(ctx, name, version)
	if err != nil {
		err = modelError("digests of", name, version, err)
	}
	return got, err
}

func (c *Client) digests(ctx context.Context, name string, version uint64) (VersionDigests, error) {
	got, err := digested(ctx, c.conn, name, version)
	if err != nil {
		return VersionDigests{}, err
	}
	m, err := c.Manifest(ctx, name, got.Version)
	if err != nil {
		return VersionDigests{}, err
	}
	const size = len(module.Digest{})
	if len(got.Tensors) != size*len(m.Tensors) {
		return VersionDigests{}, fmt.Errorf("%w: answer: digests of %d bytes for %d tensors", status.ErrProtocol, len(got.Tensors), len(m.Tensors))
	}
	out := VersionDigests{Version: got.Version, Whole: module.Digest(got.Whole), Tensors: make(map[string]module.Digest, len(m.Tensors))}
	for i := range m.Tensors {
		out.Tensors[m.Tensors[i].Name] = module.Digest(got.Tensors[i*size:])
	}
	return out, nil
}

// digested waits for the digests of a version in their wire form.
func digested(ctx context.Context, conn *client.Client, name string, version uint64) (got message.Digested, err error) {
	if err := knowsDigests(ctx, conn); err != nil {
		return got, err
	}
	if err := conn.Request(ctx, client.Request{Op: message.OpDigests, Body: message.Digests{Name: name, Version: version}}, &got); err != nil {
		return got, err
	}
	if len(got.Whole) != len(module.Digest{}) || version != 0 && got.Version != version {
		return got, fmt.Errorf("%w: answer: the digest of version %d has %d bytes", status.ErrProtocol, got.Version, len(got.Whole))
	}
	return got, nil
}

// knowsDigests returns an error if the owner does not compute digests.
func knowsDigests(ctx context.Context, conn *client.Client) error {
	l, err := conn.ForRequest(ctx)
	if err == nil && !l.Digests {
		err = fmt.Errorf("%w: the owner's version does not compute digests", errors.ErrUnsupported)
	}
	return err
}
