package cuda

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

type namedInt int

type namedComplex complex64

// launched checks that Launch and KernelOf accept a value of type T for a parameter of size bytes, as the bytes want, or
// that both refuse it if want is nil.
func launched[T any](v T, size int, want []byte) func(t *testing.T) {
	return func(t *testing.T) {
		f := &Function{dev: &Device{}, name: "f", mod: &resource{life: newLifetime()}, known: true, params: []param{{bytes: uint64(size)}}}
		a, err := f.pack([]any{v})
		k, kernelErr := KernelOf[struct{ V T }](f)
		if want == nil {
			require.ErrorIs(t, err, driver.ErrInvalid)
			if kernelErr == nil {
				c := k.calls.New().(*kernelCall[struct{ V T }])
				c.args.V = v
				kernelErr = k.fill(c)
			}
			require.ErrorIs(t, kernelErr, driver.ErrInvalid)
			return
		}
		require.NoError(t, err)
		require.NoError(t, kernelErr)
		c := k.calls.New().(*kernelCall[struct{ V T }])
		c.args.V = v
		require.NoError(t, k.fill(c))
		require.Equal(t, want, unsafe.Slice((*byte)(a.pointers()[0]), size), "Launch")
		require.Equal(t, want, unsafe.Slice((*byte)(c.pointers[0]), size), "KernelOf")
	}
}

// Each way to launch a kernel accepts and refuses the same types, and passes the same bytes.
func TestLaunchAndKernelOfAcceptTheSameTypes(t *testing.T) {
	mem := &Memory{resource: resource{life: newLifetime()}, dev: &Device{}, ptr: 0x1122334455667788, bytes: 64}
	at := []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}
	type pair struct {
		A int8
		B int16
	}
	for name, test := range map[string]func(t *testing.T){
		"bool":                   launched(true, 1, []byte{1}),
		"int8":                   launched(int8(-2), 1, []byte{254}),
		"int16":                  launched(int16(258), 2, []byte{2, 1}),
		"int32":                  launched(int32(-1), 4, []byte{255, 255, 255, 255}),
		"int64":                  launched(int64(1), 8, []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		"uint8":                  launched(uint8(7), 1, []byte{7}),
		"uint16":                 launched(uint16(258), 2, []byte{2, 1}),
		"uint32":                 launched(uint32(1), 4, []byte{1, 0, 0, 0}),
		"uint64":                 launched(uint64(1), 8, []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		"float32":                launched(float32(1), 4, []byte{0, 0, 0x80, 0x3f}),
		"float64":                launched(1.0, 8, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}),
		"complex64":              launched(complex64(1i), 8, []byte{0, 0, 0, 0, 0, 0, 0x80, 0x3f}),
		"complex128":             launched(complex128(1), 16, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0}),
		"named complex":          launched(namedComplex(1), 8, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0}),
		"array of complex":       launched([1]complex64{1}, 8, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0}),
		"struct":                 launched(pair{1, 2}, 4, []byte{1, 0, 2, 0}),
		"array":                  launched([3]int8{1, 2, 3}, 3, []byte{1, 2, 3}),
		"int of 1":               launched(-128, 1, []byte{128}),
		"int of 2":               launched(-1, 2, []byte{255, 255}),
		"int of 4":               launched(1, 4, []byte{1, 0, 0, 0}),
		"int of 8":               launched(1, 8, []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		"named int":              launched(namedInt(3), 2, []byte{3, 0}),
		"uint of 4":              launched(uint(1<<32-1), 4, []byte{255, 255, 255, 255}),
		"device address":         launched(cu.DevicePtr(1), 8, []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		"memory":                 launched(mem, 8, at),
		"managed memory":         launched(&Managed{mem}, 8, at),
		"buffer":                 launched(&Buffer[int8]{mem: mem, offset: 0x11, n: 1}, 8, []byte{0x99, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}),
		"int too large":          launched(128, 1, nil),
		"uint too large":         launched(uint(256), 1, nil),
		"int for 3 bytes":        launched(1, 3, nil),
		"int for 16 bytes":       launched(1, 16, nil),
		"complex64 for 16":       launched(complex64(1), 16, nil),
		"float64 for 4":          launched(1.0, 4, nil),
		"memory for 4":           launched(mem, 4, nil),
		"nil memory":             launched((*Memory)(nil), 8, nil),
		"nil managed memory":     launched((*Managed)(nil), 8, nil),
		"managed without memory": launched(&Managed{}, 8, nil),
		"nil buffer":             launched((*Buffer[int8])(nil), 8, nil),
		"buffer without memory":  launched(&Buffer[int8]{}, 8, nil),
		"Go pointer":             launched(new(int32), 8, nil),
		"uintptr":                launched(uintptr(1), 8, nil),
		"string":                 launched("x", 16, nil),
		"slice":                  launched([]byte{1}, 24, nil),
		"map":                    launched(map[int]int{}, 8, nil),
		"struct with an int":     launched(struct{ A int }{}, 8, nil),
		"array of int":           launched([1]int{1}, 8, nil),
		"struct with a pointer":  launched(struct{ P *int8 }{}, 8, nil),
		"struct with memory":     launched(struct{ M *Memory }{mem}, 8, nil),
		"function":               launched(func() {}, 8, nil),
	} {
		t.Run(name, test)
	}
}
