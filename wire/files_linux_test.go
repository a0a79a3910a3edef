package wire

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFiles(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{})
	require.NoError(t, a.Send(KindRequest, 1, item(10), memfds(t, 3)...))
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, 3, f.Files.Len())
	require.Nil(t, f.Files.Take(-1))
	require.Nil(t, f.Files.Take(3))
	file := f.Files.Take(1)
	require.NotNil(t, file)
	require.Nil(t, f.Files.Take(1), "taken before")
	require.Zero(t, f.Files.Size(1), "taken")
	require.Zero(t, f.Files.Size(-1))
	require.Zero(t, f.Files.Size(3))
	again := memfds(t, 1)
	require.NoError(t, again[0].Truncate(12345))
	require.NoError(t, a.Send(KindRequest, 2, item(10), again...))
	second, err := b.Receive()
	require.NoError(t, err)
	require.EqualValues(t, 12345, second.Files.Size(0))
	require.NoError(t, second.Files.Close())
	require.Zero(t, second.Files.Size(0), "closed")
	require.NoError(t, f.Files.Close())
	require.NoError(t, f.Files.Close())
	require.Nil(t, f.Files.Take(0), "closed")
	require.Equal(t, 3, f.Files.Len())
	require.NoError(t, file.Close(), "what was taken is the taker's")

	var none *Files
	require.Zero(t, none.Len())
	require.Nil(t, none.Take(0))
	require.Zero(t, none.Size(0))
	require.NoError(t, none.Close())
}

// lentItem counts its calls of Close.
type lentItem struct{ closed int }

func (l *lentItem) Close() error { l.closed++; return nil }

func TestLentFiles(t *testing.T) {
	items := []*lentItem{{}, {}}
	f := InProcessFiles([]io.Closer{items[0], items[1]})
	require.Equal(t, 2, f.Len())
	require.Nil(t, f.Take(0))
	require.Equal(t, []io.Closer{items[0], items[1]}, f.InProcess())
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Empty(t, f.InProcess())
	require.Equal(t, []*lentItem{{1}, {1}}, items)
	require.Empty(t, (*Files)(nil).InProcess())
}

// Unreachable Files that were never closed are closed by a cleanup. This is a safety net.
func TestForgottenFiles(t *testing.T) {
	a, b := pipe(t, Limits{})
	files := memfds(t, 3)
	before := descriptorCount(t)
	require.NoError(t, a.Send(KindRequest, 1, item(10), files...))
	_, err := b.Receive()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		runtime.GC()
		return descriptorCount(t) == before
	}, waitLong, waitStep)
}
