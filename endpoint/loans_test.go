package endpoint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestLentStoragesHaveNamesWhileTheyAreLent(t *testing.T) {
	drivertest.Leaks(t)
	dev, err := host.Open()
	drivertest.Needs(t, "memfd", !errors.Is(err, errors.ErrUnsupported), "there is no host memory to share here")
	require.NoError(t, err)
	defer dev.Close()
	mem, err := dev.Alloc(8)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()

	var l loans
	require.Empty(t, l.name(s))
	require.Nil(t, l.borrow(""))
	l.writing("nothing") // which nobody lent
	l.add(s)
	name := l.name(s)
	require.NotEmpty(t, name)
	l.add(s)
	require.Equal(t, name, l.name(s), "one storage has one name")
	l.remove(s)
	require.Equal(t, name, l.name(s), "a second result still has it")

	again := l.borrow(name)
	require.NotNil(t, again)
	require.NotSame(t, s, again)
	require.False(t, again.Memory().Writable())
	require.NoError(t, again.Close())

	l.writing(name)
	require.Empty(t, l.name(s), "its bytes may change")
	require.Nil(t, l.borrow(name))
	l.remove(s)
	require.Empty(t, l.byName)
	require.Empty(t, l.of)
	l.add(s)
	require.NotEqual(t, name, l.name(s))
	l.remove(s)
}
