package stream

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// specified is a stream with a tensor.
type specified struct{ ctx context.Context }

func (s specified) RecvMsg(m any) error {
	chunk, _ := m.(*bulk.Message).Head.(*streampb.Chunk)
	if chunk == nil {
		return context.Canceled
	}
	chunk.Credit = 1
	return nil
}

// A panic while a message is processed ends the call with an internal error, for readers and for senders that wait for
// credit.
func TestPanicsOfReceiversEndTheirCalls(t *testing.T) {
	granted := newCredit()
	in := newIncoming(t.Context(), Limits{}.withDefaults(), nil, nil, false, granted, func(uint64) error { return nil })
	in.granted = nil // adding a message panics
	chunks := bulk.NewPump(t.Context(), specified{t.Context()}, newChunk, dataField)
	contain.Go(func() { in.run(chunks) }, func(err error) { in.granted = granted; in.end(err) })
	_, err := in.next(t.Context())
	require.ErrorIs(t, err, contain.ErrPanic)
}
