package module_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Many state dicts of one manifest are created concurrently. A change of one is not visible in others.
func TestPrepared(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 7, Bytes: 1 << 16}) // the index has room for an eighth name
	require.NoError(t, err)
	defer sd.Close()
	sd.Metadata = map[string]string{"k": "v"}
	m, storages := sd.Manifest()
	p, err := m.Prepare()
	require.NoError(t, err)
	before := storages[0].Refs()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			mine, err := p.StateDict(storages)
			assert.NoError(t, err)
			assert.Equal(t, storages, mine.Storages())
			own := fmt.Sprint("own", i)
			x, err := tensor.Zeros(dev, tensor.Int8, tensor.Shape{1})
			assert.NoError(t, err)
			assert.NoError(t, mine.Set(own, x))
			mine.Metadata["k"] = own
			for j := range 8 {
				_, found := mine.Get(fmt.Sprint("own", j))
				assert.Equal(t, i == j, found)
			}
			assert.Len(t, mine.Storages(), len(storages)+1)
			assert.NoError(t, mine.Close())
		})
	}
	all.Wait()
	last, err := p.StateDict(storages)
	require.NoError(t, err)
	require.Equal(t, sd.Names(), last.Names())
	require.Equal(t, sd.Metadata, last.Metadata)
	require.NoError(t, last.Close())
	require.Equal(t, before, storages[0].Refs(), "no reference is left")
}

// A prepared manifest still checks the storages each time.
func TestPreparedChecksStorages(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 3, Bytes: 1 << 16})
	require.NoError(t, err)
	defer sd.Close()
	m, storages := sd.Manifest()
	p, err := m.Prepare()
	require.NoError(t, err)
	mem, err := dev.Alloc(storages[0].Bytes() - 1)
	require.NoError(t, err)
	short := tensor.NewStorage(mem)
	defer short.Close()
	for name, wrong := range map[string][]*tensor.Storage{"none": nil, "two": {storages[0], storages[0]}, "short": {short}} {
		_, err = p.StateDict(wrong)
		require.ErrorIs(t, err, module.ErrManifest, name)
	}
	require.EqualValues(t, 1, short.Refs())
}
