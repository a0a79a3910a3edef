package module

import (
	"fmt"
	"maps"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// NamedSpec describes a tensor to create.
type NamedSpec struct {
	// Name is the tensor's name.
	Name string
	// DType is the type of the elements.
	DType tensor.DType
	// Shape is the size of each dimension; it is borrowed.
	Shape tensor.Shape
	// TiedTo is the name of an earlier tensor with the same bytes, type, shape and device; empty for a tensor with
	// separate bytes.
	TiedTo string
	// Device is the device of the tensor; nil means the device of the call.
	Device driver.Device
}

// New returns an owned state dict with tensors of the given descriptions, in order. Each device has one slab of new,
// zeroed memory for all its tensors: one allocation, one descriptor and one mapping. Tensors without a device are on
// dev. Errors are [ErrName], [ErrDuplicateName], [ErrManifest] for an invalid tie, [ErrTooLarge], the errors of
// [tensor.Spec.Validate] and those of the devices. All descriptions are checked before memory is allocated. The devices
// must outlive the state dict.
func New(dev driver.Device, specs []NamedSpec) (*StateDict, error) {
	return newStateDict(dev, specs, true)
}

// Empty is [New] for callers that write all elements. On a [driver.UninitializedAllocator], such as host.Pool,
// elements are not zeroed and may hold data that this program left there. Gaps between tensors and the tail are always
// zeroed, because readers of the memory can see them.
func Empty(dev driver.Device, specs []NamedSpec) (*StateDict, error) {
	return newStateDict(dev, specs, false)
}

func newStateDict(dev driver.Device, specs []NamedSpec, zeroed bool) (_ *StateDict, err error) {
	if err := driver.CheckDevice(dev); err != nil {
		return nil, err
	}
	slabs := byDevice(dev, specs)
	manifest := &Manifest{Tensors: make([]TensorSpec, len(specs))}
	for i, s := range slabs {
		layout, err := planSlab(s.specs, s.device.Info().Granularity)
		if err != nil {
			return nil, err
		}
		s.layout = layout
		part := layout.Manifest(s.device.Info())
		manifest.Storages = append(manifest.Storages, part.Storages...)
		for j, t := range part.Tensors {
			t.Storage = uint32(i)
			manifest.Tensors[s.position[j]] = t
		}
	}
	if err := manifest.Validate(); err != nil {
		return nil, err
	}
	if len(specs) == 0 {
		return NewStateDict(), nil
	}
	var storages []*tensor.Storage
	// The tensors hold their own references; without tensors this frees the memory.
	defer func() {
		for _, s := range storages {
			if closeErr := s.Close(); err == nil {
				err = closeErr
			}
		}
	}()
	for i, s := range slabs {
		u, can := s.device.(driver.UninitializedAllocator)
		alloc := s.device.Alloc
		if can && !zeroed {
			alloc = u.AllocUninitialized
		}
		mem, err := alloc(manifest.Storages[i].Bytes)
		if err != nil {
			return nil, fmt.Errorf("slab of %d tensors: %w", len(s.specs), err)
		}
		storages = append(storages, tensor.NewStorage(mem))
		if can && !zeroed {
			if err := s.layout.zeroGaps(mem); err != nil {
				return nil, err
			}
		}
	}
	return FromManifest(manifest, storages)
}

// deviceSlab is the part of the model on one device.
type deviceSlab struct {
	device   driver.Device
	specs    []NamedSpec
	position []int // of each spec in the whole list
	layout   *Layout
}

// byDevice groups the descriptions by device, in order of first occurrence.
func byDevice(dev driver.Device, specs []NamedSpec) (slabs []*deviceSlab) {
	at := map[driver.Device]int{}
	for i, s := range specs {
		on := dev
		if s.Device != nil {
			on = s.Device
		}
		n, known := at[on]
		if !known {
			n = len(slabs)
			at[on] = n
			slabs = append(slabs, &deviceSlab{device: on})
		}
		slabs[n].specs = append(slabs[n].specs, s)
		slabs[n].position = append(slabs[n].position, i)
	}
	return slabs
}

// ZerosLike returns an owned state dict on dev with the names, types, shapes, ties and metadata of sd, row-major and
// zeroed, in one slab. It borrows sd. Errors are those of [New].
func ZerosLike(dev driver.Device, sd *StateDict) (*StateDict, error) {
	return like(dev, sd, New)
}

// EmptyLike is [ZerosLike] for callers that write all elements; see [Empty]. A trainer that publishes
// after every step calls it with a pool (host.Pool) and reuses the memory of the version before the last.
func EmptyLike(dev driver.Device, sd *StateDict) (*StateDict, error) {
	return like(dev, sd, Empty)
}

func like(dev driver.Device, sd *StateDict, make func(driver.Device, []NamedSpec) (*StateDict, error)) (*StateDict, error) {
	var specs []NamedSpec
	for i, name := range sd.names {
		_, spec := sd.place(i)
		specs = append(specs, NamedSpec{Name: name, DType: spec.DType, Shape: spec.Shape})
	}
	for _, group := range sd.aliases() {
		for _, i := range group[1:] {
			specs[i].TiedTo = sd.names[group[0]]
		}
	}
	made, err := make(dev, specs)
	if err != nil {
		return nil, err
	}
	made.Metadata = maps.Clone(sd.Metadata)
	return made, nil
}

// planSlab places tensors one after another.
func planSlab(specs []NamedSpec, granularity int64) (*Layout, error) {
	l := &Layout{Tensors: make([]Placement, 0, len(specs))}
	at := make(map[string]int, len(specs))
	var end int64
	for i, s := range specs {
		p := Placement{Name: s.Name, TiedTo: s.TiedTo, Spec: tensor.Spec{DType: s.DType, Shape: s.Shape.Clone()}}
		var err error
		if p.Bytes, err = p.Spec.ByteLen(); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(s.Name), err)
		}
		if s.TiedTo != "" {
			kept, known := at[s.TiedTo]
			if !known || l.Tensors[kept].Spec.DType != s.DType || !l.Tensors[kept].Spec.Shape.Equal(s.Shape) {
				return nil, fmt.Errorf("tensor %s: %w: no earlier tensor %s of this type and shape on its device", quote(s.Name), ErrManifest, quote(s.TiedTo))
			}
			p.Spec.ByteOffset = l.Tensors[kept].Spec.ByteOffset
		} else if p.Spec.ByteOffset, end, err = l.place(end, p.Bytes); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(s.Name), err)
		}
		at[s.Name] = i
		l.Tensors = append(l.Tensors, p)
	}
	var ok bool
	if l.SlabBytes, ok = roundUp(end, max(granularity, Alignment)); !ok {
		return nil, ErrTooLarge
	}
	return l, nil
}

