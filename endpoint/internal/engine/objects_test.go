package engine_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

func TestObjectHolders(t *testing.T) {
	drivertest.Leaks(t)
	before := time.Now()
	c, dev, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	list, err := c.Objects(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
	require.NotNil(t, list, "JSON has a list")
	one, two := fixture.Client(t, c.Socket()), fixture.Client(t, c.Socket())
	first := one.Hold("model", "a", 1024)
	one.Hold("model", "b", 1024)
	second := one.Hold("number", "c", 5)
	two.Hold("model", "a", 1024)

	list, err = c.Objects(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	o := list[0]
	require.Equal(t, first, o.ID)
	require.Equal(t, "model", o.Endpoint)
	require.NotEmpty(t, o.CacheKey)
	require.Equal(t, c.ServerID(), o.ServerID)
	require.EqualValues(t, 3, o.Refs)
	require.Zero(t, o.Mine)
	require.GreaterOrEqual(t, o.Bytes, uint64(4096))
	require.Len(t, o.Devices, 1)
	require.Equal(t, dev.Info().UUID.String(), o.Devices[0].UUID)
	require.False(t, o.CreatedAt.Before(before.Truncate(time.Millisecond)))
	require.False(t, o.LastAccessedAt.Before(o.CreatedAt.Truncate(time.Millisecond)))
	require.Equal(t, 2, o.Sessions)
	require.Len(t, o.Holders, 2)
	for i, want := range []struct {
		pid  int32
		refs uint64
	}{{one.PID(), 2}, {two.PID(), 1}} {
		h := o.Holders[i]
		require.Equal(t, want.pid, h.PID)
		require.EqualValues(t, os.Getuid(), h.UID)
		require.Equal(t, want.refs, h.Refs)
		require.Equal(t, filepath.Base(os.Args[0]), h.Label)
		require.NotZero(t, h.Session)
		require.False(t, h.Since.Before(o.CreatedAt.Truncate(time.Millisecond)))
	}
	require.Equal(t, second, list[1].ID)
	require.Empty(t, list[1].Devices)

	list, err = c.Objects(ctx, "number", "nothing")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, second, list[0].ID)
	two.Kill()
	proctest.Eventually(t, fixture.WaitLimit, "the killed process holds nothing", func() bool {
		info, err := c.ObjectInfo(ctx, first)
		return err == nil && info.Sessions == 1 && len(info.Holders) == 1 && info.Holders[0].PID == one.PID()
	})
}

func TestObjectListPages(t *testing.T) {
	t.Parallel()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, in fixture.ModelIn) (int, error) { return in.Size, nil },
		endpoint.Managed(), endpoint.CacheKey("{size}{label}")))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Label: "owner", Limits: endpoint.Limits{Wire: wire.Limits{Frame: 32 << 10}}})
	ctx := context.Background()
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	var ids []string
	long := strings.Repeat("é", 4000)
	for n := range 150 {
		ref, err := endpoint.CallManaged[int](ctx, c, "object", fixture.ModelIn{Size: n, Label: long})
		require.NoError(t, err)
		defer ref.Close()
		ids = append(ids, ref.ID())
	}
	own, err := endpoint.CallManaged[int](ctx, s, "object", fixture.ModelIn{Size: 0, Label: long})
	require.NoError(t, err)
	for name, through := range map[string]endpoint.Caller{"another process": c, "this process": s} {
		list, err := through.Objects(ctx)
		require.NoError(t, err, name)
		require.Len(t, list, len(ids), name)
		for i, o := range list {
			require.Equal(t, ids[i], o.ID)
			require.Less(t, len(o.CacheKey), 100, "not the argument, but its hash")
			require.True(t, strings.HasPrefix(o.CacheKey, "object/hash:"))
		}
		require.Len(t, list[0].Holders, 2)
		require.Equal(t, "owner", list[0].Holders[1].Label)
		require.EqualValues(t, os.Getpid(), list[0].Holders[1].PID)
	}
	require.NoError(t, own.Close())

	p := fixture.PolitePeer(t, s.Socket())
	frame, err := p.Send(message.OpObjects, message.Objects{Limit: 3})
	require.NoError(t, err)
	var got message.ObjectsListed
	require.NoError(t, message.Unmarshal(frame.Body, &got))
	require.Len(t, got.Objects, 3)
	require.NotZero(t, got.Next)
}

