package torchsave

import (
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// storage is a pickle's reference to a storage.
type storage struct {
	dtype    tensor.DType // 0 for untyped storages
	key      string
	location string
	bytes    int64
}

// typedStorages maps the storage classes to their element types.
var typedStorages = map[string]tensor.DType{
	"FloatStorage": tensor.Float32, "DoubleStorage": tensor.Float64, "HalfStorage": tensor.Float16,
	"BFloat16Storage": tensor.BFloat16, "ByteStorage": tensor.Uint8, "CharStorage": tensor.Int8,
	"ShortStorage": tensor.Int16, "IntStorage": tensor.Int32, "LongStorage": tensor.Int64,
	"BoolStorage": tensor.Bool, "ComplexFloatStorage": tensor.Complex64, "ComplexDoubleStorage": tensor.Complex128,
}

// storageOf decodes ("storage", class, key, location, number of elements).
func storageOf(id any) (storage, error) {
	tuple, ok := id.(*List)
	if !ok || len(tuple.Items) != 5 || tuple.Items[0] != "storage" {
		return storage{}, fmt.Errorf("%w: a reference to something other than a storage", ErrRefused)
	}
	class, ok1 := tuple.Items[1].(global)
	key, ok2 := tuple.Items[2].(string)
	location, ok3 := tuple.Items[3].(string)
	elements, ok4 := tuple.Items[4].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 || elements < 0 {
		return storage{}, errStack
	}
	s := storage{key: key, location: location, bytes: elements}
	if class == (global{"torch.storage", "UntypedStorage"}) || class == (global{"torch", "UntypedStorage"}) {
		return s, nil // untyped storages count bytes
	}
	if s.dtype, ok = typedStorages[class.name]; !ok || class.module != "torch" && class.module != "torch.cuda" {
		return storage{}, fmt.Errorf("%w: a storage of class %s", ErrRefused, class)
	}
	size := int64(s.dtype.BitSize() / 8)
	if elements > math.MaxInt64/size {
		return storage{}, fmt.Errorf("%w: a storage of %d elements", ErrFormat, elements)
	}
	s.bytes = elements * size
	return s, nil
}

// call interprets a function call of the pickle. It only builds descriptions.
func call(function global, args []any) (any, error) {
	switch function {
	case global{"torch._utils", "_rebuild_tensor"}, global{"torch._utils", "_rebuild_tensor_v2"}:
		return rebuildTensor(args, nil)
	case global{"torch._utils", "_rebuild_tensor_v3"}:
		if len(args) < 7 {
			return nil, errStack
		}
		dtype := args[6]
		return rebuildTensor(append(args[:6:6], args[7:]...), dtype)
	case global{"torch._utils", "_rebuild_parameter"}:
		return rebuildParameter(args)
	case global{"torch", "Size"}:
		if len(args) == 1 {
			if size, ok := args[0].(*List); ok {
				return &List{Items: size.Items}, nil
			}
		}
		return nil, errStack
	case global{"collections", "OrderedDict"}:
		return orderedDict(args)
	}
	return nil, fmt.Errorf("%w: the file calls %s, which is not supported", ErrRefused, function)
}

// rebuildTensor decodes (storage, offset, size, stride, requires_grad, backward_hooks, metadata). The last three may be
// missing.
func rebuildTensor(args []any, dtype any) (*Entry, error) {
	if len(args) < 4 || len(args) > 7 {
		return nil, errStack
	}
	s, ok1 := args[0].(storage)
	offset, ok2 := args[1].(int64)
	shape, ok3 := integers(args[2])
	strides, ok4 := integers(args[3])
	if !ok1 || !ok2 || !ok3 || !ok4 || offset < 0 {
		return nil, errStack
	}
	e := &Entry{Storage: s.key, StorageBytes: s.bytes, Device: s.location}
	if len(args) > 4 {
		e.RequiresGrad, _ = args[4].(bool)
	}
	for _, extra := range args[min(5, len(args)):] {
		if d, ok := extra.(*Dict); extra != nil && (!ok || len(d.Keys) > 0) {
			return nil, fmt.Errorf("%w: a tensor with hooks or attributes", ErrRefused)
		}
	}
	element := s.dtype
	if dtype != nil {
		name, ok := dtype.(global)
		if !ok || name.module != "torch" {
			return nil, errStack
		}
		var err error
		if element, err = tensor.ParseDType(name.name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	if element == 0 || element.BitSize()%8 != 0 {
		return nil, fmt.Errorf("%w: a tensor whose storage has no element type", ErrRefused)
	}
	size := int64(element.BitSize() / 8)
	if offset > math.MaxInt64/size {
		return nil, fmt.Errorf("%w: an offset of %d elements", ErrFormat, offset)
	}
	e.Spec = tensor.Spec{DType: element, Shape: shape, Strides: tensor.Strides(strides), ByteOffset: offset * size}
	if err := e.Spec.Validate(e.StorageBytes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return e, nil
}

// rebuildParameter decodes (data, requires_grad, backward_hooks), a module parameter.
func rebuildParameter(args []any) (*Entry, error) {
	if len(args) != 3 {
		return nil, errStack
	}
	data, ok := args[0].(*Entry)
	if !ok {
		return nil, errStack
	}
	if hooks, ok := args[2].(*Dict); !ok || len(hooks.Keys) > 0 {
		return nil, fmt.Errorf("%w: a parameter with hooks", ErrRefused)
	}
	parameter := *data
	parameter.RequiresGrad, _ = args[1].(bool)
	return &parameter, nil
}

// orderedDict decodes no arguments, or a list of pairs.
func orderedDict(args []any) (*Dict, error) {
	d := &Dict{}
	if len(args) == 0 {
		return d, nil
	}
	pairs, ok := args[0].(*List)
	if len(args) != 1 || !ok {
		return nil, errStack
	}
	for _, item := range pairs.Items {
		pair, ok := item.(*List)
		if !ok || len(pair.Items) != 2 {
			return nil, errStack
		}
		d.Keys = append(d.Keys, pair.Items[0])
		d.Values = append(d.Values, pair.Items[1])
	}
	return d, nil
}

func integers(value any) ([]int64, bool) {
	tuple, ok := value.(*List)
	if !ok || len(tuple.Items) > tensor.MaxRank {
		return nil, false
	}
	numbers := make([]int64, len(tuple.Items))
	for i, item := range tuple.Items {
		if numbers[i], ok = item.(int64); !ok {
			return nil, false
		}
	}
	return numbers, true
}
