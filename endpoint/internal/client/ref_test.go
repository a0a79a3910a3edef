package client_test

import (
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

var _ io.Closer = (*endpoint.Ref[int])(nil)

// staleFor checks the error of a reference that became stale for a reason.
func staleFor[T any](t *testing.T, ref *endpoint.Ref[T], reason endpoint.StaleReason) {
	t.Helper()
	<-ref.Done()
	var stale *endpoint.StaleError
	require.ErrorAs(t, ref.Err(), &stale)
	got := *stale
	got.Detail = "" // names the process that destroyed it, if any
	require.Equal(t, endpoint.StaleError{ObjectID: ref.ID(), ServerID: ref.ServerID(), Reason: reason}, got)
	require.ErrorIs(t, ref.Err(), endpoint.ErrStale)
	_, err := ref.Info(context.Background())
	require.ErrorIs(t, err, endpoint.ErrStale)
	released, err := ref.Release(context.Background())
	require.NoError(t, err)
	require.False(t, released)
}

func TestRefDoneWhenDestroyed(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	other := fixture.Client(t, c.Socket())
	id := other.Hold("model", "a", 4)
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer ref.Close()
	require.Equal(t, id, ref.ID())
	kept, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 5})
	require.NoError(t, err)
	defer kept.Close()

	destroy(o, id)
	staleFor(t, ref, endpoint.StaleObjectMissing)
	require.ErrorContains(t, ref.Err(), "destroyed by process")
	require.Len(t, fixture.Values(t, ref.Value()), 4, "the memory is this process's own")
	proctest.Eventually(t, fixture.WaitLimit, "the other process has heard too", func() bool {
		return other.Held("a") != nil
	})
	require.NoError(t, kept.Err())
	require.Error(t, fixture.Attempt(o, destroyOp, id))
	again, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer again.Close()
	require.NotEqual(t, id, again.ID(), "it is made anew")
}

func TestRefDoneConcurrently(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil },
		endpoint.Managed(), endpoint.NoCache()))
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	for _, through := range []endpoint.Caller{c, s} {
		for n := range 20 { // the event races with the answer of the call
			ref, err := endpoint.CallManaged[int](ctx, through, "object", n)
			require.NoError(t, err)
			var destroyed sync.WaitGroup
			destroyed.Go(func() { _, _ = s.Destroy(ctx, ref.ID()) })
			<-ref.Done()
			require.NoError(t, ref.Close())
			destroyed.Wait()
		}
	}
	info, err := s.ServerInfo(ctx)
	require.NoError(t, err)
	require.Zero(t, info.Stats.Objects)
}

func TestRefStaleAfterServerReplaced(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model task", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer ref.Close()
	o.Kill()
	next := fixture.Start(t)
	next.Serve(c.Socket())
	staleFor(t, ref, endpoint.StaleServerMismatch)
	require.Equal(t, []float32{4, 4, 4, 4}, fixture.Values(t, ref.Value()))
	_, err = c.EnsureLive(ctx, ref.ID(), ref.ServerID())
	var stale *endpoint.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, endpoint.StaleServerMismatch, stale.Reason)
}

func TestRefStaleAfterServerLeft(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ref, err := endpoint.CallManaged[*tensor.Tensor](context.Background(), c, "model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer ref.Close()
	o.Shutdown(fixture.WaitLimit)
	staleFor(t, ref, endpoint.StaleObjectMissing)
}

func TestRefEndsWithClient(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ref, err := endpoint.CallManaged[*tensor.Tensor](context.Background(), c, "model", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	<-ref.Done()
	require.ErrorIs(t, ref.Err(), endpoint.ErrClosed)
	require.Len(t, fixture.Values(t, ref.Value()), 4)
	require.NoError(t, ref.Close())
}

// relay is a proxy for connections until it cuts them. It does not forward descriptors.
type relay struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	work     sync.WaitGroup
}

func newRelay(t *testing.T, to string) (*relay, string) {
	t.Helper()
	path := proctest.SocketPath(t)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	r := &relay{listener: l}
	r.work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to)
			if err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, near, far)
			r.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				r.work.Go(func() {
					io.Copy(pair[0], pair[1])
					pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.cut()
		r.work.Wait()
	})
	return r, path
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func TestRefReconnects(t *testing.T) {
	drivertest.Leaks(t)
	_, socket := fixture.Owner(t)
	r, path := newRelay(t, socket)
	ctx := context.Background()
	direct, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	require.NoError(t, err)
	defer direct.Close()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: path})
	require.NoError(t, err)
	defer c.Close()
	kept, err := endpoint.CallManaged[int](ctx, direct, "number", fixture.ModelIn{Size: 7})
	require.NoError(t, err)
	defer kept.Close()
	shared, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{Size: 7})
	require.NoError(t, err)
	defer shared.Close()
	alone, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	defer alone.Close()

	r.cut()
	staleFor(t, alone, endpoint.StaleObjectMissing) // there was no other reference
	proctest.Eventually(t, fixture.WaitLimit, "the reference was taken again", func() bool {
		info, err := direct.ObjectInfo(ctx, shared.ID())
		return err == nil && info.Refs == 2
	})
	require.NoError(t, shared.Err())
	info, err := shared.Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Mine)
	released, err := shared.Release(ctx)
	require.NoError(t, err)
	require.True(t, released)
	require.NoError(t, kept.Err())
}

