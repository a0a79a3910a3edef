package message

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// shake runs both sides of a handshake.
func shake(t *testing.T, client, server Hello, check func(*Hello) error) (c, s *Agreement, clientErr, serverErr error) {
	t.Helper()
	a, b := openPipe(t, wire.Limits{})
	var wg sync.WaitGroup
	wg.Go(func() { s, serverErr = ServerHandshake(b, server, check) })
	c, clientErr = ClientHandshake(a, client)
	if clientErr != nil {
		a.Close()
	}
	wg.Wait()
	return c, s, clientErr, serverErr
}

func TestHandshake(t *testing.T) {
	checkDescriptors(t)
	client := Hello{Features: []string{"watch", "a", "z"}, Label: "client"}
	server := Hello{Features: []string{"z", "watch", "b"}, Server: "id", Devices: []DeviceInfo{{UUID: uuid(1), Type: 1}}}
	c, s, err, serverErr := shake(t, client, server, func(h *Hello) error {
		require.Equal(t, "client", h.Label)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, serverErr)
	require.Equal(t, []string{"watch", "z"}, c.Features)
	require.Equal(t, c.Features, s.Features)
	require.True(t, c.Has("z"))
	require.False(t, c.Has("a"))
	require.Equal(t, Protocol, c.Protocol)
	require.Equal(t, "id", c.Peer.Server)
	require.Equal(t, server.Devices, c.Peer.Devices)
	require.Equal(t, "client", s.Peer.Label)
	require.Equal(t, []string{"watch", "a", "z"}, client.Features, "the caller's slice stays as it is")
}

func TestHandshakeVersions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		client, server [2]uint32 // oldest, newest
		want           uint32    // 0: none
	}{
		{[2]uint32{1, 1}, [2]uint32{1, 1}, 1},
		{[2]uint32{1, 3}, [2]uint32{2, 2}, 2},
		{[2]uint32{1, 2}, [2]uint32{1, 5}, 2},
		{[2]uint32{1, 1}, [2]uint32{2, 3}, 0},
		{[2]uint32{4, 5}, [2]uint32{2, 3}, 0},
	} {
		c, s, err, serverErr := shake(t, Hello{Oldest: tt.client[0], Protocol: tt.client[1]}, Hello{Oldest: tt.server[0], Protocol: tt.server[1]}, nil)
		if tt.want == 0 {
			require.ErrorIs(t, err, CodeProtocol)
			require.ErrorContains(t, err, "speaks versions")
			require.ErrorIs(t, serverErr, wire.ErrProtocol)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, serverErr)
		require.Equal(t, tt.want, c.Protocol)
		require.Equal(t, tt.want, s.Protocol)
	}
}

func TestHandshakeRefusal(t *testing.T) {
	t.Parallel()
	denied := errors.New("users other than the owner are not served")
	_, _, err, serverErr := shake(t, Hello{}, Hello{}, func(*Hello) error { return denied })
	require.ErrorIs(t, err, CodePermissionDenied)
	require.ErrorContains(t, err, denied.Error())
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "permission", e.Type)
	require.ErrorIs(t, serverErr, denied)

	_, _, err, _ = shake(t, Hello{}, Hello{}, func(*Hello) error { return &Error{Code: CodeUnavailable, Message: "stopping"} })
	require.ErrorIs(t, err, CodeUnavailable)
}

func TestHandshakeWithSomethingElse(t *testing.T) {
	checkDescriptors(t)
	for name, send := range map[string]func(c *wire.Conn) error{
		"request":       func(c *wire.Conn) error { return c.Send(wire.KindRequest, 1, AppendRequest(nil, Request{Op: OpPing})) },
		"hello with id": func(c *wire.Conn) error { return c.Send(wire.KindHello, 1, encoded(t, Hello{Protocol: 1, Oldest: 1})) },
		"empty hello":   func(c *wire.Conn) error { return c.Send(wire.KindHello, 0, nil) },
		"goodbye":       func(c *wire.Conn) error { return c.Send(wire.KindGoodbye, 0, nil) },
		"bad hello":     func(c *wire.Conn) error { return c.Send(wire.KindHello, 0, []byte{0x80}) },
		"versions":      func(c *wire.Conn) error { return c.Send(wire.KindHello, 0, encoded(t, Hello{Protocol: 1, Oldest: 2})) },
		"large": func(c *wire.Conn) error {
			return c.Send(wire.KindHello, 0, encoded(t, Hello{Protocol: 1, Oldest: 1, Label: strings.Repeat("l", wire.MaxHello)}))
		},
		"with descriptor": func(c *wire.Conn) error { return c.Send(wire.KindHello, 0, nil, numberedFiles(t, 1)...) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := openPipe(t, wire.Limits{})
			require.NoError(t, send(a))
			_, err := ServerHandshake(b, Hello{}, nil)
			require.Error(t, err)
			f, err := a.Receive()
			require.NoError(t, err, "the client is told")
			require.Equal(t, wire.KindError, f.Kind)
			var e Error
			require.NoError(t, Unmarshal(f.Body, &e))
			require.Equal(t, CodeProtocol, e.Code)
			require.Equal(t, "protocol", e.Type)
		})
	}
}

func TestHandshakeWithAServerThatStops(t *testing.T) {
	t.Parallel()
	a, b := openPipe(t, wire.Limits{})
	require.NoError(t, b.Send(wire.KindGoodbye, 0, nil))
	_, err := ClientHandshake(a, Hello{})
	require.ErrorIs(t, err, CodeUnavailable)
	require.NotErrorIs(t, err, wire.ErrProtocol)
}

func TestHandshakeWithNobody(t *testing.T) {
	t.Parallel()
	a, b := openPipe(t, wire.Limits{HandshakeTimeout: time.Millisecond})
	_, err := ServerHandshake(a, Hello{}, nil)
	require.ErrorIs(t, err, wire.ErrTimeout)
	b.Close()
	_, err = ServerHandshake(a, Hello{}, nil)
	require.ErrorIs(t, err, io.EOF)
}
