//go:build linux

package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

func TestFactSameProcess(t *testing.T) {
	needKind(t, driver.CUDAIPC)
	dev := openDevice(t)
	m, err := dev.AllocLegacy(2 << 20)
	keep(t, m, err)
	handle, _, err := dev.IPCHandle(m.Pointer())
	require.NoError(t, err)
	require.NoError(t, dev.Do(func() error {
		var p cu.DevicePtr
		r := cu.IpcOpenMemHandle(&p, cu.IpcMemHandle{Reserved: handle}, cu.IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		fact(t, "ipc-same-process", "%s", codeAnswer(r))
		if r == cu.SUCCESS {
			return cu.IpcCloseMemHandle(p).Err()
		}
		return nil
	}))
	_, err = dev.OpenIPC(handle)
	require.ErrorIs(t, err, driver.ErrHandle, "whatever the driver says, the binding refuses it with a reason")
}

// Opening 64-byte handles of memory and of events works, although C passes them by value.
func TestFactHandlesByValue(t *testing.T) {
	needKind(t, driver.CUDAIPC)
	dev := openDevice(t)
	o := owner(t, driver.CUDAIPC, 2<<20, 11)
	o.must(request{Do: "alloc", Key: "e", Bytes: 2 << 20, Seed: 12})
	event := o.must(request{Do: "event", Key: "e"})
	o.must(request{Do: "record", Key: "e", Seed: 13})

	m, err := dev.Import(o.export("m"), driver.ImportOptions{})
	keep(t, m, err)
	require.NoError(t, verify(m.(*cuda.Memory), 11))
	e, err := dev.OpenEvent([64]byte(event.Blob))
	keep(t, e, err)
	require.NoError(t, e.Synchronize())
	fact(t, "by-value-handles", "yes, both")
}

func TestFactReopen(t *testing.T) {
	needKind(t, driver.CUDAIPC)
	dev := openDevice(t)
	o := owner(t, driver.CUDAIPC, 2<<20, 14)
	h := o.export("m")
	require.NoError(t, dev.Do(func() error {
		var handle cu.IpcMemHandle
		copy(handle.Reserved[:], h.Blob)
		open := func() (p cu.DevicePtr, r cu.Result) {
			r = cu.IpcOpenMemHandle(&p, handle, cu.IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
			return p, r
		}
		first, r := open()
		require.Equal(t, cu.SUCCESS, r)
		second, r := open()
		says := codeAnswer(r)
		if r == cu.SUCCESS {
			says += map[bool]string{true: ", the same address", false: ", another address"}[first == second]
			says += ", closing it once: " + codeAnswer(cu.IpcCloseMemHandle(second))
		}
		last := cu.IpcCloseMemHandle(first)
		fact(t, "ipc-reopen", "%s, closing the first: %s", says, codeAnswer(last))
		return nil
	}))
}

func TestFactLegacyHandlesOf(t *testing.T) {
	dev := openDevice(t)
	get := func(m *cuda.Memory) string {
		var says string
		require.NoError(t, dev.Do(func() error {
			var h cu.IpcMemHandle
			says = codeAnswer(cu.IpcGetMemHandle(&h, m.Pointer()))
			return nil
		}))
		return says
	}
	m, err := dev.AllocMemory(2 << 20)
	keep(t, m, err)
	fact(t, "ipc-of-vmm-memory", "%s", get(m))
	stream, err := dev.NewStream(cuda.StreamOptions{})
	keep(t, stream, err)
	pool, err := dev.DefaultPool()
	keep(t, pool, err)
	fromPool, err := stream.Alloc(pool, 2<<20)
	keep(t, fromPool, err)
	require.NoError(t, stream.Synchronize())
	fact(t, "ipc-of-pool-memory", "%s", get(fromPool))
}
