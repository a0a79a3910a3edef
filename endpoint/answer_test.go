package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
)

// TestWhatAnAnswerHandsOutComesBackIfItIsNotSent answers requests to a client that cannot be told.
func TestWhatAnAnswerHandsOutComesBackIfItIsNotSent(t *testing.T) {
	drivertest.Leaks(t)
	dev := hostDevice(t)
	r := NewRegistry()
	require.NoError(t, Register(r, "object", func(context.Context, struct{}) (int, error) { return 7, nil }, Managed()))
	s, err := newOwner(ServerOptions{Devices: []driver.Device{dev}, Registry: r, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 1, Bytes: 1})
	require.NoError(t, err)
	_, err = s.Publish(context.Background(), "m", sd)
	require.NoError(t, err)
	ours, theirs, err := wire.Pipe(wire.Limits{})
	require.NoError(t, err)
	defer ours.Close()
	defer theirs.Close()
	ses := newSession(s, ours, 9)
	ref, err := CallManaged[int](context.Background(), s, "object", nil)
	require.NoError(t, err)

	for _, failure := range []error{wire.ErrTooLarge, net.ErrClosed} {
		send := func(wire.Kind, uint64, []byte, ...*os.File) error { return failure }
		for i, c := range []struct {
			op   wire.Op
			body any
		}{
			{wire.OpAcquire, wire.Acquire{Name: "m"}},
			{wire.OpWatch, wire.Watch{Names: []string{"m"}}},
			{wire.OpObjectRefer, wire.Object{ID: ref.ID()}},
			{wire.OpCall, wire.Call{Endpoint: "object"}},
		} {
			body, err := wire.MarshalPayload(c.body)
			require.NoError(t, err)
			req := request{session: ses, id: uint64(i + 1), body: body}
			out, err := operations[c.op].perform(context.Background(), req)
			require.NoError(t, err, c.op)
			require.NotNil(t, out.undo, c.op)
			err = ses.answer(req.id, out, nil, send)
			require.Equal(t, errors.Is(failure, wire.ErrTooLarge), err == nil, "the session goes on where the client can be told why")

			require.Empty(t, s.List()[0].Versions[0].Holders, c.op)
			require.Empty(t, ses.events.subs, c.op)
			require.Empty(t, ses.leases, c.op)
			info, err := s.ObjectInfo(context.Background(), ref.ID())
			require.NoError(t, err)
			require.EqualValues(t, 1, info.Refs, c.op)
		}
	}
	require.NoError(t, ref.Close())
}
