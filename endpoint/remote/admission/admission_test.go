package admission_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

var (
	alice  = rights.Identity{Name: "alice", Method: rights.MethodToken}
	bob    = rights.Identity{Name: "bob", Method: rights.MethodToken}
	reader = rights.Identity{Name: "reader", Method: rights.MethodToken, ReadOnly: true}
	other  = rights.Identity{Name: "other", Method: rights.MethodToken, ReadOnly: true}
	local  = rights.Identity{Method: rights.MethodNone}
)

// No identity can charge more than its share, and closing a charge returns its bytes.
func TestPoolSharesByIdentity(t *testing.T) {
	pool := admission.NewPool(admission.Limits{Bytes: 100, ReadOnly: 10, Anonymous: 5, Setting: "--budget"})
	a := pool.Open(alice)
	require.NoError(t, a.Add(50))
	err := pool.Open(alice).Add(1)
	require.ErrorIs(t, err, admission.ErrLimit)
	require.ErrorContains(t, err, "--budget")
	require.NoError(t, pool.Open(bob).Add(30))

	r := pool.Open(reader)
	require.NoError(t, r.Add(10))
	require.ErrorIs(t, pool.Open(other).Add(1), admission.ErrLimit, "read-only identities share")
	unknown := pool.Open(rights.Identity{})
	require.NoError(t, unknown.Add(5))
	require.ErrorIs(t, pool.Open(rights.Identity{}).Add(1), admission.ErrLimit)

	a.Release(20)
	require.Equal(t, int64(75), pool.Used())
	a.Close()
	a.Close()
	a.Release(1)
	require.ErrorIs(t, a.Add(1), admission.ErrLimit)
	require.Equal(t, int64(45), pool.Used())
	require.ErrorIs(t, pool.Open(local).Add(56), admission.ErrLimit, "all clients together")
	require.NoError(t, pool.Open(local).Add(55), "one client of a gateway without identities may have all")
}

// Silence or a rate below the minimum ends a transfer. A sender at the minimum rate may continue.
func TestMeterEndsSlowSenders(t *testing.T) {
	rate := admission.Rate{Bytes: 100, Grace: 10 * time.Second}
	m := admission.NewMeter(rate)
	for range 100 {
		require.NoError(t, m.Add(100, time.Second))
	}
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = m.Add(50, time.Second)
	}
	require.ErrorIs(t, err, admission.ErrSlow)
	require.Greater(t, n, 10)
	now := time.Now()
	require.Equal(t, now.Add(3*time.Second), rate.Extend(now.Add(time.Second), now, 200))
	require.Equal(t, now.Add(rate.Grace), rate.Extend(now.Add(time.Second), now, 1<<20), "a burst earns no more than the grace")

	silent := admission.NewMeter(admission.Rate{Grace: time.Second})
	require.NoError(t, silent.Add(1, time.Hour))
	require.Equal(t, time.Second, silent.Left())
}

// Calls of unknown clients that wait neither exclude probes of their own address nor of others, and are bounded.
func TestControllerBoundsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Options{Calls: 8})
		from := func(host string) context.Context {
			return admission.WithPeer(t.Context(), &net.TCPAddr{IP: net.ParseIP(host), Port: 1})
		}
		var waiting []context.Context
		for range 1000 {
			ctx, call, err := c.Enter(from("10.0.0.1"), rights.Identity{}, nil)
			require.NoError(t, err)
			defer call.Leave()
			waiting = append(waiting, ctx)
		}
		synctest.Wait()
		running := 0
		for _, ctx := range waiting {
			if ctx.Err() == nil {
				running++
			}
		}
		require.Equal(t, 32, running)
		require.NoError(t, waiting[len(waiting)-1].Err(), "the newest runs")
		_, probe, err := c.Enter(from("10.0.0.2"), rights.Identity{}, nil)
		require.NoError(t, err)
		probe.Leave()
		probe.Leave()
		require.Zero(t, c.Running(), "known clients have their own slots")
	})
}

// Calls beyond the share of their identity are refused, and calls of a revoked identity end.
func TestControllerBoundsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Options{Calls: 8})
		run, stop := context.WithCancel(t.Context())
		defer stop()
		go c.Run(run)

		var revoked atomic.Bool
		valid := func() bool { return !revoked.Load() }
		var first context.Context
		for range 4 {
			ctx, call, err := c.Enter(t.Context(), alice, valid)
			require.NoError(t, err)
			defer call.Leave()
			require.Equal(t, alice, rights.IdentityFrom(ctx))
			first = ctx
		}
		_, _, err := c.Enter(t.Context(), alice, valid)
		require.ErrorIs(t, err, admission.ErrLimit)
		_, call, err := c.Enter(t.Context(), bob, nil)
		require.NoError(t, err)
		defer call.Leave()
		require.Equal(t, int64(5), c.Running())

		time.Sleep(5 * time.Second)
		require.NoError(t, first.Err())
		revoked.Store(true)
		<-first.Done()
		require.ErrorIs(t, context.Cause(first), admission.ErrRevoked)
	})
}
