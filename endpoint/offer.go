package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// OfferOptions configures how a client runs the functions that it offers. The zero value is useful.
type OfferOptions struct {
	// Calls is the maximum number of functions that run at once; 0 for as many as the owner sends. A function whose
	// caller has left counts until it returns: functions must observe their context.
	Calls int
}

// Offer is a set of endpoints whose functions this process, a worker, runs for callers of the owner. Its methods are
// safe for concurrent use.
type Offer struct{ of *client.Offer }

// Offer adds the endpoints that r has now to the owner's. Calls of them from any process are sent to this one, which
// runs their functions. As for its own endpoints, the owner validates arguments, caches results, runs tasks, keeps
// objects and enforces timeouts. The same functions and options can be used, except [CacheKey] and [WritableArguments].
// Tensors are shared in place: those of arguments are mapped read-only, and the memory of results is frozen and
// transferred to the owner, so it outlives this process. A function must not write to the memory of a result after
// returning it.
//
// Several processes may offer the same endpoints with the same description. Each call is sent to the process with the
// fewest calls. A process that is full or closes its offer declines a call, which is then sent to another process or
// waits. Calls fail with [ErrLimit] instead of waiting if functions whose callers left 30 seconds ago fill all
// processes.
//
// The offer lasts until [Offer.Close]. If the connection is lost, its endpoints are withdrawn and running functions are
// cancelled: their callers get [ErrWorkerGone]. After a reconnection the endpoints are offered again.
//
// Errors: [ErrRegistered] if a name is taken, [ErrConfiguration] if an endpoint cannot be offered,
// [errors.ErrUnsupported] if the owner does not support offers, [ErrPermission] if it refuses those of this client,
// [ErrLimit], and errors of the connection.
func (c *Client) Offer(ctx context.Context, r *Registry, opts OfferOptions) (*Offer, error) {
	config, err := opts.describe(r)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	o, err := c.conn.Offer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	return &Offer{o}, nil
}

// describe returns the description of the registry's endpoints.
func (o *OfferOptions) describe(r *Registry) (client.OfferConfig, error) {
	config := client.OfferConfig{Endpoints: map[string]*engine.Definition{}, Calls: o.Calls}
	list := r.registered().List()
	if len(list) == 0 {
		return config, status.Configuration(fmt.Errorf("%w: the registry has no endpoints", status.ErrInvalid))
	}
	if o.Calls < 0 {
		return config, status.Configuration(fmt.Errorf("%w: %d calls at once", status.ErrInvalid, o.Calls))
	}
	for _, d := range list {
		if d.Options.Writable {
			return config, status.Configuration(fmt.Errorf("endpoint %q: %w: a worker's arguments are read-only: remove WritableArguments", d.Name, status.ErrInvalid))
		}
		config.Endpoints[d.Name] = d
		config.Infos = append(config.Infos, d.Info())
	}
	return config, nil
}

// Done returns a channel that is closed when the offer ends: after Close, with its client, or when a new owner refuses
// it. [Offer.Err] returns the reason.
func (o *Offer) Done() <-chan struct{} { return o.of.Done() }

// Err returns the reason why the offer ended: [ErrClosed] or the owner's refusal. It returns nil while the offer lasts,
// also while disconnected.
func (o *Offer) Err() error { return o.of.Err() }

// Close withdraws the endpoints and waits until running functions have returned and their callers have the results. It
// does not cancel them; closing the client does. A second Close waits for the first.
func (o *Offer) Close() error {
	o.of.Close()
	return nil
}
