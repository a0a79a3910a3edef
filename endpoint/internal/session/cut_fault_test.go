package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// cutter is a proxy between one client and its owner. It forwards bytes and descriptors, and closes both connections
// after a number of bytes in one direction.
type cutter struct {
	socket   string
	upstream string
	listener *net.UnixListener
	toOwner  bool // the direction
	after    int  // -1 for never

	passed [2][]byte // to the client, and to the owner
	cut    chan struct{}
	once   sync.Once
	work   sync.WaitGroup
	hangUp atomic.Pointer[func()] // closes both connections; nil without connections
}

func startCutter(t testing.TB, socket, upstream string, toOwner bool, after int) *cutter {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	require.NoError(t, err)
	c := &cutter{socket: socket, upstream: upstream, listener: l, toOwner: toOwner, after: after, cut: make(chan struct{})}
	c.work.Go(c.serve)
	return c
}

// serve forwards one connection. There is no second one.
func (c *cutter) serve() {
	client, err := c.listener.AcceptUnix()
	c.listener.Close()
	if err != nil {
		return
	}
	owner, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.upstream})
	if err != nil {
		client.Close()
		return
	}
	hangUp := func() {
		c.once.Do(func() { close(c.cut) })
		client.Close()
		owner.Close()
	}
	c.hangUp.Store(&hangUp)
	c.work.Go(func() { defer hangUp(); c.pass(client, owner, true) })
	c.work.Go(func() { defer hangUp(); c.pass(owner, client, false) })
}

// pass forwards data from src until its end or the cut.
func (c *cutter) pass(src, dst *net.UnixConn, toOwner bool) {
	buf, control := make([]byte, 4096), make([]byte, 4096)
	seen, way := 0, 0
	if toOwner {
		way = 1
	}
	for {
		room := len(buf)
		if c.after >= 0 && toOwner == c.toOwner {
			if room = min(room, c.after-seen); room == 0 {
				return
			}
		}
		n, controlBytes, _, _, err := src.ReadMsgUnix(buf[:room], control)
		if err != nil || n == 0 {
			return
		}
		seen += n
		c.passed[way] = append(c.passed[way], buf[:n]...)
		_, _, err = dst.WriteMsgUnix(buf[:n], control[:controlBytes], nil)
		closeRights(control[:controlBytes])
		if err != nil {
			return
		}
	}
}

// closeRights closes the descriptors in control data.
func closeRights(control []byte) {
	messages, _ := syscall.ParseSocketControlMessage(control)
	for _, m := range messages {
		fds, _ := syscall.ParseUnixRights(&m)
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}
}

func (c *cutter) close() {
	c.listener.Close()
	c.work.Wait()
}

// cutOwner returns an owner with everything that a conversation uses.
func cutOwner(t *testing.T) (*endpoint.Server, driver.Device, *loadCounts) {
	dev := fixture.Device(t)
	counts := new(loadCounts)
	r := loadRegistry(counts)
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, n int) (*tensor.Tensor, error) {
		return tensor.FromSlice(dev, tensor.Shape{1}, []float32{float32(n)})
	}, endpoint.Managed()))
	require.NoError(t, endpoint.RegisterStream(r, "items", func(_ context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			for i := range n {
				if !yield(tensor.FromSlice(dev, tensor.Shape{1}, []float32{float32(i)})) {
					return
				}
			}
		}
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard()})
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 3, Bytes: 1 << 14})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)
	return s, dev, counts
}

// conversation makes one request of each kind.
func conversation(ctx context.Context, socket string, dev driver.Device, counts *loadCounts) error {
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Logger: fixture.Discard()})
	if err != nil {
		return err
	}
	defer c.Close()
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	defer h.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{1, 2})
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := endpoint.Call[*tensor.Tensor](ctx, c, "same", x)
	if err != nil {
		return err
	}
	y.Close()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 1 << 13})
	if err != nil {
		return err
	}
	defer sd.Close()
	if _, err := c.Publish(ctx, "published", sd, endpoint.PublishOptions{}); err != nil {
		return err
	}
	for item, err := range endpoint.Stream[*tensor.Tensor](ctx, c, "items", 20) {
		if err != nil {
			return err
		}
		item.Close()
	}
	if err := errors.Join(converseOfObjects(ctx, c), converseOfTasks(ctx, c), cancelled(ctx, c, counts)); err != nil {
		return err
	}
	// Refused: the error of a cancelled call may arrive after the client has left.
	if err := c.Call(ctx, "no such endpoint", nil, nil); !errors.Is(err, endpoint.ErrNoEndpoint) {
		return err
	}
	_, err = c.Ping(ctx)
	return err
}

// converseOfObjects releases one managed object and receives the end of another.
func converseOfObjects(ctx context.Context, c *endpoint.Client) error {
	kept, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "object", 1)
	if err != nil {
		return err
	}
	defer kept.Close()
	lost, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "object", 2)
	if err != nil {
		return err
	}
	defer lost.Close()
	if _, err := lost.Info(ctx); err != nil {
		return err
	}
	if _, err := c.Destroy(ctx, lost.ID()); err != nil {
		return err
	}
	select {
	case <-lost.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err = kept.Release(ctx)
	return err
}

