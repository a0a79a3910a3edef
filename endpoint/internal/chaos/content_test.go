//go:build unix

package chaos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A salt defines the content of a model or result. The name of each tensor contains the salt of its model, so any
// reader can check the model without contact to its publisher. A version has one salt, which all readers compare.

// specs returns the specs of the tensors in a model, derived from its salt.
func specs(salt uint64) []tensor.Spec {
	r := mix(salt)
	list := make([]tensor.Spec, 1+r%6)
	for i := range list {
		r = mix(r + uint64(i))
		dt := []tensor.DType{tensor.Uint8, tensor.BFloat16, tensor.Float32, tensor.Int64}[r%4]
		shape := tensor.Shape{int64(1 + r>>8%61), int64(r >> 16 % 67)} // some shapes are empty
		if r>>24%16 == 0 {
			shape[0] *= 97
		}
		list[i] = tensor.Spec{DType: dt, Shape: shape}
	}
	return list
}

// content returns the bytes of tensor i of a salt, in row-major order.
func content(salt uint64, i int, size int64) []byte {
	data := make([]byte, (size+7)/8*8)
	state := mix(salt ^ mix(uint64(i)+1))
	for at := 0; at < len(data); at += 8 {
		state += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(data[at:], mix(state))
	}
	return data[:size]
}

// mix is the output function of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// makeTensor creates tensor i of a salt.
func makeTensor(dev driver.Device, salt uint64, i int, spec tensor.Spec) (*tensor.Tensor, error) {
	t, err := tensor.Empty(dev, spec.DType, spec.Shape)
	if err != nil {
		return nil, err
	}
	if err := t.FillFrom(bytes.NewReader(content(salt, i, t.Bytes()))); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// makeModel creates the model of a salt. For each tensor of two or more columns it contains a transposed view under a
// separate name. The tensors of an odd salt are in one slab, which is not zeroed.
func makeModel(dev driver.Device, salt uint64) (_ *module.StateDict, err error) {
	sd := module.NewStateDict()
	defer func() {
		if err != nil {
			err = errors.Join(err, sd.Close())
		}
	}()
	list := specs(salt)
	part := func(i int) (*tensor.Tensor, error) { return makeTensor(dev, salt, i, list[i]) }
	if salt%2 == 1 {
		slab, err := makeSlab(dev, salt, list)
		if err != nil {
			return nil, err
		}
		defer slab.Close()
		part = func(i int) (*tensor.Tensor, error) {
			t, _ := slab.Get(tensorName(salt, i, ""))
			return t.Alias(), nil
		}
	}
	for i := range list {
		t, err := part(i)
		if err != nil {
			return nil, err
		}
		view, err := t.Transpose(0, 1)
		if err = errors.Join(err, sd.Set(tensorName(salt, i, ""), t)); err != nil {
			return nil, err
		}
		if err := sd.Set(tensorName(salt, i, "T"), view); err != nil {
			return nil, err
		}
	}
	return sd, nil
}

// makeSlab creates the tensors of a salt in one slab.
func makeSlab(dev driver.Device, salt uint64, list []tensor.Spec) (*module.StateDict, error) {
	named := make([]module.NamedSpec, len(list))
	for i, spec := range list {
		named[i] = module.NamedSpec{Name: tensorName(salt, i, ""), DType: spec.DType, Shape: spec.Shape}
	}
	sd, err := module.Empty(dev, named)
	if err != nil {
		return nil, err
	}
	for i := range list {
		t, _ := sd.Get(named[i].Name)
		if err := t.FillFrom(bytes.NewReader(content(salt, i, t.Bytes()))); err != nil {
			return nil, errors.Join(err, sd.Close())
		}
	}
	return sd, nil
}

func tensorName(salt uint64, i int, suffix string) string {
	return fmt.Sprintf("%016x.%d%s", salt, i, suffix)
}

// checkModel checks every element of a model and returns its salt.
func checkModel(sd *module.StateDict) (uint64, error) {
	names := sd.Names()
	if len(names) == 0 {
		return 0, errors.New("a model without tensors")
	}
	salt, err := strconv.ParseUint(strings.SplitN(names[0], ".", 2)[0], 16, 64)
	if err != nil {
		return 0, fmt.Errorf("unexpected tensor name %q", names[0])
	}
	list := specs(salt)
	if len(names) != 2*len(list) {
		return salt, fmt.Errorf("model %016x has %d tensors instead of %d", salt, len(names), 2*len(list))
	}
	for i, spec := range list {
		t, ok := sd.Get(tensorName(salt, i, ""))
		view, okView := sd.Get(tensorName(salt, i, "T"))
		if !ok || !okView {
			return salt, fmt.Errorf("model %016x lacks tensor %d: it has %v", salt, i, names)
		}
		if err := checkTensor(t, salt, i, spec); err != nil {
			return salt, err
		}
		straight, err := view.Transpose(0, 1)
		if err != nil {
			return salt, err
		}
		if err := checkTensor(straight, salt, i, spec); err != nil {
			return salt, fmt.Errorf("the transposed view: %w", err)
		}
	}
	return salt, nil
}

// checkTensor checks every element of tensor i of a salt.
func checkTensor(t *tensor.Tensor, salt uint64, i int, spec tensor.Spec) error {
	if t.DType() != spec.DType || !t.Shape().Equal(spec.Shape) {
		return fmt.Errorf("tensor %d of %016x is %v %v instead of %v %v", i, salt, t.DType(), t.Shape(), spec.DType, spec.Shape)
	}
	got, err := t.ReadBytes()
	if err != nil {
		return fmt.Errorf("read tensor %d of %016x: %w", i, salt, err)
	}
	want := content(salt, i, t.Bytes())
	for at := range want {
		if got[at] != want[at] {
			return fmt.Errorf("WRONG BYTE %d of tensor %d of %016x: %#02x instead of %#02x", at, i, salt, got[at], want[at])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("tensor %d of %016x has %d bytes instead of %d", i, salt, len(got), len(want))
	}
	return nil
}

// oneSpec returns the spec of the tensor that endpoints return for a key.
func oneSpec(key uint64) tensor.Spec { return specs(key)[0] }

// sum returns the sum of a tensor's bytes, which shows that the owner has read a client's memory.
func sum(t *tensor.Tensor) (uint64, error) {
	data, err := t.ReadBytes()
	h := uint64(len(data))
	for _, b := range data {
		h = mix(h + uint64(b))
	}
	return h, err
}
