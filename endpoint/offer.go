package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/worker"
)

// OfferOptions say how a client runs the functions that it offers. The zero value is useful.
type OfferOptions struct {
	// Calls is how many run at once; 0 for as many as the owner sends.
	Calls int
}

// Offer is the endpoints of a process whose functions others call through the owner: the process is a worker. Its
// methods are safe for concurrent use.
type Offer struct{ of *worker.Offer }

// Offer has the owner take the endpoints that r has now for its own: calls of them from any process come to this one,
// which runs their functions. The owner checks, caches, runs tasks, keeps objects and bounds times as for endpoints of
// its own registry, so the same functions and options do here, but for [CacheKey] and [WritableArguments]. Tensors of
// arguments and results are in place: those of arguments are mapped for reading, and the memory of results is frozen
// and becomes the owner's. It stays when this process ends. A function returns nothing of which it writes the memory
// later. Several processes may offer the same endpoints, described alike: each call goes to the one that has the
// fewest.
//
// The offer lasts until [Offer.Close]. When the connection is lost its endpoints are gone, and the functions that run
// are cancelled: their callers get [ErrWorkerGone]. On the next connection the endpoints are offered again.
//
// Errors: [ErrRegistered] for a name that is taken, [ErrConfiguration] for endpoints that cannot be offered,
// [errors.ErrUnsupported] where the owner takes no offers, [ErrPermission] where it takes none of this client,
// [ErrLimit], and those of the connection.
func (c *Client) Offer(ctx context.Context, r *Registry, opts OfferOptions) (*Offer, error) {
	config, err := opts.describe(r)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	o, err := c.offers.Offer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("offer: %w", err)
	}
	return &Offer{o}, nil
}

// describe describes what a registry has.
func (o *OfferOptions) describe(r *Registry) (worker.Config, error) {
	config := worker.Config{Endpoints: map[string]*engine.Definition{}, Calls: o.Calls}
	list := r.list()
	if len(list) == 0 {
		return config, status.Configuration(fmt.Errorf("%w: the registry has no endpoints", status.ErrInvalid))
	}
	if o.Calls < 0 {
		return config, status.Configuration(fmt.Errorf("%w: %d calls at once", status.ErrInvalid, o.Calls))
	}
	for _, d := range list {
		if d.Options.Writable {
			return config, status.Configuration(fmt.Errorf("endpoint %q: %w: a worker gets its arguments for reading only", d.Name, status.ErrInvalid))
		}
		config.Endpoints[d.Name] = d
		config.Infos = append(config.Infos, d.Info())
	}
	return config, nil
}

// Done is closed when the offer has ended: after Close, with its client, or when a new owner refused it. [Offer.Err]
// says which.
func (o *Offer) Done() <-chan struct{} { return o.of.Done() }

// Err is why the offer has ended: [ErrClosed], or the owner's refusal. Nil while it lasts, also while there is no
// connection.
func (o *Offer) Err() error { return o.of.Err() }

// Close withdraws the endpoints, waits until the functions that run have returned and their callers have the results,
// and then returns. It does not cancel them; closing the client does. A second Close waits too.
func (o *Offer) Close() error {
	o.of.Close()
	return nil
}
