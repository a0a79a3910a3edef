package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// slabOwner is the state of the functions in slab tests.
type slabOwner struct {
	dev  driver.Device
	runs atomic.Int64

	mu   sync.Mutex
	kept []*tensor.Tensor
	stop chan struct{} // "slow" waits for it
}

// requirePool skips a test of reused memory if it is disabled.
func requirePool(t testing.TB) {
	t.Helper()
	fixture.HostOnly(t, "memory of other devices is not used again")
	fixture.RequireFeature(t, message.FeaturePool)
}

// pageIn requests a vector of bytes with one value.
type pageIn struct {
	Bytes int64
	Value uint8
}

// unused is the content of a slab before it is filled. A reader of this value reads reused memory.
const unused = 0xEE

// fill creates the result of a call. A reader that still has its memory would notice the reuse.
func (o *slabOwner) fill(ctx context.Context, in pageIn) (*tensor.Tensor, error) {
	o.runs.Add(1)
	t, err := tensor.Empty(endpoint.ResultDevice(ctx, o.dev), tensor.Uint8, tensor.Shape{in.Bytes})
	if err != nil {
		return nil, err
	}
	data, err := tensor.Data[uint8](t)
	for _, value := range []uint8{unused, in.Value} {
		for i := range data {
			data[i] = value
		}
	}
	return t, err
}

// isAll checks that all bytes of a vector are one value.
func isAll(x *tensor.Tensor, value uint8) error {
	data, err := tensor.Data[uint8](x)
	if err == nil && len(bytes.Trim(data, string(rune(value)))) > 0 && value < 0x80 {
		err = fmt.Errorf("%d bytes begin with %#x and end with %#x, not %#x", len(data), data[0], data[len(data)-1], value)
	}
	return err
}

// servePagesOp makes a worker serve the functions of a slabOwner on a socket.
var servePagesOp = fixture.NewOp("serve pages", func(w *fixture.Worker, _ context.Context, socket string) (fixture.None, error) {
	o := &slabOwner{dev: w.Dev}
	r := endpoint.NewRegistry()
	if err := endpoint.Register(r, "fill", o.fill); err != nil {
		return fixture.None{}, err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{w.Dev}, Registry: r})
	if err != nil {
		return fixture.None{}, err
	}
	go s.Serve(context.Background())
	return fixture.None{}, nil
})

// servePages makes a child serve "fill".
func servePages(c *fixture.Child, socket string) {
	c.T.Helper()
	servePagesOp.Must(c.Process, socket)
}

// pages are calls of "fill", each with the same argument.
type pages struct {
	Calls int
	In    pageIn
}

// neverClosed holds results of this process that are never closed.
var neverClosed []*tensor.Tensor

// pagesOp calls "fill" and checks the results; every second one stays open.
var pagesOp = fixture.NewOp("pages", func(w *fixture.Worker, ctx context.Context, p pages) (fixture.None, error) {
	for i := range p.Calls {
		got, err := endpoint.Call[*tensor.Tensor](ctx, w.Client, "fill", p.In)
		if err != nil {
			return fixture.None{}, err
		}
		if err := isAll(got, p.In.Value); err != nil {
			return fixture.None{}, err
		}
		if i%2 == 0 {
			got.Close()
		} else {
			neverClosed = append(neverClosed, got)
		}
	}
	return fixture.None{}, nil
})

// pagesOf makes a child call "fill" and check the results; every second one stays open.
func pagesOf(c *fixture.Child, calls int, in pageIn) {
	c.T.Helper()
	pagesOp.Must(c.Process, pages{calls, in})
}

// repeatOp calls "cached" and checks the result, which stays open.
var repeatOp = fixture.NewOp("repeat", func(w *fixture.Worker, ctx context.Context, in pageIn) (fixture.None, error) {
	got, err := endpoint.Call[*tensor.Tensor](ctx, w.Client, "cached", in)
	if err != nil {
		return fixture.None{}, err
	}
	neverClosed = append(neverClosed, got)
	return fixture.None{}, isAll(got, in.Value)
})
