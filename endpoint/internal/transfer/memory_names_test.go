package transfer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestMemoryNamesUntilRemoved(t *testing.T) {
	drivertest.Leaks(t)
	dev, err := host.Open()
	drivertest.Needs(t, "memfd", !errors.Is(err, errors.ErrUnsupported), "there is no host memory to share here")
	require.NoError(t, err)
	defer dev.Close()
	mem, err := dev.Alloc(8)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()

	var l MemoryNames
	require.Empty(t, l.Name(s))
	require.Nil(t, l.Borrow(""))
	l.Invalidate("nothing") // an unknown name
	l.Add(s)
	name := l.Name(s)
	require.NotEmpty(t, name)
	l.Add(s)
	require.Equal(t, name, l.Name(s), "one storage has one name")
	l.Remove(s)
	require.Equal(t, name, l.Name(s), "a second result still has it")

	again := l.Borrow(name)
	require.NotNil(t, again)
	require.NotSame(t, s, again)
	require.False(t, again.Memory().Writable())
	require.NoError(t, again.Close())

	l.Invalidate(name)
	require.Empty(t, l.Name(s), "its bytes may change")
	require.Nil(t, l.Borrow(name))
	l.Remove(s)
	require.Empty(t, l.byName)
	require.Empty(t, l.byStorage)
	l.Add(s)
	require.NotEqual(t, name, l.Name(s))
	l.Remove(s)
}
