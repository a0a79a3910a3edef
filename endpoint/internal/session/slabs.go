package session

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ResultDevice returns the device that allocates the result of the call of ctx: dev, or a device that reuses slabs of the
// session.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	if slabs, ok := ctx.Value(slabsKey{}).(*transfer.Slabs); ok && slabs != nil {
		return slabs.Device(dev)
	}
	return dev
}

// slabsKey is the context key of a call's slabs.
type slabsKey struct{}

// slabsSource notifies a client of mapped slabs that will not be reused.
type slabsSource struct{ ses *Session }

// Weight implements subscription.Source. It is 0 because no request created the subscription.
func (slabsSource) Weight() int { return 0 }

// Open implements subscription.Source.
func (o slabsSource) Open(wake func()) {
	o.ses.Slabs.Allow(o.ses.of.Limits.SlabBytes, &o.ses.of.Totals.Slabs, wake)
}

// Opening implements subscription.Source.
func (slabsSource) Opening() bool { return false }

// Close implements subscription.Source. The slabs end with their session.
func (slabsSource) Close() {}

// Take implements subscription.Source.
func (o slabsSource) Take() []any {
	if gone := o.ses.Slabs.TakeGone(); len(gone) > 0 {
		return []any{message.SlabsGone{Slabs: gone}}
	}
	return nil
}
