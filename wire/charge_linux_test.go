package wire

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// meter is a Limits.Charge with one limit for the sum of all resources.
type meter struct {
	limit   int64
	used    atomic.Int64
	refused int
}

func (m *meter) charge(_ Resource, amount int64) error {
	if m.used.Add(amount) > m.limit && amount > 0 {
		m.used.Add(-amount)
		m.refused++
		return fmt.Errorf("%w: %d more, the limit is %d", ErrBudget, amount, m.limit)
	}
	return nil
}

func (m *meter) held() int { return int(m.used.Load()) }

// chargedPair returns a connection with a meter, and its peer.
func chargedPair(t *testing.T, m *meter) (here, there *Conn) {
	t.Helper()
	var ends [2]*Conn
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for i, limits := range []Limits{{Charge: m.charge}, {}} {
		f := os.NewFile(uintptr(pair[i]), "pair")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		f.Close()
		ends[i], err = NewConn(c.(*net.UnixConn), limits)
		require.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// A message whose descriptors are refused loses them and is still delivered. Descriptors count until the frame was
// released and its files are closed.
func TestDescriptorsCharged(t *testing.T) {
	requireSameDescriptors(t)
	m := &meter{limit: 20}
	here, there := chargedPair(t, m)
	var held []Frame
	for i := range 3 {
		require.NoError(t, there.Send(KindRequest, uint64(i+1), item(10), memfds(t, 12)...))
		f, err := here.Receive()
		require.NoError(t, err)
		held = append(held, f)
	}
	require.NoError(t, held[0].Refused)
	require.Equal(t, 12, held[0].Files.Len())
	for _, f := range held[1:] {
		require.ErrorIs(t, f.Refused, ErrBudget)
		require.Nil(t, f.Files)
		require.Nil(t, f.Release)
		require.Equal(t, item(10), f.Body)
	}
	require.Equal(t, 12, m.held())
	require.NoError(t, held[0].Files.Close())
	require.Equal(t, 12, m.held(), "the receiver may keep duplicates")
	held[0].Release()
	require.Zero(t, m.held())

	require.NoError(t, there.Send(KindRequest, 9, item(10), memfds(t, 12)...))
	f, err := here.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused, "there is room again")
	f.Release()
	require.Equal(t, 12, m.held(), "the files are open")
	require.NoError(t, f.Files.Close())
	require.Zero(t, m.held())
}

// Descriptors that arrive before their frame count on arrival, and are released if the connection ends before the
// frame.
func TestFilesFramesCharged(t *testing.T) {
	requireSameDescriptors(t)
	b := &meter{limit: 400}
	here, there := chargedPair(t, b)
	require.NoError(t, there.Send(KindRequest, 1, item(10), memfds(t, 300)...))
	f, err := here.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused)
	require.Equal(t, 300, b.held())
	require.NoError(t, f.Files.Close())
	f.Release()
	require.Zero(t, b.held())

	require.NoError(t, there.Send(KindRequest, 2, item(10), memfds(t, 500)...))
	f, err = here.Receive()
	require.NoError(t, err)
	require.ErrorIs(t, f.Refused, ErrBudget)
	require.Zero(t, b.held(), "a message that lost some has no use for the others")
	require.NoError(t, there.Send(KindRequest, 3, item(10)))
	f, err = here.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused)
	require.EqualValues(t, 3, f.ID)

	limits, raw := rawPair(t, Limits{Charge: b.charge})
	head := make([]byte, HeaderBytes)
	header{kind: KindFiles, files: 20, id: 7}.put(head)
	sendRaw(t, raw, head, memfds(t, 20)...)
	raw.Close()
	_, err = limits.Receive()
	require.Error(t, err)
	require.Zero(t, b.held())
}

// Both parts arrive as one body, whatever their sizes.
func TestSendShared(t *testing.T) {
	a, b := pipe(t, Limits{})
	for _, size := range []int{0, 1, copyBytes, 1 << 20} {
		for _, head := range []int{1, copyBytes + 1} {
			first, tail := make([]byte, head), make([]byte, size)
			first[0] = 1
			if size > 0 {
				tail[size-1] = 2
			}
			sent := make(chan error, 1)
			go func() { sent <- a.SendShared(KindResponse, 5, first, tail) }()
			f, err := b.Receive()
			require.NoError(t, err)
			require.NoError(t, <-sent)
			require.Equal(t, append(append([]byte{}, first...), tail...), f.Body)
		}
	}
	require.ErrorIs(t, a.SendShared(KindResponse, 5, make([]byte, 1), make([]byte, DefaultFrame)), ErrTooLarge)
}

// Bodies count from arrival until their receiver releases them. A body that does not fit is read and discarded, and the
// next frame is received.
func TestBodiesCharged(t *testing.T) {
	b := &meter{limit: 5 << 19}
	conn, raw := rawPair(t, Limits{Charge: b.charge})
	send := func(id uint64, announced, sent int) {
		head := make([]byte, HeaderBytes)
		header{length: uint32(announced), kind: KindRequest, id: id}.put(head)
		raw.Write(append(head, make([]byte, sent)...))
	}
	frame := func(id uint64, bytes int) Frame {
		go send(id, bytes, bytes)
		f, err := conn.Receive()
		require.NoError(t, err)
		require.Equal(t, id, f.ID)
		return f
	}
	first := frame(1, 2<<20)
	require.NoError(t, first.Refused)
	require.Len(t, first.Body, 2<<20)
	require.Equal(t, 2<<20, b.held())

	second := frame(2, 1<<20)
	require.ErrorIs(t, second.Refused, ErrBudget)
	require.Nil(t, second.Body)
	require.Nil(t, second.Release)
	require.Equal(t, 2<<20, b.held())
	small := frame(3, 100)
	require.NoError(t, small.Refused)
	require.Len(t, small.Body, 100)

	first.Release()
	require.Zero(t, b.held())
	frame(4, 2<<20).Release()
	require.Zero(t, b.held())
	require.Equal(t, 1, b.refused)

	send(5, 2<<20, 1<<10)
	raw.Close()
	_, err := conn.Receive()
	require.Error(t, err)
	require.Zero(t, b.held(), "a frame that is cut off gives back what it took")
}
