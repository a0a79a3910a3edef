package endpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// obtain returns the result of a call, cached or made now, and whether it was cached. It takes the arguments. The caller releases the
// result.
func (s *Server) obtain(ctx context.Context, d *definition, a *arguments) (_ grip, cached bool, err error) {
	defer s.recovered(&err, d, "") // the function's error may panic when it is asked what it is
	// A run belongs to all who wait for it. It may go on when the one whose arguments it has is gone, so the arguments go with the
	// run, if there is one.
	defer a.drop()
	key, keyed := d.key(a)
	if !keyed {
		s.uncached(d)
		a.claim()
		r, err := s.run(ctx, d, a)
		return grip{result: r}, false, err
	}
	get := s.results.Get
	if d.options.noSingleFlight {
		get = s.results.GetAlone
		if ref, ok := s.results.Lookup(key); ok {
			d.hits.Add(1)
			return grip{ref.Value(), ref}, true, nil
		}
		// Who had the turn before may have made what this call wants: it is looked for after that. So the turn ends when the result is in
		// the cache, and the run is over, which may outlast a caller that leaves.
		if err := s.takeTurn(ctx, d, a); err != nil {
			return grip{}, false, err
		}
		if a.turn != nil {
			a.turn = second(a.turn)
			defer a.turn()
		}
	}
	made := false
	for {
		ref, err := get(ctx, key, func(ctx context.Context) (*result, error) {
			if !a.claim() {
				return nil, cache.ErrAbandoned // its caller left before it began
			}
			made = true
			return s.run(ctx, d, a)
		})
		if errors.Is(err, cache.ErrAbandoned) && ctx.Err() == nil && !a.claimed.Load() {
			continue // joined a run that never began: ours will
		}
		if err != nil {
			return grip{}, false, err
		}
		if !made {
			d.hits.Add(1)
		}
		return grip{ref.Value(), ref}, !made, nil
	}
}

// run calls the function and encodes its result. It takes the arguments. The caller releases the result.
func (s *Server) run(ctx context.Context, d *definition, a *arguments) (r *result, err error) {
	defer a.close()
	if d.options.timeout > 0 {
		limited, cancel := withTimeout(ctx, d.options.timeout)
		defer cancel()
		defer func() { err = limited.over(err) }()
		ctx = limited
	}
	if err := s.takeTurn(ctx, d, a); err != nil {
		return nil, err
	}
	start := time.Now()
	r, err = s.invoke(ctx, d, a)
	d.latency.add(time.Since(start), err != nil)
	return r, err
}

// takeTurn waits until the arguments are those whose run is next, where runs of the endpoint wait for each other. They give the turn back when
// they are closed.
func (s *Server) takeTurn(ctx context.Context, d *definition, a *arguments) error {
	if d.options.serialized == nil || a.turn != nil {
		return nil
	}
	if d.options.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.options.timeout)
		defer cancel()
	}
	var err error
	if a.turn, err = s.turns.lock(ctx, d.name+"\x00"+d.options.serialized.Expand(reflect.ValueOf(a.value).Elem())); err != nil {
		return fmt.Errorf("endpoint %q: wait for its turn: %w", d.name, err)
	}
	return nil
}

// invoke calls the function and encodes what it returns. A panic in either is an error.
func (s *Server) invoke(ctx context.Context, d *definition, a *arguments) (r *result, err error) {
	defer s.recovered(&err, d, "")
	if ctx.Err() != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.name, context.Cause(ctx))
	}
	out, err := d.invoke(ctx, a.value)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", d.name, err)
	}
	if r, err = s.encode(out); err != nil {
		return nil, fmt.Errorf("endpoint %q: result: %w", d.name, err)
	}
	s.nameResult(r, d, a.storages)
	return r, nil
}

// encode makes a result of a value, of which it takes the tensors.
func (s *Server) encode(value any) (*result, error) {
	defer codec.CloseValue(value) // the payload has references of its own
	p, err := codec.EncodePayload(value)
	if err != nil {
		return nil, err
	}
	if err := s.fits(&p); err != nil {
		p.Close()
		return nil, err
	}
	return newResult(p), nil
}

// What a frame has beside a payload, at most: its envelope, and a handle for each storage.
const (
	envelopeBytes = 1024
	handleBytes   = 256
)

// fits refuses a payload that no frame could carry, before anybody keeps it.
func (s *Server) fits(p *codec.Payload) error {
	frame, files := inproc.FrameLimits(s.opts.Limits.Wire)
	if n := int64(len(p.Value)) + int64(len(p.Storages))*handleBytes + envelopeBytes; n > frame {
		return fmt.Errorf("%w: %d bytes beside the tensors; a frame has at most %d", status.ErrTooLarge, len(p.Value), frame)
	}
	if len(p.Storages) > files {
		return fmt.Errorf("%w: %d storages; a frame has at most %d", status.ErrTooLarge, len(p.Storages), files)
	}
	return nil
}
