package bulk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// broken is a stream whose codec panics.
type broken struct{}

func (broken) RecvMsg(any) error { panic("decode") }

// A panic while a message is received is the error of the stream.
func TestPanicsOfPumpsEndTheirStreams(t *testing.T) {
	p := NewPump(t.Context(), broken{}, func() *emptypb.Empty { return new(emptypb.Empty) }, 1)
	_, _, err := p.Next(time.Minute)
	require.ErrorIs(t, err, contain.ErrPanic)
}
