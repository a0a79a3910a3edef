package catalog_test

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// probe is memory without bytes that counts calls of Close.
type probe struct {
	driver.Memory
	bytes  int64
	closed atomic.Int32
	fail   error // returned by Close
}

func (p *probe) Device() driver.Device              { return probeDevice{} }
func (p *probe) Bytes() int64                       { return p.bytes }
func (p *probe) Writable() bool                     { return false }
func (p *probe) ReadAt([]byte, int64) (int, error)  { return 0, os.ErrClosed }
func (p *probe) WriteAt([]byte, int64) (int, error) { return 0, driver.ErrReadOnly }
func (p *probe) Export() (driver.Handle, error)     { return driver.Handle{}, driver.ErrInvalid }
func (p *probe) Close() error                       { p.closed.Add(1); return p.fail }
func (p *probe) isClosed() bool                     { return p.closed.Load() > 0 }

// probeDevice is the device of probes. It only describes itself.
type probeDevice struct{ driver.Device }

var probeInfo = driver.Info{Type: driver.CPU, Index: 3, UUID: driver.UUID{1}}

func (probeDevice) Info() driver.Info { return probeInfo }

// stateDict returns an owned state dict with one tensor, which is the last reference to the probe.
func (p *probe) stateDict(t testing.TB) *module.StateDict {
	t.Helper()
	storage := tensor.NewStorage(p)
	x, err := tensor.New(storage, tensor.Spec{DType: tensor.Uint8, Shape: tensor.Shape{p.bytes}})
	require.NoError(t, err)
	require.NoError(t, storage.Close())
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("x", x))
	return sd
}
