package server_test

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// cutTime is the time after which a new policy has ended every forbidden client, with room for a busy machine.
const cutTime = time.Second

func rules(mine access.Rule) *access.Policy {
	mine.UIDs = []uint32{uint32(os.Geteuid())}
	return &access.Policy{Rules: []access.Rule{mine}, RestrictOwner: true}
}

var nobodyElse = &access.Policy{Rules: []access.Rule{{UIDs: []uint32{4242}, List: []string{"*"}}}, RestrictOwner: true}

// A client that connects at the moment of a new policy is refused or ended like the others: none is missed between its
// admission and its registration.
func TestNewPolicyBesideConnections(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	for range 2 {
		s := fixture.Serve(t, endpoint.ServerOptions{Policy: rules(access.Rule{List: []string{"*"}})})
		ctx, stop := context.WithCancel(t.Context())
		var forbidden atomic.Int64 // when the policy is in force for everybody, in nanoseconds
		var dialled, late atomic.Int64
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for ctx.Err() == nil {
					c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
					if err != nil {
						continue
					}
					dialled.Add(1)
					work.Go(func() {
						defer c.Close()
						for ctx.Err() == nil {
							asked := time.Now().UnixNano()
							_, err := c.List(ctx)
							if end := forbidden.Load(); err == nil && end > 0 && asked > end {
								late.Add(1)
								return
							}
							if err != nil {
								return
							}
							time.Sleep(20 * time.Millisecond)
						}
					})
				}
			})
		}
		require.Eventually(t, func() bool { return dialled.Load() > 20 }, 10*time.Second, time.Millisecond)
		require.NoError(t, s.SetPolicy(nobodyElse))
		time.Sleep(cutTime)
		forbidden.Store(time.Now().UnixNano())
		time.Sleep(100 * time.Millisecond)
		stop()
		work.Wait()
		require.Zero(t, late.Load(), "clients that were served after the new policy")
		info, err := s.ServerInfo(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.Stats.Clients, "sessions remain")
	}
}

// An offer at the moment of a policy that forbids it does not stay.
func TestNewPolicyBesideOffers(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	allowed, callers := rules(access.Rule{Offer: []string{"*"}, Call: []string{"*"}, Info: true}), rules(access.Rule{Call: []string{"*"}, Info: true})
	s := fixture.Serve(t, endpoint.ServerOptions{Policy: allowed})
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "offered", func(context.Context, struct{}) (int, error) { return 1, nil }))
	for range 2 {
		require.NoError(t, s.SetPolicy(allowed))
		ctx, stop := context.WithCancel(t.Context())
		var offers atomic.Int64
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				for ctx.Err() == nil {
					c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
					if err != nil {
						continue
					}
					if _, err := c.Offer(ctx, r, endpoint.OfferOptions{}); err == nil {
						offers.Add(1)
						select {
						case <-ctx.Done():
						case <-time.After(3 * time.Millisecond):
						}
					}
					_ = c.Close()
				}
			})
		}
		require.Eventually(t, func() bool { return offers.Load() > 5 }, 10*time.Second, time.Millisecond)
		require.NoError(t, s.SetPolicy(callers))
		time.Sleep(cutTime)
		endpoints, err := s.Endpoints(t.Context())
		require.NoError(t, err)
		require.Empty(t, endpoints, "an endpoint that nobody may offer")
		stop()
		work.Wait()
	}
}

// A forbidden client receives no events of its watches, also of names that it has leased.
func TestNewPolicyEndsEvents(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	s := fixture.Serve(t, endpoint.ServerOptions{Policy: rules(access.Rule{List: []string{"*"}, Acquire: []string{"*"}})})
	publishAs(t, s, "m")
	c := fixture.SocketClient(t, s)
	h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	w, err := c.Watch(t.Context(), "m")
	require.NoError(t, err)
	defer w.Close()
	ctx, stop := context.WithCancel(t.Context())
	var versions atomic.Uint64 // the newest version of which an event told
	var work sync.WaitGroup
	work.Go(func() {
		for e, err := range w.Events(ctx) {
			if err != nil {
				return
			}
			versions.Store(max(versions.Load(), e.Version))
		}
	})
	publishAs(t, s, "m")
	require.Eventually(t, func() bool { return versions.Load() == 2 && h.State() == endpoint.Superseded }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.SetPolicy(nobodyElse))
	time.Sleep(cutTime)
	publishAs(t, s, "m")
	require.NoError(t, s.Withdraw(t.Context(), "m"))
	time.Sleep(100 * time.Millisecond)
	stop()
	work.Wait()
	require.EqualValues(t, 2, versions.Load())
	require.Equal(t, endpoint.Superseded, h.State(), "no event of the withdrawal")
}
