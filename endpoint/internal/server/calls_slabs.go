package server

import (
	"context"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ResultDevice returns the device that allocates the result of the call of ctx: dev, or a device that reuses slabs of the
// client.
func ResultDevice(ctx context.Context, dev driver.Device) driver.Device {
	if slabs, ok := session.Attached(ctx).(*transfer.Slabs); ok {
		return slabs.Device(dev)
	}
	return dev
}

// slabsSource notifies a client of mapped slabs that will not be reused.
type slabsSource struct{ client *client }

// Weight implements session.Source. It is 0 because no request created the subscription.
func (slabsSource) Weight() int { return 0 }

// Open implements session.Source.
func (o slabsSource) Open(wake func()) {
	o.client.slabs.Allow(o.client.server.Limits.KeptBytes, &o.client.server.Totals.Kept, wake)
}

// Opening implements session.Source.
func (slabsSource) Opening() bool { return false }

// Close implements session.Source. The slabs end with their session.
func (slabsSource) Close() {}

// Take implements session.Source.
func (o slabsSource) Take() []any {
	if gone := o.client.slabs.TakeGone(); len(gone) > 0 {
		return []any{message.SlabsGone{Slabs: gone}}
	}
	return nil
}

// returnSlabs accepts slabs that the client returns without a call.
func returnSlabs(_ context.Context, r *session.Request) (session.Reply, error) {
	var in message.ReturnSlabs
	if err := r.Decode(&in); err != nil {
		return nil, err
	}
	if err := clientOf(r.Session).slabs.Return(in.Returned, in.Dropped); err != nil {
		return nil, err
	}
	return &answer{body: message.SlabsReturned{}}, nil
}
