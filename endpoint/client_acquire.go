package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Acquire attaches the newest version of a name: its tensors are mapped, read-only, into this process. Nothing is
// copied, and the time it takes does not depend on their bytes. The caller closes the handle. Errors: [ErrNotFound] for
// a name that is not published, [ErrCapability] for memory of a device that this client was not given, those of Dial
// where the connection is gone, the cause of ctx.
func (c *Client) Acquire(ctx context.Context, name string) (*Handle, error) {
	return c.AcquireWith(ctx, name, AcquireOptions{})
}

// AcquireOptions say which version is acquired. The zero value is the newest there is.
type AcquireOptions struct {
	// Version is the one that is wanted, which must be the newest or still be held by somebody or be retained; 0 stands
	// for the newest. A version that is gone is [ErrNotFound].
	Version uint64
	// Wait waits, until the context ends, for a name or version that is not published yet.
	Wait bool
	// Digest is what [module.StateDictDigest] has to be of the version; another one is [module.ErrDigest]. It is
	// computed from the tensors after they were mapped, whose bytes are all read for it. The zero digest stands for
	// any.
	Digest module.Digest
	// OwnerDigest compares Digest with what the owner has computed of the version, where that was asked for when it was
	// published ([PublishOptions]): it waits for that, and no byte is read here. It is for who trusts the owner with the
	// bytes as with the digest. A version of which the owner computes none is read here.
	OwnerDigest bool
	// Compatibility is what [module.StateDict.Compatibility] has to be of the version; another one is
	// [module.ErrIncompatible]. Empty stands for any.
	Compatibility string
}

// check compares what was attached with what was asked for.
func (c *Client) check(ctx context.Context, h *Handle, o *AcquireOptions) error {
	sd := h.StateDict()
	if got := sd.Compatibility(); o.Compatibility != "" && got != o.Compatibility {
		return fmt.Errorf("%w: its key is %s, not %s", module.ErrIncompatible, status.Shown(got), status.Shown(o.Compatibility))
	}
	if o.Digest == (module.Digest{}) {
		return nil
	}
	if o.OwnerDigest {
		got, err := digested(ctx, c.conn, h.Name(), h.Version())
		switch {
		case err == nil && [len(o.Digest)]byte(got.Whole) != o.Digest:
			return fmt.Errorf("%w: their digest is %x, not %v", module.ErrDigest, got.Whole, o.Digest)
		case !errors.Is(err, status.ErrNotFound) && !errors.Is(err, errors.ErrUnsupported):
			return err
		}
	}
	return module.Verify(ctx, sd, o.Digest)
}

// AcquireWith is [Client.Acquire] with options.
func (c *Client) AcquireWith(ctx context.Context, name string, opts AcquireOptions) (*Handle, error) {
	h, err := c.acquire(ctx, name, opts.Version)
	if opts.Wait && errors.Is(err, status.ErrNotFound) && ctx.Err() == nil {
		h, err = c.acquirePublished(ctx, name, opts.Version, err)
	}
	if err == nil {
		if err = c.check(ctx, h, &opts); err != nil {
			err = errors.Join(fmt.Errorf("version %d: %w", h.Version(), err), h.Close())
		}
	}
	if err != nil {
		return nil, &catalog.NameError{Op: "acquire", Name: message.CutText(name, status.MaxShown), Version: opts.Version, Err: err}
	}
	return h, nil
}

// acquire attaches a version, 0 for the newest.
func (c *Client) acquire(ctx context.Context, name string, version uint64) (*Handle, error) {
	a, sd, err := c.leases.Acquire(ctx, name, version)
	if err != nil {
		return nil, err
	}
	return newHandle(a, sd), nil
}

// acquirePublished is acquire at each version of the name that the owner tells of, until one can be attached. missing
// is why the first attempt came to nothing.
func (c *Client) acquirePublished(ctx context.Context, name string, version uint64, missing error) (*Handle, error) {
	w, err := c.Watch(ctx, name)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for e, err := range w.Events(ctx) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("wait for it: %w; the owner said: %w", err, missing)
		case err != nil:
			return nil, err
		case e.Kind != EventPublished || e.Version < version:
			continue
		}
		h, err := c.acquire(ctx, name, version)
		// The newest may have been withdrawn since. A version that newer ones have come after is gone for good.
		if err == nil || !errors.Is(err, status.ErrNotFound) || version != 0 {
			return h, err
		}
		missing = err
	}
	return nil, missing // not reached: an error is the last pair
}
