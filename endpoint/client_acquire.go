package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// AcquireOptions selects and verifies the version to acquire. The zero value selects the newest version.
type AcquireOptions struct {
	// Version is the version to acquire; 0 means the newest. Any other version must still be leased or retained, or
	// Acquire fails with [ErrNotFound].
	Version uint64
	// Device is the device on which the tensors are required; nil means where they were published. It is one of
	// [ClientOptions].Devices. If they are on another device, the owner copies them, once for all clients that require
	// them there ([ServerOptions].Placements), and Acquire waits for the copy. A device on which the owner makes no
	// placements fails with an error that matches [errors.ErrUnsupported], a full one with [ErrLimit].
	Device driver.Device
	// Wait waits, until the context ends, for an owner and for a name or version that is not published yet.
	Wait bool
	// Digest is the required result of [module.StateDictDigest]. A different digest fails with [module.ErrDigest]. It
	// is computed from the mapped tensors, which reads all their bytes. The zero digest accepts any version.
	Digest module.Digest
	// OwnerDigest compares Digest with the digest computed by the owner, if one was requested at publication
	// ([PublishOptions]). It waits for that digest and reads no bytes in this process. Use it if the owner is trusted
	// with the digest as with the bytes. If the owner computes none, this process does.
	OwnerDigest bool
	// Compatibility is the required result of [module.StateDict.Compatibility]. A different one fails with
	// [module.ErrIncompatible]. The empty string accepts any version.
	Compatibility string
	// Part selects one part of a version that was published in parts ([PublishOptions.Part]). A version with another number
	// of parts is refused with [ErrPart]. Digest and Compatibility are then those of the part. The zero value selects the
	// whole version, in which the names of part i begin with "rank" and i, such as "rank0/bias".
	Part Part
}

// check compares the attached version with the options.
func (c *Client) check(ctx context.Context, h *Handle, o *AcquireOptions) error {
	sd := h.StateDict()
	if got := sd.Compatibility(); o.Compatibility != "" && got != o.Compatibility {
		return fmt.Errorf("%w: its key is %s, not %s", module.ErrIncompatible, status.Shown(got), status.Shown(o.Compatibility))
	}
	if o.Digest == (module.Digest{}) {
		return nil
	}
	if o.OwnerDigest {
		got, err := digested(ctx, c.conn, message.Digests{Name: h.Name(), Version: h.Version(), Part: h.lease.Part})
		var digest module.Digest
		if err == nil {
			digest, err = attachedDigest(h, got)
		}
		switch {
		case err == nil && digest != o.Digest:
			return fmt.Errorf("%w: their digest is %v, not %v", module.ErrDigest, digest, o.Digest)
		case !errors.Is(err, status.ErrNotFound) && !errors.Is(err, errors.ErrUnsupported):
			return err
		}
	}
	return module.Verify(ctx, sd, o.Digest)
}

// Acquire attaches a version of a name by mapping its tensors read-only into this process. Nothing is copied, so its
// duration does not depend on their size. The caller closes the handle. Errors: [ErrInvalid] if the name is not allowed,
// [ErrNotFound] if it is not published, [ErrCapability] if the memory is on a device that the client was not given,
// those of the options and of Dial, and the cause of ctx.
func (c *Client) Acquire(ctx context.Context, name string, opts AcquireOptions) (*Handle, error) {
	if err := catalog.CheckName(name); err != nil {
		return nil, modelError("acquire", name, opts.Version, fmt.Errorf("%w: %w", status.ErrInvalid, err))
	}
	ask := message.Acquire{Name: name, Version: opts.Version}
	if opts.Device != nil {
		uuid := message.UUID(opts.Device.Info().UUID)
		ask.Device = &uuid
	}
	var h *Handle
	var err error
	if ask.Part, err = wirePart(ctx, c.conn, opts.Wait, opts.Part); err == nil {
		h, err = c.acquire(ctx, opts.Wait, ask)
	}
	if opts.Wait && errors.Is(err, status.ErrNotFound) && ctx.Err() == nil {
		h, err = c.acquirePublished(ctx, ask, err)
	}
	if err == nil {
		if err = c.check(ctx, h, &opts); err != nil {
			err = errors.Join(fmt.Errorf("version %d: %w", h.Version(), err), h.Close())
		}
	}
	if err != nil {
		return nil, modelError("acquire", name, opts.Version, err)
	}
	return h, nil
}

// acquire attaches a version or a part. If wait is true, it waits for an owner.
func (c *Client) acquire(ctx context.Context, wait bool, ask message.Acquire) (*Handle, error) {
	if ask.Device != nil {
		if _, err := c.conn.Devices.Find(driver.UUID(*ask.Device)); err != nil {
			return nil, err
		}
	}
	a, sd, err := c.conn.Acquire(ctx, wait, ask)
	if err != nil {
		return nil, err
	}
	return newHandle(a, sd), nil
}

// acquirePublished calls acquire for each version of the name that the owner announces, until one can be attached.
// missing is the error of the first attempt.
func (c *Client) acquirePublished(ctx context.Context, ask message.Acquire, missing error) (*Handle, error) {
	version := ask.Version
	w, err := c.watch(ctx, true, ask.Name)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for e, err := range w.Events(ctx) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("wait for the version: %w; the first attempt failed: %w", err, missing)
		case err != nil:
			return nil, err
		case e.Kind != EventPublished || e.Version < version:
			continue
		}
		h, err := c.acquire(ctx, true, ask)
		// The newest version may have been withdrawn since. A superseded version is not published again.
		if err == nil || !errors.Is(err, status.ErrNotFound) || version != 0 {
			return h, err
		}
		missing = err
	}
	return nil, missing // unreachable: an error is the last pair
}
