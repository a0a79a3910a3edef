//go:build unix

package proctest

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// frameLimit is the maximum time until an expected frame arrives.
const frameLimit = 30 * time.Second

// OwnerEnd is the owner's end of a connection. The test is the owner: it reads the client's frames and writes frames of
// its own, so that it can send invalid data at any time.
type OwnerEnd struct {
	*wire.Conn
	// T is the test, which fails if an expected frame does not arrive.
	T testing.TB
}

// NextFrame returns the next frame, which must arrive.
func (e *OwnerEnd) NextFrame() wire.Frame {
	e.T.Helper()
	require.NoError(e.T, e.SetReadDeadline(time.Now().Add(frameLimit)))
	frame, err := e.Receive()
	require.NoError(e.T, err)
	return frame
}

// NextRequest receives the next frame, a request of that operation, decodes its body into in unless it is nil, and
// returns its id.
func (e *OwnerEnd) NextRequest(op message.Op, in any) uint64 {
	e.T.Helper()
	frame := e.NextFrame()
	defer frame.Files.Close()
	require.Equal(e.T, wire.KindRequest, frame.Kind)
	request, err := message.ParseRequest(frame.Body)
	require.NoError(e.T, err)
	require.Equal(e.T, op, request.Op)
	if in != nil {
		require.NoError(e.T, message.UnmarshalPayload(request.Body, in))
	}
	return frame.ID
}

// SendFrame sends a frame with a message; nil for none.
func (e *OwnerEnd) SendFrame(kind wire.Kind, id uint64, body any) {
	e.T.Helper()
	var encoded []byte
	if body != nil {
		var err error
		encoded, err = message.MarshalPayload(body)
		require.NoError(e.T, err)
	}
	require.NoError(e.T, e.Send(kind, id, encoded))
}

// WaitEnd waits for the end of the connection.
func (e *OwnerEnd) WaitEnd() {
	e.T.Helper()
	require.NoError(e.T, e.SetReadDeadline(time.Now().Add(frameLimit)))
	for {
		frame, err := e.Receive()
		if err != nil {
			require.NotErrorIs(e.T, err, os.ErrDeadlineExceeded)
			return
		}
		frame.Files.Close()
	}
}
