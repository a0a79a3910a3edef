package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// multimemPTX is a kernel that writes to a multicast address. On a real device it uses multimem.st.
const multimemPTX = `
.version 8.1
.target sm_90
.address_size 64

// p[i] = value
.visible .entry multimem_fill(.param .u64 p, .param .u32 value, .param .u32 n)
{
	.reg .pred q;
	.reg .b32 i, r<4>;
	.reg .b64 d<2>;
	mov.u32 r0, %ctaid.x;
	mov.u32 r1, %ntid.x;
	mov.u32 r2, %tid.x;
	mad.lo.s32 i, r0, r1, r2;
	ld.param.u32 r3, [n];
	setp.ge.u32 q, i, r3;
	@q bra done;
	ld.param.u64 d0, [p];
	ld.param.u32 r3, [value];
	mul.wide.u32 d1, i, 4;
	add.u64 d0, d0, d1;
	multimem.st.weak.global.b32 [d0], r3;
done:
	ret;
}
`

func TestMulticast(t *testing.T) {
	a, b := openDevice(t, 0), openDevice(t, 1)
	size, err := a.MulticastGranularity(2, 0, true)
	require.NoError(t, err)
	m, err := a.NewMulticast(2, size, 0, b)
	keep(t, m, err)
	require.Equal(t, size, m.Bytes())
	ranges := map[*cuda.Device]*cuda.AddressRange{}
	for _, d := range []*cuda.Device{a, b} {
		memory, err := d.CreateAllocation(size, 0)
		keep(t, memory, err)
		require.NoError(t, m.Bind(0, memory, 0, size))
		require.Error(t, m.Bind(0, memory, 0, size), "the device has memory there")
		ranges[d] = mapped(t, d, memory, size, d)
	}
	shared := mapped(t, a, m.Allocation(), size, a, b)
	mod, err := a.LoadModule([]byte(multimemPTX))
	keep(t, mod, err)
	fill := function(t, mod, "multimem_fill")
	require.NoError(t, fill.Launch(cuda.LaunchConfig{Block: cuda.Dim3{X: 32}}, shared.Base(), uint32(0x05050505), uint32(32)))
	require.NoError(t, a.Synchronize())
	for d, r := range ranges {
		w, err := d.WrapMemory(r.Base(), size, cuda.Borrowed)
		require.NoError(t, err)
		require.EqualValues(t, 0x05050505, words(t, w, 32)[31], "the memory of %s", d)
		require.NoError(t, w.Close())
	}
	require.NoError(t, m.Unbind(b, 0, size))
	require.Error(t, m.Unbind(b, 0, size), "nothing is bound")
}

// mapped maps an allocation and gives devices access.
func mapped(t testing.TB, d *cuda.Device, a *cuda.Allocation, size int64, devices ...*cuda.Device) *cuda.AddressRange {
	r, err := d.ReserveAddresses(size, 0)
	keep(t, r, err)
	require.NoError(t, r.Map(0, a, size))
	for _, dev := range devices {
		require.NoError(t, r.SetAccess(dev, 0, size, cuda.ReadWrite))
	}
	return r
}

func TestMulticastIsChecked(t *testing.T) {
	a, b := openDevice(t, 0), openDevice(t, 1)
	size, err := a.MulticastGranularity(2, 0, false)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"no bytes":           second(a.NewMulticast(2, 0, 0)),
		"too few devices":    second(a.NewMulticast(1, size, 0, b)),
		"not a multiple":     second(a.NewMulticast(2, size+1, 0)),
		"too many devices":   second(a.NewMulticast(99, size, 0)),
		"the same device":    second(a.NewMulticast(2, size, 0, a)),
		"no such thing file": second(a.ImportMulticast(nil2(t), size)),
	} {
		require.Error(t, err, name)
	}
	m, err := a.NewMulticast(2, size, 0)
	keep(t, m, err)
	memory, err := a.CreateAllocation(size, 0)
	keep(t, memory, err)
	var e *cuda.Error
	require.ErrorAs(t, m.Bind(0, memory, 0, size), &e)
	require.Equal(t, cu.ERROR_ILLEGAL_STATE, e.Code, "a member is missing")
	require.NoError(t, m.AddDevice(b))
	require.ErrorIs(t, m.Bind(0, memory, -1, size), driver.ErrInvalid)
	require.ErrorIs(t, m.Bind(size, memory, 0, size), driver.ErrInvalid)
	require.ErrorIs(t, m.Unbind(a, 1, size), driver.ErrInvalid)
	require.NoError(t, m.Bind(0, memory, 0, size))

	// Memory of one member only is no target for a write, and ordinary kernels must not use the address.
	shared := mapped(t, a, m.Allocation(), size, a)
	w, err := a.WrapMemory(shared.Base(), size, cuda.Borrowed)
	require.NoError(t, err)
	require.Error(t, w.Fill(0, 4, 1))
	require.NoError(t, w.Close())
}

func TestMulticastUnsupported(t *testing.T) {
	o := fakeOptions
	o.Without = []string{"multicast", "green"}
	if childWith(t, "multicast", o) {
		return
	}
	d, err := cuda.Open(0)
	keep(t, d, err)
	_, err = d.MulticastGranularity(1, 0, false)
	require.ErrorIs(t, err, errUnsupported)
	_, err = d.NewMulticast(1, 2<<20, 0)
	require.ErrorIs(t, err, errUnsupported)
	p, err := d.Properties()
	require.NoError(t, err)
	require.False(t, p.Multicast)
	_, err = d.Multiprocessors()
	require.ErrorIs(t, err, errUnsupported)
}