// zeroGaps zeroes the bytes of a slab outside all tensors.
func (l *Layout) zeroGaps(mem driver.Memory) error {
	var end int64
	for i := range l.Tensors {
		t := &l.Tensors[i]
		if t.TiedTo != "" {
			continue
		}
		if err := zeroRange(mem, end, t.Spec.ByteOffset); err != nil {
			return err
		}
		end = t.Spec.ByteOffset + t.Bytes
	}
	return zeroRange(mem, end, mem.Bytes())
}

// zeros is the source of zeroRange.
var zeros [4 << 10]byte

// zeroRange zeroes the bytes from one offset to another.
func zeroRange(mem driver.Memory, from, to int64) error {
	for from < to {
		n, err := mem.WriteAt(zeros[:min(to-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// place returns the aligned offset for bytes behind end, and the new end.
func (l *Layout) place(end, bytes int64) (offset, newEnd int64, err error) {
	offset, ok := roundUp(end, Alignment)
	if !ok || offset+bytes < offset {
		return 0, 0, ErrTooLarge
	}
	return offset, offset + bytes, nil
}

// Freeze prepares the state dict for publication. It waits until the devices have finished all work that this process
// started, so that the bytes are complete, and then freezes every storage whose device supports it against new writers
// ([driver.Freeze]). Existing mappings stay writable, including those of this process. A second Freeze
// returns nil. It borrows sd. After an error some storages may be frozen.
func Freeze(sd *StateDict) error {
	storages := sd.Storages()
	synced := map[driver.Device]bool{}
	for _, s := range storages {
		dev := s.Memory().Device()
		if synced[dev] {
			continue
		}
		synced[dev] = true
		if err := dev.Synchronize(); err != nil {
			return fmt.Errorf("%v: wait for the device: %w", dev.Info(), err)
		}
	}
	for _, s := range storages {
		if err := driver.Freeze(s.Memory()); err != nil {
			return fmt.Errorf("freeze storage of %d bytes: %w", s.Bytes(), err)
		}
	}
	return nil
}