// breakConnections ends all connections of this process to a socket, like a fault between the two: neither end has
// closed its own.
func breakConnections(t *testing.T, socket string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	broken := 0
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		peer, err := syscall.Getpeername(fd)
		if err != nil {
			continue
		}
		if u, ok := peer.(*syscall.SockaddrUnix); ok && u.Name == socket {
			require.NoError(t, syscall.Shutdown(fd, syscall.SHUT_RDWR))
			broken++
		}
	}
	require.NotZero(t, broken)
}

// An object has memory that another process holds too.
func TestRefReconnectsWithMemory(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := fixture.ClientOfOwner(t)
	ctx := context.Background()
	other := fixture.Client(t, c.Socket())
	id := other.Hold("model", "a", 8)
	shared, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	defer shared.Close()
	require.Equal(t, id, shared.ID())
	alone, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 9})
	require.NoError(t, err)
	defer alone.Close()
	same := shared.Value()

	breakConnections(t, c.Socket())
	staleFor(t, alone, endpoint.StaleObjectMissing)
	proctest.Eventually(t, fixture.WaitLimit, "the reference was taken again", func() bool {
		info, err := c.ObjectInfo(ctx, id)
		return err == nil && info.Refs == 2 && info.Mine == 1
	})
	require.NoError(t, shared.Err())
	require.Same(t, same, shared.Value(), "the memory stayed mapped")
	require.Equal(t, []float32{8, 8, 8, 8, 8, 8, 8, 8}, fixture.Values(t, shared.Value()))
	require.Equal(t, []float32{9, 9, 9}, fixture.Values(t, alone.Value())[:3], "what is lost is the reference")

	// The owner dies and another replaces it: the reference is stale, its memory remains.
	o.Kill()
	next := fixture.Start(t)
	next.Serve(c.Socket())
	staleFor(t, shared, endpoint.StaleServerMismatch)
	require.Equal(t, []float32{8, 8, 8, 8, 8, 8, 8, 8}, fixture.Values(t, shared.Value()))
	fresh, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, "model", fixture.ModelIn{Size: 8})
	require.NoError(t, err)
	require.NotEqual(t, id, fresh.ID())
	require.NoError(t, fresh.Close())
}

func TestLimitsObjects(t *testing.T) {
	t.Parallel()
	r := endpoint.NewRegistry()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Limits: endpoint.Limits{Objects: 2}})
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.Managed()))
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	var refs []*endpoint.Ref[int]
	for n := range 2 {
		ref, err := endpoint.CallManaged[int](ctx, c, "object", n)
		require.NoError(t, err)
		refs = append(refs, ref)
	}
	_, err = endpoint.CallManaged[int](ctx, c, "object", 3)
	require.ErrorIs(t, err, endpoint.ErrLimit)
	_, err = refs[0].Release(ctx)
	require.NoError(t, err)
	for range 5 {
		require.NoError(t, c.Call(ctx, "object", 4, nil), "a call keeps no reference")
	}
}

// destroyOp has an owner destroy an object by its id.
var destroyOp = fixture.NewOp("destroy", func(w *fixture.Worker, ctx context.Context, id string) (fixture.None, error) {
	_, err := w.Server.Destroy(ctx, id)
	return fixture.None{}, err
})

// destroy has an owner destroy an object.
func destroy(c *fixture.Child, id string) {
	c.T.Helper()
	destroyOp.Must(c.Process, id)
}
