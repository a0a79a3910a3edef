package modelwire_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

var (
	alice = rights.Identity{Method: rights.MethodToken, Name: "alice"}
	bob   = rights.Identity{Method: rights.MethodToken, Name: "bob"}
)

// transfers returns a store whose memory and budget are empty after the test.
func transfers(t *testing.T, interrupted int) *modelwire.Transfers[int] {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	pool := admission.NewPool(admission.Limits{Bytes: 1 << 30})
	ts := modelwire.NewTransfers[int](modelwire.TransfersOptions{Device: dev, Pool: pool, Interrupted: interrupted, ResumeFor: time.Hour, OutcomesFor: time.Hour})
	t.Cleanup(func() {
		require.NoError(t, ts.Close())
		require.Zero(t, pool.Used())
		require.NoError(t, dev.Close())
	})
	return ts
}

func describe(t *testing.T, bytes int64) *modelwire.Manifest {
	t.Helper()
	m, err := modelwire.NewManifest([]module.NamedSpec{{Name: "w", DType: tensor.Uint8, Shape: tensor.Shape{bytes}}}, nil, modelwire.Limits{})
	require.NoError(t, err)
	return m
}

// piece returns the bytes of data from begin to end.
func piece(data []byte, begin, end int) *modelwire.Piece {
	return &modelwire.Piece{
		Position: modelwire.Position{Offset: int64(begin), CRC32C: modelwire.Checksum(0, data[:end])}, Data: [][]byte{data[begin:end]},
	}
}

// An interrupted transfer is resumed, its set is delivered once, and a repetition receives the outcome if its bytes are
// equal.
func TestTransferResumesAndRepeats(t *testing.T) {
	t.Parallel()
	ts, data := transfers(t, 8), random(1000, 1)
	first, err := ts.Begin(alice, "x", describe(t, 1000))
	require.NoError(t, err)
	require.Empty(t, first.Resume)
	require.NoError(t, first.Transfer.Write(first.Writer, piece(data, 0, 400)))
	require.ErrorIs(t, first.Transfer.Write(first.Writer, piece(data, 500, 600)), modelwire.ErrInvalid, "a gap")
	damaged := piece(data, 400, 500)
	damaged.CRC32C++
	require.ErrorIs(t, first.Transfer.Write(first.Writer, damaged), modelwire.ErrChecksum)
	ts.Leave(first.Transfer)

	_, err = ts.Begin(alice, "x", describe(t, 999))
	require.ErrorIs(t, err, modelwire.ErrInvalid, "the id belongs to another set")
	other, err := ts.Begin(bob, "x", describe(t, 999))
	require.NoError(t, err, "ids of clients are separate")
	ts.Leave(other.Transfer)

	second, err := ts.Begin(alice, "x", describe(t, 1000))
	require.NoError(t, err)
	require.Equal(t, []modelwire.Position{{Offset: 400, CRC32C: modelwire.Checksum(0, data[:400])}}, second.Resume)
	require.ErrorIs(t, first.Transfer.Write(first.Writer, piece(data, 400, 500)), modelwire.ErrTakenOver)
	require.ErrorIs(t, second.Transfer.Missing(), modelwire.ErrIncomplete)
	require.NoError(t, second.Transfer.Write(second.Writer, piece(data, 400, 1000)))
	require.NoError(t, second.Transfer.Missing())
	got, err := ts.Deliver(second.Transfer, second.Writer, func(sd *module.StateDict) (int, error) {
		busy, err := ts.Begin(alice, "x", describe(t, 1000))
		require.NoError(t, err)
		require.NotNil(t, busy.Busy, "it is being delivered")
		w, _ := sd.Get("w")
		values, err := tensor.RawData(w)
		require.NoError(t, err)
		require.Equal(t, data, values)
		return 7, sd.Close()
	})
	require.NoError(t, err)
	require.Equal(t, 7, got)

	again, err := ts.Begin(alice, "x", describe(t, 1000))
	require.NoError(t, err)
	require.EqualValues(t, 1000, again.Repeat.Resume[0].Offset, "no bytes are needed")
	got, err = again.Repeat.Result()
	require.NoError(t, err)
	require.Equal(t, 7, got)
	require.NoError(t, again.Repeat.Write(piece(data, 0, 1000)))
	require.ErrorIs(t, again.Repeat.Write(piece(random(1000, 2), 0, 1000)), modelwire.ErrInvalid)
	_, err = ts.Begin(alice, "x", describe(t, 1001))
	require.ErrorIs(t, err, modelwire.ErrInvalid)
}

// A set that the receiver refuses leaves no outcome, and transfers over the limit of interrupted ones are abandoned.
func TestTransferEnds(t *testing.T) {
	t.Parallel()
	ts, data := transfers(t, 2), random(10, 1)
	b, err := ts.Begin(alice, "x", describe(t, 10))
	require.NoError(t, err)
	require.NoError(t, b.Transfer.Write(b.Writer, piece(data, 0, 10)))
	refused := errors.New("refused")
	_, err = ts.Deliver(b.Transfer, b.Writer, func(sd *module.StateDict) (int, error) { return 0, errors.Join(refused, sd.Close()) })
	require.ErrorIs(t, err, refused)
	for i := range 3 {
		b, err := ts.Begin(alice, fmt.Sprint(i), describe(t, 10))
		require.NoError(t, err)
		require.NoError(t, b.Transfer.Write(b.Writer, piece(data, 0, 5)))
		ts.Leave(b.Transfer)
	}
	for i, resumed := range []int{0, 1, 1} {
		b, err := ts.Begin(alice, fmt.Sprint(i), describe(t, 10))
		require.NoError(t, err)
		require.Len(t, b.Resume, resumed)
		defer ts.Leave(b.Transfer)
	}
	unnamed, err := ts.Begin(alice, "", describe(t, 10))
	require.NoError(t, err)
	require.NoError(t, unnamed.Transfer.Write(unnamed.Writer, piece(data, 0, 5)))
	ts.Leave(unnamed.Transfer)
	unnamed, err = ts.Begin(alice, "", describe(t, 10))
	require.NoError(t, err)
	require.Empty(t, unnamed.Resume)
	ts.Leave(unnamed.Transfer)
}
