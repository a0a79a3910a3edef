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
	got, err := digested(ctx, c.conn, message.Digests{Name: name, Version: version})
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
func digested(ctx context.Context, conn *client.Client, ask message.Digests) (got message.Digested, err error) {
	if err := knowsDigests(ctx, conn); err != nil {
		return got, err
	}
	if err := conn.Request(ctx, client.Request{Op: message.OpDigests, Body: ask}, &got); err != nil {
		return got, err
	}
	if len(got.Whole) != len(module.Digest{}) || ask.Version != 0 && got.Version != ask.Version {
		return got, fmt.Errorf("%w: answer: the digest of version %d has %d bytes", status.ErrProtocol, got.Version, len(got.Whole))
	}
	return got, nil
}

// attachedDigest returns the digest of what a handle has attached: the whole version or one part.
func attachedDigest(h *Handle, got message.Digested) (module.Digest, error) {
	if h.lease.Part == nil {
		return module.Digest(got.Whole), nil
	}
	sd := h.sd.Alias()
	defer sd.Close()
	const size = len(module.Digest{})
	each := map[string]module.Digest{}
	for i, name := range sd.Names() {
		if len(got.Tensors) != size*sd.Len() {
			return module.Digest{}, fmt.Errorf("%w: answer: digests of %d bytes for %d tensors", status.ErrProtocol, len(got.Tensors), sd.Len())
		}
		each[name] = module.Digest(got.Tensors[i*size:])
	}
	if err := sd.SetDigests(each); err != nil {
		return module.Digest{}, err
	}
	digest, _ := sd.ClaimedDigest()
	return digest, nil
}

// knowsDigests returns an error if the owner does not compute digests.
func knowsDigests(ctx context.Context, conn *client.Client) error {
	l, err := conn.ForRequest(ctx)
	if err == nil && !l.Digests {
		err = fmt.Errorf("%w: the owner's version does not compute digests", errors.ErrUnsupported)
	}
	return err
}
