package wire

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// budgetPair returns a connection whose received descriptors are counted, and its peer.
func budgetPair(t *testing.T, b *Budget) (here, there *Conn) {
	t.Helper()
	var ends [2]*Conn
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for i, limits := range []Limits{{FileBudget: b}, {}} {
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

func used(b *Budget) int { return int(b.Use().Used) }

// The descriptors of one connection never fill the budget. A message over the limit loses its descriptors and is still
// delivered.
func TestDescriptorBudgetLeavesRoomForOthers(t *testing.T) {
	requireSameDescriptors(t)
	b := NewBudget("descriptors", 30, 0)
	greedy, sender := budgetPair(t, b)
	var held []Frame
	for i := range 3 { // 12 each: the second would leave less than half as much
		require.NoError(t, sender.Send(KindRequest, uint64(i+1), item(10), memfds(t, 12)...))
		f, err := greedy.Receive()
		require.NoError(t, err)
		held = append(held, f)
	}
	require.NoError(t, held[0].Refused)
	require.Equal(t, 12, held[0].Files.Len())
	for _, f := range held[1:] {
		require.ErrorIs(t, f.Refused, ErrBudget)
		require.Nil(t, f.Files)
		require.Equal(t, item(10), f.Body)
	}
	require.Equal(t, 12, used(b))

	other, second := budgetPair(t, b)
	require.NoError(t, second.Send(KindRequest, 1, item(10), memfds(t, 10)...))
	f, err := other.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused, "the next connection finds room")
	require.NoError(t, f.Files.Close())

	charge := held[0].Files.Hold()
	require.NoError(t, held[0].Files.Close())
	require.Equal(t, 12, used(b), "what keeps duplicates of them holds the charge")
	charge.Release()
	require.Zero(t, used(b))
	require.NoError(t, sender.Send(KindRequest, 9, item(10), memfds(t, 12)...))
	f, err = greedy.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused, "there is room again")
	require.NoError(t, f.Files.Close())
}

// Descriptors that arrive before their frame count on arrival, and are released if the connection ends before the
// frame.
func TestDescriptorBudgetCountsFilesFrames(t *testing.T) {
	requireSameDescriptors(t)
	b := NewBudget("descriptors", 600, 0)
	here, there := budgetPair(t, b)
	require.NoError(t, there.Send(KindRequest, 1, item(10), memfds(t, 300)...))
	f, err := here.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused)
	require.Equal(t, 300, used(b))
	require.NoError(t, f.Files.Close())
	require.Zero(t, used(b))

	require.NoError(t, there.Send(KindRequest, 2, item(10), memfds(t, 500)...))
	f, err = here.Receive()
	require.NoError(t, err)
	require.ErrorIs(t, f.Refused, ErrBudget)
	require.Zero(t, used(b), "a message that lost some has no use for the others")
	require.NoError(t, there.Send(KindRequest, 3, item(10)))
	f, err = here.Receive()
	require.NoError(t, err)
	require.NoError(t, f.Refused)
	require.EqualValues(t, 3, f.ID)

	limits, raw := rawPair(t, Limits{FileBudget: b})
	head := make([]byte, HeaderBytes)
	header{kind: KindFiles, files: 20, id: 7}.put(head)
	sendRaw(t, raw, head, memfds(t, 20)...)
	raw.Close()
	_, err = limits.Receive()
	require.Error(t, err)
	require.Zero(t, used(b))
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
func TestBodyBudget(t *testing.T) {
	b := NewBudget("bytes", 3<<20, 0)
	conn, raw := rawPair(t, Limits{BodyBudget: b})
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
	require.Equal(t, 2<<20, used(b))

	second := frame(2, 1<<20)
	require.ErrorIs(t, second.Refused, ErrBudget)
	require.Nil(t, second.Body)
	require.Nil(t, second.Charge)
	require.Equal(t, 2<<20, used(b))
	small := frame(3, 100)
	require.NoError(t, small.Refused)
	require.Len(t, small.Body, 100)

	first.Charge.Release()
	require.Zero(t, used(b))
	frame(4, 2<<20).Charge.Release()
	require.Zero(t, used(b))
	require.EqualValues(t, 1, b.Use().Refused)

	send(5, 2<<20, 1<<10)
	raw.Close()
	_, err := conn.Receive()
	require.Error(t, err)
	require.Zero(t, used(b), "a frame that is cut off gives back what it took")
}
