package safetensors

import (
	"fmt"
	"strings"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// parser parses the JSON of a Header.
type parser struct {
	scanner
	header *Header
	// sizes is the free part of an allocation for many shapes.
	sizes []int64
}

// member parses one entry of the header.
func (p *parser) member(name string) error {
	if name == metadataKey {
		return p.metadata()
	}
	info := TensorInfo{Name: name}
	if err := p.entry(&info); err != nil {
		return fmt.Errorf("tensor %s: %w", quote(name), err)
	}
	p.header.Tensors = append(p.header.Tensors, info)
	return nil
}

// The keys of an entry, as bits.
const (
	sawDType = 1 << iota
	sawShape
	sawOffsets
	sawAll = sawDType | sawShape | sawOffsets
)

// entry parses and checks the object of one tensor.
func (p *parser) entry(info *TensorInfo) error {
	saw := 0
	err := p.object(func(key string) error {
		bit := keyBit(key)
		switch {
		case bit == 0:
			return fmt.Errorf("%w: %s", ErrUnknownKey, quote(key))
		case saw&bit != 0:
			return fmt.Errorf("%w: %s", ErrDuplicateKey, key)
		}
		saw |= bit
		switch bit {
		case sawDType:
			return p.dtype(info)
		case sawShape:
			return p.shape(info)
		}
		return p.offsets(info)
	})
	if err != nil {
		return err
	}
	if saw != sawAll {
		return fmt.Errorf("%w: %s", ErrMissingKey, missingKeys(saw))
	}
	want, err := byteLen(info.DType, info.Shape)
	if err != nil {
		return err
	}
	if info.Bytes() != want {
		return fmt.Errorf("%w: %d bytes, not %d", ErrLength, info.Bytes(), want)
	}
	return nil
}

// keyBit returns the bit of a key, 0 for an unknown one.
func keyBit(key string) int {
	switch key {
	case "dtype":
		return sawDType
	case "shape":
		return sawShape
	case "data_offsets":
		return sawOffsets
	}
	return 0
}

// missingKeys returns the names of missing keys.
func missingKeys(saw int) string {
	var missing []string
	for i, key := range [...]string{"dtype", "shape", "data_offsets"} {
		if saw&(1<<i) == 0 {
			missing = append(missing, key)
		}
	}
	return strings.Join(missing, ", ")
}

func (p *parser) dtype(info *TensorInfo) error {
	name, err := p.string()
	if err != nil {
		return fmt.Errorf("dtype: %w", err)
	}
	info.DType, err = ParseDType(name)
	return err
}

func (p *parser) shape(info *TensorInfo) error {
	var sizes [tensor.MaxRank]int64
	rank := 0
	err := p.array(func() error {
		if rank == tensor.MaxRank {
			return fmt.Errorf("%w: more than %d dimensions", ErrShape, tensor.MaxRank)
		}
		n, err := p.natural(ErrShape)
		sizes[rank] = n
		rank++
		return err
	})
	if err != nil {
		return fmt.Errorf("shape: %w", err)
	}
	if p.sizes == nil || len(p.sizes) < rank {
		p.sizes = make([]int64, max(tensor.MaxRank, min(len(p.text)/32, 2048)))
	}
	info.Shape, p.sizes = tensor.Shape(p.sizes[:rank:rank]), p.sizes[rank:]
	copy(info.Shape, sizes[:rank])
	return nil
}

func (p *parser) offsets(info *TensorInfo) error {
	var pair [2]int64
	count := 0
	err := p.array(func() error {
		if count == len(pair) {
			return fmt.Errorf("%w: more than two numbers", ErrOffset)
		}
		n, err := p.natural(ErrOffset)
		pair[count] = n
		count++
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("data_offsets: %w", err)
	case count != len(pair):
		return fmt.Errorf("%w: %d numbers, not 2", ErrOffset, count)
	case pair[1] < pair[0]:
		return fmt.Errorf("%w: ends at %d before it begins at %d", ErrOffset, pair[1], pair[0])
	}
	info.Begin, info.End = pair[0], pair[1]
	return nil
}

// metadata parses the object of strings under __metadata__.
func (p *parser) metadata() error {
	if p.header.Metadata != nil {
		return fmt.Errorf("%w: %s", ErrDuplicateKey, metadataKey)
	}
	values := map[string]string{}
	err := p.object(func(key string) error {
		if _, twice := values[key]; twice {
			return fmt.Errorf("%w: %s", ErrDuplicateKey, quote(key))
		}
		value, err := p.string()
		if err != nil {
			return fmt.Errorf("%s: %w", quote(key), err)
		}
		values[key] = value
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMetadata, err)
	}
	p.header.Metadata = values
	return nil
}
