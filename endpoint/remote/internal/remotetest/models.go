package remotetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// IdentityArgs holds the arguments of identity.
type IdentityArgs struct {
	X *tensor.Tensor `json:"x"`
}

// AddSubArgs holds the arguments of addsub.
type AddSubArgs struct {
	A *tensor.Tensor `json:"INPUT0"`
	B *tensor.Tensor `json:"INPUT1"`
}

// AddSubResult is the result of addsub.
type AddSubResult struct {
	Sum        *tensor.Tensor `json:"OUTPUT0"`
	Difference *tensor.Tensor `json:"OUTPUT1"`
}

// MixedArgs holds the arguments of mixed.
type MixedArgs struct {
	X     *tensor.Tensor `json:"x,omitempty"`
	Label string         `json:"label"`
	Tags  []string       `json:"tags,omitempty"`
	Blob  []byte         `json:"blob,omitempty"`
	Ints  []int32        `json:"ints,omitempty"`
	On    bool           `json:"on,omitempty"`
	Deep  struct {
		Rate float32 `json:"rate,omitempty"`
	} `json:"deep,omitempty"`
	Version int               `json:"version,omitempty"`
	Other   map[string]string `json:"other,omitempty"`
}

// MixedResult is the result of mixed: its arguments, and values that are not tensors.
type MixedResult struct {
	X       *tensor.Tensor `json:"x,omitempty"`
	Label   string         `json:"label"`
	Tags    []string       `json:"tags"`
	Blob    []byte         `json:"blob"`
	Total   int64          `json:"total"`
	Halves  []float32      `json:"halves"`
	On      bool           `json:"on"`
	Rate    float64        `json:"rate"`
	Version int            `json:"version"`
}

// RepeatArgs holds the arguments of repeat.
type RepeatArgs struct {
	X     *tensor.Tensor `json:"x"`
	Times int            `json:"times"`
	Fail  bool           `json:"fail,omitempty"`
}

// Models registers functions with tensors of several kinds:
//
//	identity {x} → x                    addsub {INPUT0, INPUT1} of int32 → {OUTPUT0, OUTPUT1}
//	mixed MixedArgs → MixedResult       repeat {x, times, fail} → a stream of x, times times, and then an error if fail is set
//	failing {x} → an error              needy {x, other} → cannot be called by the Open Inference Protocol
//	kept {x} → x of the first call      behind {x} → number of bytes after x in its memory that are not 0
//	twice {x} → x, doubled in place     rows RowsArgs → RowsResult, in batches; rows_alone without batches
func Models(r *endpoint.Registry, dev driver.Device) error {
	type needy struct {
		X     *tensor.Tensor `json:"x"`
		Other map[string]int `json:"other"`
	}
	var mu sync.Mutex
	var first *tensor.Tensor
	kept := func(_ context.Context, in IdentityArgs) (*tensor.Tensor, error) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = in.X.Alias()
		}
		return first.Alias(), nil
	}
	return errors.Join(
		registerRows(r, dev),
		endpoint.Register(r, "kept", kept, endpoint.NoCache()),
		endpoint.Register(r, "behind", behind, endpoint.NoCache()),
		endpoint.Register(r, "twice", twice, endpoint.NoCache(), endpoint.WritableArguments()),
		endpoint.Register(r, "identity", func(_ context.Context, in IdentityArgs) (*tensor.Tensor, error) { return in.X.Alias(), nil }, endpoint.NoCache()),
		endpoint.Register(r, "addsub", func(_ context.Context, in AddSubArgs) (AddSubResult, error) { return addSub(dev, in) }, endpoint.NoCache()),
		endpoint.Register(r, "mixed", mixed, endpoint.NoCache()),
		endpoint.RegisterStream(r, "repeat", repeat),
		endpoint.Register(r, "failing", func(_ context.Context, in IdentityArgs) (*tensor.Tensor, error) {
			return nil, fmt.Errorf("no luck with %v", in.X.Shape())
		}, endpoint.NoCache()),
		endpoint.Register(r, "needy", func(_ context.Context, in needy) (*tensor.Tensor, error) { return in.X.Alias(), nil }, endpoint.NoCache()),
	)
}

func behind(_ context.Context, in IdentityArgs) (n int64, err error) {
	raw := make([]byte, in.X.Storage().Bytes())
	if _, err := in.X.Storage().Memory().ReadAt(raw, 0); err != nil {
		return 0, err
	}
	bytes, err := in.X.Spec().ByteLen()
	if err != nil {
		return 0, err
	}
	for _, b := range raw[in.X.Spec().ByteOffset+bytes:] {
		if b != 0 {
			n++
		}
	}
	return n, nil
}

