package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// madeIn requests tensors. The elements are counted in bytes.
type madeIn struct {
	Bytes   []int64
	DType   string
	Strided bool
}

// inlineOwner has functions whose results are in ordinary memory of its device.
type inlineOwner struct {
	dev  driver.Device
	mu   sync.Mutex
	kept *tensor.Tensor
}

func (o *inlineOwner) make(_ context.Context, in madeIn) ([]*tensor.Tensor, error) {
	var list []*tensor.Tensor
	for _, size := range in.Bytes {
		x, err := made(o.dev, in.DType, size, in.Strided)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// made returns a tensor whose storage has the given size, with counted bytes.
func made(dev driver.Device, name string, size int64, strided bool) (*tensor.Tensor, error) {
	dt, err := tensor.ParseDType(name)
	if err != nil {
		return nil, err
	}
	n := size * 8 / int64(dt.BitSize())
	x, err := tensor.Empty(dev, dt, tensor.Shape{n})
	if err != nil {
		return nil, err
	}
	content := make([]byte, x.Storage().Bytes())
	for i := range content {
		content[i] = byte(i*7 + 1)
	}
	if _, err := x.Storage().Memory().WriteAt(content, 0); err != nil {
		return nil, err
	}
	if !strided {
		return x, nil
	}
	defer x.Close()
	return tensor.New(x.Storage(), tensor.Spec{DType: dt, Shape: tensor.Shape{n / 2}, Strides: []int64{2}})
}

func (o *inlineOwner) registry(t testing.TB) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	keep := func(ctx context.Context, in madeIn) (*tensor.Tensor, error) {
		list, err := o.make(ctx, in)
		if err != nil {
			return nil, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = list[0].Alias()
		return list[0], nil
	}
	one := func(ctx context.Context, in madeIn) (*tensor.Tensor, error) {
		list, err := o.make(ctx, in)
		if err != nil {
			return nil, err
		}
		return list[0], nil
	}
	items := func(ctx context.Context, in madeIn) iter.Seq2[*tensor.Tensor, error] {
		return func(yield func(*tensor.Tensor, error) bool) {
			for _, size := range in.Bytes {
				if !yield(made(o.dev, in.DType, size, in.Strided)) {
					return
				}
			}
		}
	}
	dict := func(_ context.Context, in madeIn) (*module.StateDict, error) {
		return module.Empty(o.dev, []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}})
	}
	sum := func(_ context.Context, x *tensor.Tensor) (float64, error) { return sumOf(x) }
	require.NoError(t, errors.Join(
		endpoint.Register(r, "make", o.make), endpoint.Register(r, "keep", keep), endpoint.RegisterStream(r, "items", items),
		endpoint.Register(r, "dict", dict), endpoint.Register(r, "sum", sum), endpoint.Register(r, "cached sum", sum, endpoint.Cached()),
		endpoint.Register(r, "same", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x.Alias(), nil }),
		endpoint.Register(r, "managed", one, endpoint.Managed()), endpoint.Register(r, "cached", one, endpoint.Cached()), endpoint.Register(r, "task", one, endpoint.AsTask()),
		endpoint.Register(r, "write", func(_ context.Context, x *tensor.Tensor) (bool, error) { return true, x.Zero() }, endpoint.WritableArguments()),
	))
	return r
}

func sumOf(x *tensor.Tensor) (sum float64, err error) {
	data, err := tensor.Data[float32](x)
	for _, v := range data {
		sum += float64(v)
	}
	return sum, err
}

// inlineFixture returns an owner and a client of it over a socket.
func inlineFixture(t *testing.T) (*endpoint.Server, *inlineOwner, *endpoint.Client) {
	t.Helper()
	fixture.HostOnly(t, "only host memory is sent within frames")
	fixture.RequireFeature(t, message.FeatureInline)
	o := &inlineOwner{dev: fixture.Device(t)}
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: o.registry(t), Logger: fixture.Discard()})
	return s, o, fixture.SocketClient(t, s)
}

// inFrame reports whether memory has arrived within a frame: it has no place that other processes could map.
func inFrame(t testing.TB, x *tensor.Tensor) bool {
	t.Helper()
	d, err := x.Storage().Memory().Describe()
	require.NoError(t, err)
	return d.Place.Object == ""
}