// converseOfTasks submits a task, waits for it and fetches its result, which has no memory and outlives the connection.
func converseOfTasks(ctx context.Context, c *endpoint.Client) error {
	submitted, err := c.Submit(ctx, "next", 3)
	if err != nil {
		return err
	}
	if _, err := submitted.Wait(ctx); err != nil {
		return err
	}
	return submitted.Result(ctx, nil)
}

// cancelled cancels a call while its function runs.
func cancelled(ctx context.Context, c *endpoint.Client, counts *loadCounts) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	before := counts.started.Load()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		for counts.started.Load() == before && inner.Err() == nil {
			time.Sleep(fixture.Tick / 10)
		}
		cancel()
	})
	err := c.Call(inner, "wait", false, nil)
	cancel()
	if errors.Is(err, context.Canceled) {
		return ctx.Err()
	}
	return err
}

// A conversation is cut at every boundary of its frames and around it, in both directions; with the full counts at
// every byte.
func TestSessionCutAnywhere(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	s, dev, counts := cutOwner(t)
	dir := proctest.SocketPath(t)
	number := 0
	run := func(toOwner bool, after int) (*cutter, error) {
		number++
		c := startCutter(t, fmt.Sprintf("%s%d", dir, number), s.Socket(), toOwner, after)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() { // after the cut there is no event to wait for
			select {
			case <-c.cut:
				cancel()
			case <-ended:
			}
		})
		err := conversation(ctx, c.socket, dev, counts)
		close(ended)
		watching.Wait()
		c.close()
		if err := s.Withdraw(context.Background(), "published"); err != nil {
			require.ErrorIs(t, err, endpoint.ErrNotFound)
		}
		return c, err
	}
	whole, err := run(true, -1)
	require.NoError(t, err)
	require.Subset(t, kindsOf(whole.passed[1]), []wire.Kind{wire.KindHello, wire.KindRequest, wire.KindCancel, wire.KindGoodbye})
	require.Subset(t, kindsOf(whole.passed[0]), []wire.Kind{wire.KindHello, wire.KindResponse, wire.KindError, wire.KindEvent})

	before := drivertest.TakeSnapshot()
	for _, toOwner := range []bool{true, false} {
		stream := whole.passed[0]
		if toOwner {
			stream = whole.passed[1]
		}
		cuts := cutsOf(t, stream)
		if fixture.Count(t, 0, len(stream)) > 0 {
			cuts = cuts[:0]
			for i := range stream {
				cuts = append(cuts, i)
			}
		}
		for _, at := range cuts {
			_, err := run(toOwner, at)
			if err != nil && !errors.Is(err, context.Canceled) {
				require.ErrorIs(t, err, endpoint.ErrUnavailable, "cut after byte %d of %d, to the owner: %v", at, len(stream), toOwner)
			}
		}
		t.Logf("%d cuts of %d bytes, to the owner: %v", len(cuts), len(stream), toOwner)
	}
	require.Empty(t, before.WaitNone(fixture.WaitLimit))
	require.Len(t, fixture.ListOf(s), 1)
	require.Empty(t, fixture.ListOf(s)[0].Versions[0].Holders)
}

// kindsOf returns the kinds of the frames in a stream.
func kindsOf(stream []byte) []wire.Kind {
	var kinds []wire.Kind
	for at := 0; at < len(stream); at += wire.HeaderBytes + int(binary.BigEndian.Uint32(stream[at:])) {
		kinds = append(kinds, wire.Kind(binary.BigEndian.Uint16(stream[at+4:])))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// cutsOf returns the boundaries of the frames in a stream, and one place in each header and body.
func cutsOf(t testing.TB, stream []byte) []int {
	var cuts []int
	for at := 0; at < len(stream); {
		require.GreaterOrEqual(t, len(stream)-at, wire.HeaderBytes)
		end := at + wire.HeaderBytes + int(binary.BigEndian.Uint32(stream[at:]))
		cuts = append(cuts, at, at+1, at+wire.HeaderBytes, end-1)
		at = end
	}
	slices.Sort(cuts)
	return slices.Compact(cuts)
}

// Many calls wait when the owner's process is killed.
func TestServerKilledDuringCalls(t *testing.T) {
	drivertest.Leaks(t)
	o, c := loadOwner(t)
	other, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: c.Socket()})
	require.NoError(t, err)
	defer other.Close()
	const n = 200
	failures := make(chan error, n)
	for range n {
		go func() { failures <- other.Call(context.Background(), "wait", false, nil) }()
	}
	proctest.Eventually(t, fixture.WaitLimit, "all of them wait", func() bool { return statsOf(t, c).Started == n })
	start := time.Now()
	o.Kill()
	for range n {
		require.ErrorIs(t, <-failures, endpoint.ErrUnavailable)
	}
	require.Less(t, time.Since(start), fixture.Promptly)
}