func twice(_ context.Context, in IdentityArgs) (*tensor.Tensor, error) {
	values, err := tensor.Data[float32](in.X)
	if err != nil {
		return nil, err
	}
	for i := range values {
		values[i] *= 2
	}
	return in.X.Alias(), nil
}

func addSub(dev driver.Device, in AddSubArgs) (out AddSubResult, err error) {
	a, err := tensor.Data[int32](in.A)
	if err != nil {
		return out, err
	}
	b, err := tensor.Data[int32](in.B)
	if err != nil {
		return out, err
	}
	if len(a) != len(b) {
		return out, fmt.Errorf("%w: %d and %d elements", endpoint.ErrInvalid, len(a), len(b))
	}
	sum, difference := make([]int32, len(a)), make([]int32, len(a))
	for i := range a {
		sum[i], difference[i] = a[i]+b[i], a[i]-b[i]
	}
	if out.Sum, err = tensor.FromSlice(dev, in.A.Shape(), sum); err != nil {
		return out, err
	}
	out.Difference, err = tensor.FromSlice(dev, in.A.Shape(), difference)
	return out, err
}

func mixed(_ context.Context, in MixedArgs) (MixedResult, error) {
	out := MixedResult{Label: in.Label, Tags: in.Tags, Blob: in.Blob, On: in.On, Rate: float64(in.Deep.Rate), Version: in.Version}
	if in.X != nil {
		out.X = in.X.Alias()
	}
	for _, n := range in.Ints {
		out.Total += int64(n)
		out.Halves = append(out.Halves, float32(n)/2)
	}
	return out, nil
}

func repeat(_ context.Context, in RepeatArgs) iter.Seq2[*tensor.Tensor, error] {
	return func(yield func(*tensor.Tensor, error) bool) {
		for range in.Times {
			if !yield(in.X.Alias(), nil) {
				return
			}
		}
		if in.Fail {
			yield(nil, errors.New("it was to fail"))
		}
	}
}

// RowsArgs holds the arguments of rows.
type RowsArgs struct {
	X *tensor.Tensor `json:"x" tensor:"float32[-1,4]"`
	// PauseMS is the duration of a call in milliseconds, in addition to RowsCost.
	PauseMS int `json:"pause_ms,omitempty"`
}

// RowsResult is the result of rows.
type RowsResult struct {
	// Y is X doubled.
	Y *tensor.Tensor `json:"y" tensor:"float32[-1,4]"`
	// Call is the number of the call and Rows the number of its rows, for each row.
	Call *tensor.Tensor `json:"call" tensor:"int64[-1]"`
	Rows *tensor.Tensor `json:"rows" tensor:"int64[-1]"`
}

// Costs of a call of rows, and of each row.
const (
	RowsCost   = 4 * time.Millisecond
	RowsPerRow = 50 * time.Microsecond
)

// registerRows registers rows, which runs batches of up to 16 rows, and rows_alone, which runs one request at a time. Both
// have a fixed cost for each call.
func registerRows(r *endpoint.Registry, dev driver.Device) error {
	var calls atomic.Int64
	rows := func(ctx context.Context, in RowsArgs) (out RowsResult, err error) {
		values, err := tensor.Float32s(in.X)
		if err != nil {
			return out, err
		}
		n := in.X.Shape()[0]
		select {
		case <-ctx.Done():
			return out, context.Cause(ctx)
		case <-time.After(RowsCost + time.Duration(n)*RowsPerRow + time.Duration(in.PauseMS)*time.Millisecond):
		}
		for i := range values {
			values[i] *= 2
		}
		call := calls.Add(1)
		numbers, sizes := make([]int64, n), make([]int64, n)
		for i := range numbers {
			numbers[i], sizes[i] = call, n
		}
		if out.Y, err = tensor.FromSlice(dev, in.X.Shape(), values); err == nil {
			out.Call, err = tensor.FromSlice(dev, tensor.Shape{n}, numbers)
		}
		if err == nil {
			out.Rows, err = tensor.FromSlice(dev, tensor.Shape{n}, sizes)
		}
		return out, err
	}
	return errors.Join(
		endpoint.Register(r, "rows", rows, endpoint.NoCache(), endpoint.Batch(16, 2*time.Millisecond)),
		endpoint.Register(r, "rows_alone", rows, endpoint.NoCache(), endpoint.Serialized()),
	)
}