func requireEqual(t testing.TB, want, got *tensor.Tensor) {
	t.Helper()
	require.Equal(t, want.DType(), got.DType())
	require.Equal(t, want.Shape(), got.Shape())
	a, b := make([]byte, want.Storage().Bytes()), make([]byte, got.Storage().Bytes())
	_, err := want.Storage().Memory().ReadAt(a, 0)
	require.NoError(t, err)
	_, err = got.Storage().Memory().ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.Equal(t, want.Spec(), got.Spec())
}

// Results and items of streams with at most 16 KiB arrive within the frame if both sides have the feature, and are
// otherwise the same.
func TestInlineResults(t *testing.T) {
	drivertest.Leaks(t)
	_, o, c := inlineFixture(t)
	without := withoutFeature(t, c)
	ctx := context.Background()
	for _, dtype := range []string{"uint8", "bfloat16", "float32", "complex128", "float4_e2m1fn", "float8_e4m3fn"} {
		for _, size := range []int64{0, 16, 48, 16384, 16400} {
			for _, strided := range []bool{false, true} {
				if strided && (size == 0 || dtype == "float4_e2m1fn") {
					continue
				}
				in := madeIn{[]int64{size}, dtype, strided}
				want, err := made(o.dev, dtype, size, strided)
				require.NoError(t, err)
				for name, caller := range map[string]*endpoint.Client{"inline": c, "old": without} {
					small := name == "inline" && size <= message.MaxInline
					what := fmt.Sprint(name, in)
					list, err := endpoint.Call[[]*tensor.Tensor](ctx, caller, "make", in)
					require.NoError(t, err, what)
					requireEqual(t, want, list[0])
					require.Equal(t, small, inFrame(t, list[0]), what)
					require.ErrorIs(t, list[0].Zero(), driver.ErrReadOnly)
					require.NoError(t, list[0].Close())
					for item, err := range endpoint.Stream[*tensor.Tensor](ctx, caller, "items", in) {
						require.NoError(t, err, what)
						requireEqual(t, want, item)
						require.Equal(t, small, inFrame(t, item), what)
						require.NoError(t, item.Close())
					}
				}
				require.NoError(t, want.Close())
			}
		}
	}
}

// withoutFeature returns another client of the owner, which lacks the feature.
func withoutFeature(t *testing.T, c *endpoint.Client) *endpoint.Client {
	t.Helper()
	before := transport.Disable([]string{message.FeatureInline})
	transport.Disable(append(slices.Clip(before), message.FeatureInline))
	defer transport.Disable(before)
	return fixture.AnotherClient(t, c, fixture.Device(t))
}

// Several tensors share the room in a frame; what does not fit is sent in place.
func TestInlineRoom(t *testing.T) {
	drivertest.Leaks(t)
	_, o, c := inlineFixture(t)
	for _, test := range []struct {
		sizes []int64
		small []bool
	}{
		{[]int64{8, 1 << 20, 16}, []bool{true, false, true}}, {[]int64{8000, 8000, 8000, 384}, []bool{true, true, false, true}},
		{[]int64{16384, 4}, []bool{true, false}}, {[]int64{16385, 16384}, []bool{false, true}},
	} {
		list, err := endpoint.Call[[]*tensor.Tensor](t.Context(), c, "make", madeIn{test.sizes, "uint8", false})
		require.NoError(t, err)
		for i, x := range list {
			want, err := made(o.dev, "uint8", test.sizes[i], false)
			require.NoError(t, err)
			requireEqual(t, want, x)
			require.Equal(t, test.small[i], inFrame(t, x), "%v, tensor %d", test.sizes, i)
			require.NoError(t, errors.Join(x.Close(), want.Close()))
		}
	}
}