func TestObjectHoldersAreBounded(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: fixture.Numbers(t)})
	ctx := context.Background()
	var id string
	for range 120 {
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
		require.NoError(t, err)
		defer c.Close()
		ref, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{})
		require.NoError(t, err)
		defer ref.Close()
		id = ref.ID()
	}
	info, err := s.ObjectInfo(ctx, id)
	require.NoError(t, err)
	require.Equal(t, 120, info.Sessions)
	require.Len(t, info.Holders, 100)
	for i := range 99 {
		require.False(t, info.Holders[i+1].Since.Before(info.Holders[i].Since))
	}
}

func TestObjectDestroy(t *testing.T) {
	drivertest.Leaks(t)
	c, _, _ := fixture.ClientOfOwner(t)
	ctx := context.Background()
	other := fixture.Client(t, c.Socket())
	id := other.Hold("number", "a", 4)
	ref, err := endpoint.CallManaged[int](ctx, c, "number", fixture.ModelIn{Size: 4})
	require.NoError(t, err)
	defer ref.Close()

	by, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.Socket(), Label: "someone"})
	require.NoError(t, err)
	defer by.Close()
	was, err := by.Destroy(ctx, id)
	require.NoError(t, err)
	require.EqualValues(t, 2, was.Refs)
	require.Len(t, was.Holders, 2)
	require.Equal(t, other.PID(), was.Holders[0].PID)
	require.EqualValues(t, os.Getpid(), was.Holders[1].PID)

	<-ref.Done()
	why := fmt.Sprintf("destroyed by process %d (someone)", os.Getpid())
	var stale *endpoint.StaleError
	require.ErrorAs(t, ref.Err(), &stale)
	require.Equal(t, endpoint.StaleError{ObjectID: id, ServerID: c.ServerID(), Reason: endpoint.StaleObjectMissing, Detail: why}, *stale)
	require.ErrorContains(t, stale, why)
	require.Equal(t, 4, ref.Value())
	proctest.Eventually(t, fixture.WaitLimit, "the other process has heard why", func() bool {
		err := other.Held("a")
		return err != nil && strings.HasSuffix(err.Error(), why)
	})
	_, err = by.Destroy(ctx, id)
	require.ErrorIs(t, err, endpoint.ErrStale)
	list, err := c.Objects(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
}

// The owner's user and root may destroy objects; other admitted users may not.
func TestObjectDestroyPermission(t *testing.T) {
	t.Parallel()
	fixture.NeedsRoot(t)
	fixture.HostOnly(t, "the other user cannot read the stand-in for the driver")
	nobody := fixture.AsUser(t, 65534)
	everybody := []uint32{0, 65534}
	for _, c := range []struct {
		name      string
		owner, by []func(*exec.Cmd)
		may       bool
	}{
		{"another user", nil, []func(*exec.Cmd){nobody}, false},
		{"root", []func(*exec.Cmd){nobody}, nil, true},
		{"the owner's user", []func(*exec.Cmd){nobody}, []func(*exec.Cmd){nobody}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := filepath.Join(fixture.CopyDir(t), "s.sock")
			if c.owner == nil {
				require.NoError(t, os.Chown(filepath.Dir(socket), 0, 0))
			}
			o := fixture.Start(t, c.owner...)
			o.ServeWith(fixture.Service{Socket: socket, UIDs: everybody})
			require.NoError(t, os.Chmod(socket, 0o666))
			holder, by := fixture.Start(t, c.owner...), fixture.Start(t, c.by...)
			for _, p := range []*fixture.Child{holder, by} {
				p.DialWith(fixture.Dialing{Socket: socket, UIDs: everybody})
			}
			id := holder.Hold("number", "a", 4)
			err := fixture.Attempt(by, fixture.TakeAwayOp, id)
			if c.may {
				require.NoError(t, err)
				proctest.Eventually(t, fixture.WaitLimit, "the holder has heard", func() bool { return holder.Held("a") != nil })
				return
			}
			require.ErrorIs(t, err, endpoint.ErrPermission)
			require.ErrorContains(t, err, "owner's user and root")
			require.NoError(t, holder.Held("a"))
		})
	}
}
