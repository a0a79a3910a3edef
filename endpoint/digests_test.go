package endpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// digestOwner returns an owner in this process and a client over its socket. It has begun to compute the digests of a
// model "other", which are held. Digests of all later versions are held too.
func digestOwner(t *testing.T) (s *endpoint.Server, c *endpoint.Client, dev driver.Device, release func()) {
	t.Helper()
	s, c, dev, begun, release := heldOwner(t)
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 9})
	require.NoError(t, err)
	defer sd.Close()
	_, err = s.Publish(t.Context(), "other", sd, endpoint.PublishOptions{Digests: true})
	require.NoError(t, err)
	<-begun
	return s, c, dev, release
}

// heldOwner returns an owner in this process whose digests are held once begun, and a client over its socket.
func heldOwner(t *testing.T) (s *endpoint.Server, c *endpoint.Client, dev driver.Device, begun <-chan struct{}, release func()) {
	t.Helper()
	dev = fixture.Device(t)
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: proctest.SocketPath(t), Devices: fixture.DriversOf(dev), Logger: fixture.Discard()})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	go s.Serve(context.Background())
	c, err = endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), OverSocket: true, Logger: fixture.Discard()})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	begun, release = endpoint.HoldDigests(s)
	return s, c, dev, begun, release
}

// publishDigested publishes the model of a seed and returns its digests.
func publishDigested(t *testing.T, c *endpoint.Client, dev driver.Device, seed uint64) (whole module.Digest, each map[string]module.Digest) {
	t.Helper()
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: seed})
	require.NoError(t, err)
	defer sd.Close()
	each, err = module.Digests(t.Context(), sd, 1)
	require.NoError(t, err)
	whole, err = module.StateDictDigest(t.Context(), sd, 1)
	require.NoError(t, err)
	_, err = c.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Digests: true})
	require.NoError(t, err)
	return whole, each
}

// later calls f on another goroutine and returns a function that waits for its result.
func later[T any](f func() (T, error)) func() (T, error) {
	type result struct {
		v   T
		err error
	}
	got := make(chan result, 1)
	go func() {
		v, err := f()
		got <- result{v, err}
	}()
	return func() (T, error) {
		select {
		case r := <-got:
			return r.v, r.err
		case <-time.After(fixture.WaitLimit):
			return *new(T), errors.New("it still waits")
		}
	}
}

// The digests of a version are available after its publication.
func TestDigestsInTheBackground(t *testing.T) {
	drivertest.Leaks(t)
	s, c, dev, release := digestOwner(t)
	ctx := t.Context()
	whole, each := publishDigested(t, c, dev, 1)
	version := func() endpoint.VersionInfo {
		info, err := c.Info(ctx, "m")
		require.NoError(t, err)
		list, err := c.List(ctx)
		require.NoError(t, err)
		require.Equal(t, info.Versions[0].DigestState, list[0].Versions[0].DigestState)
		require.Equal(t, info.Versions[0].DigestState, fixture.ListOf(s)[0].Versions[0].DigestState)
		return info.Versions[0]
	}
	require.Equal(t, endpoint.DigestPending, version().DigestState, "it is published before they are computed")
	require.Nil(t, version().Digest)
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	require.NoError(t, err, "nobody waits for digests who does not ask for them")
	require.NoError(t, h.Close())
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = c.Digests(short, "m", 0)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	asked := later(func() (endpoint.VersionDigests, error) { return c.Digests(ctx, "m", 0) })
	here := later(func() (endpoint.VersionDigests, error) { return s.Digests(ctx, "m", 1) })
	expected := later(func() (*endpoint.Handle, error) {
		return c.Acquire(ctx, "m", endpoint.AcquireOptions{Digest: whole, OwnerDigest: true})
	})
	refused := later(func() (*endpoint.Handle, error) {
		return c.Acquire(ctx, "m", endpoint.AcquireOptions{Digest: module.Digest{1}, OwnerDigest: true})
	})
	release()
	want := endpoint.VersionDigests{Version: 1, Whole: whole, Tensors: each}
	got, err := asked()
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = here()
	require.NoError(t, err)
	require.Equal(t, want, got)
	h, err = expected()
	require.NoError(t, err)
	require.NoError(t, h.Close())
	_, err = refused()
	require.ErrorIs(t, err, module.ErrDigest)
	proctest.Eventually(t, fixture.WaitLimit, "the handle of what was refused is closed", func() bool { return c.Stats().Handles == 0 })
	require.Equal(t, endpoint.DigestComputed, version().DigestState)
	require.Equal(t, &whole, version().Digest)
	text, err := json.Marshal(version())
	require.NoError(t, err)
	require.Contains(t, string(text), `"digest":"`+whole.String()+`"`)

	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 2})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)
	_, err = c.Digests(ctx, "m", 2)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.ErrorContains(t, err, "without digests")
	require.Empty(t, version().DigestState)
	second, err := fixture.Synthetic(dev, fixture.Model{Seed: 2})
	require.NoError(t, err)
	defer second.Close()
	whole, err = module.StateDictDigest(ctx, second, 1)
	require.NoError(t, err)
	h, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{Digest: whole, OwnerDigest: true})
	require.NoError(t, err, "what the owner does not compute is computed here")
	require.NoError(t, h.Close())
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{Digest: module.Digest{1}, OwnerDigest: true})
	require.ErrorIs(t, err, module.ErrDigest)
}

