//go:build linux

package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// sharer holds the server or the client of an agent.
type sharer struct {
	server  *endpoint.Server
	client  *endpoint.Client
	handles map[string]*endpoint.Handle
	watcher *endpoint.Watcher
	kernel  *cuda.Function
}

// useEndpoint handles requests that need a server or a client.
func (a *agent) useEndpoint(q request) (r response, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	if a.share == nil {
		a.share = &sharer{handles: map[string]*endpoint.Handle{}}
	}
	switch q.Do {
	case "serve", "publish", "publish empty", "holders":
		return a.own(ctx, q)
	}
	return a.attach(ctx, q)
}

// own handles requests to an owner.
func (a *agent) own(ctx context.Context, q request) (r response, err error) {
	s := a.share
	switch q.Do {
	case "serve":
		s.server, err = endpoint.NewServer(endpoint.ServerOptions{Socket: q.Socket, Devices: []driver.Device{a.dev}, Registry: a.endpoints()})
		if err == nil {
			go s.server.Serve(context.Background())
		}
	case "publish":
		var sd *module.StateDict
		if sd, err = synthetic(a.dev, q); err == nil {
			r.Version, err = s.server.Publish(ctx, q.Name, sd, endpoint.PublishOptions{})
			err = errors.Join(err, sd.Close())
		}
	case "publish empty": // a slab whose bytes no test reads
		var sd *module.StateDict
		if sd, err = emptyModel(a.dev, q.Bytes); err == nil {
			r.Version, err = s.server.Publish(ctx, q.Name, sd, endpoint.PublishOptions{})
			err = errors.Join(err, sd.Close())
		}
	case "holders":
		models, err := s.server.List(ctx)
		if err != nil {
			return r, err
		}
		for _, m := range models {
			for _, v := range m.Versions {
				r.Bytes += int64(len(v.Holders))
			}
		}
	}
	return r, err
}

// attach handles requests to a client.
func (a *agent) attach(ctx context.Context, q request) (r response, err error) {
	s := a.share
	switch q.Do {
	case "dial":
		s.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: q.Socket, Devices: []driver.Device{a.dev}})
	case "acquire":
		var h *endpoint.Handle
		if h, err = s.client.Acquire(ctx, q.Name, endpoint.AcquireOptions{Version: q.Version}); err == nil {
			s.handles[q.Key] = h
			r.Version = h.Version()
		}
	case "time acquire":
		r.Nanos, err = a.timeAcquires(ctx, q)
	case "check":
		err = checkModel(a.dev, s.handles[q.Key].StateDict(), q)
	case "sum": // computed by a kernel on the attached memory
		r.Text, err = a.launchOn(s.handles[q.Key].StateDict())
	case "state":
		r.Text = s.handles[q.Key].State().String()
	case "release":
		err = s.handles[q.Key].Close()
	case "offer":
		var sd *module.StateDict
		if sd, err = synthetic(a.dev, q); err == nil {
			r.Version, err = s.client.Publish(ctx, q.Name, sd, endpoint.PublishOptions{})
			sd.Close()
		}
	case "watch":
		s.watcher, err = s.client.Watch(ctx)
	case "next":
		for e, problem := range s.watcher.Events(ctx) {
			r.Text, r.Version, err = e.Kind.String()+" "+e.Name, e.Version, problem
			break
		}
	case "call":
		err = a.callOwner(ctx)
	default:
		err = fmt.Errorf("%w: %s", errUnknown, q.Do)
	}
	return r, err
}

func (a *agent) timeAcquires(ctx context.Context, q request) (nanos []int64, err error) {
	for range q.Times {
		start := time.Now()
		h, err := a.share.client.Acquire(ctx, q.Name, endpoint.AcquireOptions{})
		if err != nil {
			return nil, err
		}
		nanos = append(nanos, time.Since(start).Nanoseconds())
		if err := h.Close(); err != nil {
			return nil, err
		}
	}
	return nanos, nil
}

// synthetic returns a model whose bytes are derived from the seed.
func synthetic(dev driver.Device, q request) (*module.StateDict, error) {
	return module.Synthesize(dev, module.Synthetic{Seed: uint64(q.Seed), Tensors: 4, Bytes: max(q.Bytes, 1<<16)})
}

// emptyModel returns a model of 64 tensors in one uninitialized slab.
func emptyModel(dev driver.Device, size int64) (*module.StateDict, error) {
	mem, err := dev.Alloc(size)
	if err != nil {
		return nil, err
	}
	slab := tensor.NewStorage(mem)
	defer slab.Close()
	sd := module.NewStateDict()
	const n = 64
	for i := range int64(n) {
		t, err := tensor.New(slab, tensor.Spec{DType: tensor.Uint8, Shape: tensor.Shape{size / n}, ByteOffset: i * (size / n)})
		if err == nil {
			err = sd.Set(fmt.Sprintf("t%d", i), t)
		}
		if err != nil {
			sd.Close()
			return nil, err
		}
	}
	return sd, nil
}

// checkModel compares every byte of a model with the bytes that synthetic derives from the seed.
func checkModel(dev driver.Device, got *module.StateDict, q request) error {
	want, err := synthetic(dev, q)
	if err != nil {
		return err
	}
	defer want.Close()
	if got.Len() != want.Len() {
		return fmt.Errorf("%d tensors, not %d", got.Len(), want.Len())
	}
	for name, t := range want.All() {
		other, ok := got.Get(name)
		if !ok {
			return fmt.Errorf("no tensor %s", name)
		}
		var x, y bytes.Buffer
		if _, err := t.WriteTo(&x); err != nil {
			return err
		}
		if _, err := other.WriteTo(&y); err != nil {
			return err
		}
		if !bytes.Equal(x.Bytes(), y.Bytes()) {
			return fmt.Errorf("%s: %w", name, errChanged)
		}
	}
	return nil
}