// Memory that its owner can still write, that others receive too, or that is part of a state dict is sent in place.
func TestInPlaceResults(t *testing.T) {
	drivertest.Leaks(t)
	_, o, c := inlineFixture(t)
	in := madeIn{[]int64{16}, "float32", false}
	got, err := endpoint.Call[*tensor.Tensor](t.Context(), c, "keep", in)
	require.NoError(t, err)
	defer got.Close()
	require.False(t, inFrame(t, got))
	o.mu.Lock()
	kept := o.kept
	o.mu.Unlock()
	require.NoError(t, kept.Fill(3))
	require.Equal(t, []float32{3, 3, 3, 3}, fixture.Values(t, got))
	require.NoError(t, kept.Close())
	for _, name := range []string{"managed", "cached", "task"} {
		got, err := endpoint.Call[*tensor.Tensor](t.Context(), c, name, in)
		require.NoError(t, err)
		require.False(t, inFrame(t, got), name)
		require.NoError(t, got.Close())
	}
	sd, err := endpoint.Call[*module.StateDict](t.Context(), c, "dict", in)
	require.NoError(t, err)
	require.False(t, inFrame(t, fixture.FirstOf(t, sd)))
	require.NoError(t, sd.Close())
}

// A tensor that arrived within a frame is passed on like others: as an argument, in a publication, as a result.
func TestInlineIsPassedOn(t *testing.T) {
	drivertest.Leaks(t)
	_, o, c := inlineFixture(t)
	list, err := endpoint.Call[[]*tensor.Tensor](t.Context(), c, "make", madeIn{[]int64{16}, "float32", false})
	require.NoError(t, err)
	x := list[0]
	require.True(t, inFrame(t, x))
	want, err := sumOf(x)
	require.NoError(t, err)
	for range 3 {
		sum, err := endpoint.Call[float64](t.Context(), c, "sum", x)
		require.NoError(t, err)
		require.Equal(t, want, sum)
	}
	require.False(t, inFrame(t, x), "the first export moved it to memory that others can map")
	_, err = endpoint.Call[bool](t.Context(), c, "write", x)
	require.ErrorIs(t, err, driver.ErrReadOnly)
	base, err := module.Empty(o.dev, []module.NamedSpec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{4}}})
	require.NoError(t, err)
	manifest, _ := base.Manifest()
	manifest.Storages[0].Bytes = 16
	sd, err := module.FromManifest(manifest, []*tensor.Storage{x.Storage()})
	require.NoError(t, errors.Join(err, base.Close()))
	_, err = c.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
	require.NoError(t, errors.Join(err, sd.Close()))
	require.NoError(t, x.Close())
	_, err = x.Storage().Memory().ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, os.ErrClosed)
	h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	again, _ := h.StateDict().Get("x")
	sum, err := sumOf(again)
	require.NoError(t, err)
	require.Equal(t, want, sum)
}

// inlinePeer connects as a client that sends memory within the frame.
func inlinePeer(t *testing.T, s *endpoint.Server, features ...string) *fixture.Peer {
	t.Helper()
	p := fixture.RawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.Conn, message.Hello{Features: features})
	require.NoError(t, err)
	return p
}

// argument encodes a tensor in the given handle.
func argument(t *testing.T, dtype tensor.DType, offset int64, shape, strides []int64) message.RawMessage {
	t.Helper()
	raw, err := message.MarshalTagged(message.TagTensor, message.TensorRef{DType: uint8(dtype), ByteOffset: offset, Shape: shape, Strides: strides})
	require.NoError(t, err)
	return raw
}

// sendInline sends a call and returns the answer.
func sendInline(p *fixture.Peer, endpoint string, args message.RawMessage, handles ...message.Handle) wire.Frame {
	p.T.Helper()
	request, err := message.AppendCallRequest(nil, message.Request{Op: message.OpCall}, message.Call{Endpoint: endpoint, Args: args, Handles: handles})
	require.NoError(p.T, err)
	p.ID++
	require.NoError(p.T, p.Conn.Send(wire.KindRequest, p.ID, request))
	frame, err := p.Conn.Receive()
	require.NoError(p.T, err)
	return frame
}

