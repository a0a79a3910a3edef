package module_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// TestEmpty makes state dicts of memory that another one left: its tensors may show that, what no tensor has
// must not, because readers of a publication get all of the memory.
func TestEmpty(t *testing.T) {
	drivertest.Leaks(t)
	pool := host.NewPool(openHost(t).(*host.Device), host.PoolOptions{Idle: time.Hour})
	defer pool.Close()
	drivertest.Needs(t, "leases", pool.Reuses() == nil, "the kernel does not say whether others have memory")
	left := func() {
		sd, err := module.New(pool, []module.NamedSpec{{Name: "all", DType: tensor.Uint8, Shape: tensor.Shape{8 << 10}}})
		require.NoError(t, err)
		data := sd.Storages()[0].Memory().(driver.Mapped).Data()
		for i := range data {
			data[i] = 0xAA
		}
		require.NoError(t, sd.Close())
	}
	left()
	specs := []module.NamedSpec{
		{Name: "a", DType: tensor.Uint8, Shape: tensor.Shape{300}},
		{Name: "b", DType: tensor.Float32, Shape: tensor.Shape{3, 300}},
		{Name: "tied", DType: tensor.Uint8, Shape: tensor.Shape{300}, TiedTo: "a"},
	}
	sd, err := module.Empty(pool, specs)
	require.NoError(t, err)
	sd.Metadata = map[string]string{"k": "v"}
	data := sd.Storages()[0].Memory().(driver.Mapped).Data()
	require.Len(t, data, 8<<10)
	used := bytes.Repeat([]byte{0xAA}, 8<<10)
	require.Equal(t, used[:300], data[:300])
	require.Equal(t, make([]byte, 212), data[300:512], "between the tensors")
	require.Equal(t, used[:3600], data[512:4112])
	require.Equal(t, make([]byte, 8192-4112), data[4112:], "behind them")
	require.Equal(t, [][]string{{"a", "tied"}}, sd.Aliases())

	left()
	like, err := module.EmptyLike(pool, sd)
	require.NoError(t, err)
	require.Equal(t, sd.Names(), like.Names())
	require.Equal(t, sd.Metadata, like.Metadata)
	require.Equal(t, sd.Aliases(), like.Aliases())
	require.NoError(t, like.Close())
	left()
	empty, err := module.ZerosLike(pool, sd)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 8<<10), empty.Storages()[0].Memory().(driver.Mapped).Data(), "zeroed, whatever was left")
	require.NoError(t, empty.Close())
	require.NoError(t, sd.Close())
}
