package modelwire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// Reusable memory is copied instead of sent as a file: the kernel can send pages after the file is closed, when the
// publisher may have overwritten them.
func TestReusableMemoryIsCopied(t *testing.T) {
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	pool := host.NewPool(dev, host.PoolOptions{Idle: time.Hour})
	defer pool.Close()
	plain, err := dev.Alloc(1 << 20)
	require.NoError(t, err)
	defer plain.Close()
	file := openMemory(plain)
	require.NotNil(t, file)
	require.NoError(t, file.Close())
	drivertest.Needs(t, "leases", pool.Reuses() == nil, "the kernel does not say whether others have memory")
	used, err := pool.Alloc(1 << 20)
	require.NoError(t, err)
	defer used.Close()
	require.Nil(t, openMemory(used))
}