// Arguments within the frame are read, cached by their bytes, and refused where a function writes to them. Invalid
// handles are refused.
func TestInlineArguments(t *testing.T) {
	drivertest.Leaks(t)
	s, o, _ := inlineFixture(t)
	p := inlinePeer(t, s, message.FeatureInline)
	device := message.UUID(o.dev.Info().UUID)
	ones := []byte{0, 0, 128, 63, 0, 0, 128, 63, 0, 0, 128, 63, 0, 0, 128, 63}
	good := message.Handle{Kind: message.HandleInline, Device: device, Bytes: 16, Blob: ones, File: -1}
	whole := argument(t, tensor.Float32, 0, []int64{4}, nil)
	value := func(frame wire.Frame) (v float64, cached bool) {
		defer frame.Files.Close()
		require.Equal(t, wire.KindResponse, frame.Kind, string(frame.Body))
		out, err := message.ParseReturned(frame.Body)
		require.NoError(t, err)
		require.NoError(t, message.Unmarshal(out.Value, &v))
		return v, out.Cached
	}
	sum, _ := value(sendInline(p, "sum", whole, good))
	require.EqualValues(t, 4, sum)
	sum, _ = value(sendInline(p, "sum", argument(t, tensor.Float32, 4, []int64{2}, nil), good))
	require.EqualValues(t, 2, sum)
	for i, cached := range []bool{false, true} {
		got, from := value(sendInline(p, "cached sum", whole, good))
		require.EqualValues(t, 4, got)
		require.Equal(t, cached, from, "call %d", i)
	}
	other := good
	other.Blob = append([]byte{0, 0, 0, 64}, ones[4:]...)
	got, from := value(sendInline(p, "cached sum", whole, other))
	require.EqualValues(t, 5, got)
	require.False(t, from, "other bytes")
	back := sendInline(p, "same", whole, good)
	out, err := message.ParseReturned(back.Body)
	require.NoError(t, err)
	require.True(t, out.Handles[0].Inline(), "memory that arrived within a frame leaves within one")
	require.Equal(t, ones, out.Handles[0].Blob)
	refused := func(p *fixture.Peer, name string, args message.RawMessage, handles ...message.Handle) {
		t.Helper()
		frame := sendInline(p, name, args, handles...)
		defer frame.Files.Close()
		require.Equal(t, wire.KindError, frame.Kind, "%s: accepted", name)
	}
	refused(p, "write", whole, good)
	refused(inlinePeer(t, s), "sum", whole, good)
	change := func(f func(h *message.Handle)) message.Handle {
		h := good
		f(&h)
		return h
	}
	for name, h := range map[string]message.Handle{
		"more bytes than there are": change(func(h *message.Handle) { h.Bytes = 17 }), "fewer": change(func(h *message.Handle) { h.Bytes = 15 }),
		"huge": change(func(h *message.Handle) { h.Bytes = 1 << 62 }), "an offset": change(func(h *message.Handle) { h.Offset = 4; h.Bytes = 12 }),
		"a number": change(func(h *message.Handle) { h.Storage = 1 }), "a slab": change(func(h *message.Handle) { h.Slab = 1 }),
		"a descriptor": change(func(h *message.Handle) { h.File = 0 }), "another device": change(func(h *message.Handle) { h.Device[0] ^= 1 }),
		"no bytes":  change(func(h *message.Handle) { h.Blob = nil }),
		"too large": change(func(h *message.Handle) { h.Blob = make([]byte, message.MaxInline+1); h.Bytes = message.MaxInline + 1 }),
	} {
		t.Log(name)
		refused(p, "sum", whole, h)
	}
	half := change(func(h *message.Handle) {
		h.Blob = make([]byte, message.MaxInline/2+1)
		h.Bytes = message.MaxInline/2 + 1
	})
	refused(p, "sum", whole, half, half)
	for _, args := range []message.RawMessage{
		argument(t, tensor.Float32, 0, []int64{5}, nil), argument(t, tensor.Float32, 1, []int64{4}, nil), argument(t, tensor.Float32, -4, []int64{4}, nil),
		argument(t, tensor.Float64, 0, []int64{4}, nil), argument(t, tensor.Float32, 0, []int64{2}, []int64{4}), argument(t, 200, 0, []int64{1}, nil),
		argument(t, tensor.Float32, 0, []int64{1 << 62, 4}, nil), argument(t, tensor.Float32, 0, []int64{-1}, nil),
	} {
		refused(p, "sum", args, good)
	}
	sum, _ = value(sendInline(p, "sum", whole, good))
	require.EqualValues(t, 4, sum, "the connection goes on")
}