// awaitRequest returns when a client has a request in flight.
func awaitRequest(t *testing.T, s *endpoint.Server) {
	t.Helper()
	proctest.Eventually(t, fixture.WaitLimit, "the request is in flight", func() bool {
		info, err := s.ServerInfo(t.Context())
		require.NoError(t, err)
		return slices.ContainsFunc(info.Sessions, func(s endpoint.SessionInfo) bool { return !s.Self && s.Requests > 0 })
	})
}

// Versions and owners end while clients wait for digests.
func TestDigestsOfVersionsThatGo(t *testing.T) {
	for name, end := range map[string]struct {
		how  func(t *testing.T, s *endpoint.Server, c *endpoint.Client, dev driver.Device)
		want error
	}{
		"withdrawn": {func(t *testing.T, _ *endpoint.Server, c *endpoint.Client, _ driver.Device) {
			require.NoError(t, c.Withdraw(t.Context(), "m"))
		}, endpoint.ErrNotFound},
		"superseded": {func(t *testing.T, _ *endpoint.Server, c *endpoint.Client, dev driver.Device) {
			publishDigested(t, c, dev, 2)
		}, endpoint.ErrNotFound},
		"owner closed": {func(t *testing.T, s *endpoint.Server, _ *endpoint.Client, _ driver.Device) {
			require.NoError(t, s.Close())
		}, endpoint.ErrUnavailable},
		"owner shut down": {func(t *testing.T, s *endpoint.Server, _ *endpoint.Client, _ driver.Device) {
			require.NoError(t, s.Shutdown(t.Context()))
		}, endpoint.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			s, c, dev, release := digestOwner(t)
			publishDigested(t, c, dev, 1)
			asked := later(func() (endpoint.VersionDigests, error) { return c.Digests(t.Context(), "m", 1) })
			awaitRequest(t, s)
			end.how(t, s, c, dev)
			_, err := asked()
			require.ErrorIs(t, err, end.want)
			release()
		})
	}
	t.Run("while they are computed", func(t *testing.T) {
		drivertest.Leaks(t)
		s, c, dev, begun, release := heldOwner(t)
		publishDigested(t, c, dev, 1)
		<-begun
		asked := later(func() (endpoint.VersionDigests, error) { return c.Digests(t.Context(), "m", 1) })
		awaitRequest(t, s)
		require.NoError(t, c.Withdraw(t.Context(), "m"))
		_, err := asked()
		require.ErrorIs(t, err, endpoint.ErrNotFound)
		release()
	})
}

