package session

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ResultDevice is dev for the memory of the result of the call that ctx belongs to: used again where that can be.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	if slabs, ok := ctx.Value(slabsKey{}).(*transfer.Slabs); ok && slabs != nil {
		return slabs.Device(dev)
	}
	return dev
}

// slabsKey is the key of a call's slabs among the values of its context.
type slabsKey struct{}

// slabsSource tells a client of slabs that it has mapped and that are not used again.
type slabsSource struct{ ses *Session }

// Weight implements subscription.Source. It is nothing: nobody asked for it.
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
	if gone := o.ses.Slabs.Gone(); len(gone) > 0 {
		return []any{message.SlabsGone{Slabs: gone}}
	}
	return nil
}