// The publisher is killed before its digests are computed.
func TestDigestsOutliveTheirPublisher(t *testing.T) {
	drivertest.Leaks(t)
	o, socket := fixture.Owner(t)
	before := o.Count()
	publisher := fixture.Client(t, socket)
	publisher.Publish(fixture.Model{Name: "m", Seed: 5, Bytes: 8 << 20, Digests: true})
	publisher.Kill()
	dev := fixture.Device(t)
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 5, Bytes: 8 << 20})
	require.NoError(t, err)
	defer sd.Close()
	whole, err := module.StateDictDigest(t.Context(), sd, 1)
	require.NoError(t, err)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	got, err := c.Digests(t.Context(), "m", 0)
	require.NoError(t, err)
	require.Equal(t, whole, got.Whole)
	require.NoError(t, c.Withdraw(t.Context(), "m"))
	_, err = c.Digests(t.Context(), "m", 1)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.NoError(t, c.Close())
	proctest.Eventually(t, fixture.WaitLimit, "the owner has nothing of it any more", func() bool {
		now := o.Count()
		return now.Within(before)
	})
}

// An owner of an older version computes no digests.
func TestDigestsOfAnOwnerThatComputesNone(t *testing.T) {
	t.Parallel()
	o := fixture.NewFakeOwner(t)
	c, _ := o.Connected("one")
	_, err := c.Digests(t.Context(), "m", 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	sd, err := fixture.Synthetic(fixture.Device(t), fixture.Model{Seed: 1})
	require.NoError(t, err)
	defer sd.Close()
	_, err = c.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Digests: true})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// An owner sends invalid answers.
func TestDigestsOfAHostileOwner(t *testing.T) {
	drivertest.Leaks(t)
	for name, answer := range map[string]message.Digested{
		"too short":        {Version: 3, Whole: make([]byte, 31)},
		"too long":         {Version: 3, Whole: make([]byte, 33)},
		"none":             {Version: 3},
		"another version":  {Version: 4, Whole: make([]byte, 32)},
		"too few tensors":  {Version: 3, Whole: make([]byte, 32)},
		"half a digest":    {Version: 3, Whole: make([]byte, 32), Tensors: make([]byte, 16)},
		"too many tensors": {Version: 3, Whole: make([]byte, 32), Tensors: make([]byte, 64)},
	} {
		t.Run(name, func(t *testing.T) {
			o := fixture.NewFakeOwner(t)
			dialled := o.Dial(endpoint.ClientOptions{})
			end := o.Accept()
			_, err := message.ServerHandshake(end.Conn, message.Hello{Server: "one", Features: []string{message.FeatureDigests}}, nil)
			require.NoError(t, err)
			c := <-dialled
			require.NotNil(t, c)
			defer c.Close()
			got := later(func() (endpoint.VersionDigests, error) { return c.Digests(t.Context(), "m", 3) })
			end.SendFrame(wire.KindResponse, end.NextRequest(message.OpDigests, nil), answer)
			if len(answer.Whole) == 32 && answer.Version == 3 {
				m, err := message.NewManifest([]message.Tensor{{Name: "w", DType: 12, Shape: []int64{8}}}, []message.Storage{{Bytes: 64, Type: 1}}, nil)
				require.NoError(t, err)
				model := message.ModelInfo{Name: "m", Versions: []message.VersionInfo{{Version: 3, Current: true}}}
				end.SendFrame(wire.KindResponse, end.NextRequest(message.OpInfo, nil), message.InfoResult{Model: model, Manifest: m})
			}
			_, err = got()
			require.ErrorIs(t, err, endpoint.ErrProtocol)
		})
	}
}

// The digest of a model is known from the seed from which another process created it.
func TestClientAcquireDigest(t *testing.T) {
	t.Parallel()
	one, socket := fixture.Owner(t)
	one.Publish(fixture.Model{Name: "m", Seed: 7})
	dev := fixture.Device(t)
	sd, err := fixture.Synthetic(dev, fixture.Model{Seed: 7})
	require.NoError(t, err)
	defer sd.Close()
	digest, err := module.StateDictDigest(t.Context(), sd, 0)
	require.NoError(t, err)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev)})
	require.NoError(t, err)
	defer c.Close()
	h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Digest: digest})
	require.NoError(t, err)
	require.NoError(t, h.Close())

	one.Publish(fixture.Model{Name: "m", Seed: 8})
	_, err = c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Digest: digest})
	require.ErrorIs(t, err, module.ErrDigest)
	require.ErrorContains(t, err, "version 2")
	require.Zero(t, c.Stats().Handles, "what was refused is given back")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{Digest: digest})
	require.ErrorIs(t, err, context.Canceled)
}
