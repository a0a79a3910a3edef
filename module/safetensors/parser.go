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
	// seen holds the names so far; encoding/json would keep the last of two.
	seen map[string]struct{}
	// dims holds the shapes of all tensors: one growing slice instead of one allocation for each tensor.
	dims []int64
	// ends holds the end of each tensor's shape in dims.
	ends []int
}

// member parses one entry of the header.
func (p *parser) member(name string) error {
	if name == metadataKey {
		return p.metadata()
	}
	if _, twice := p.seen[name]; twice {
		return fmt.Errorf("%w: %s", ErrDuplicateName, quote(name))
	}
	p.seen[name] = struct{}{}
	info := TensorInfo{Name: name}
	if err := p.entry(&info); err != nil {
		return fmt.Errorf("tensor %s: %w", quote(name), err)
	}
	p.header.Tensors = append(p.header.Tensors, info)
	p.ends = append(p.ends, len(p.dims))
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
	saw, first := 0, len(p.dims)
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
			return p.shape()
		}
		return p.offsets(info)
	})
	if err != nil {
		return err
	}
	if saw != sawAll {
		return fmt.Errorf("%w: %s", ErrMissingKey, missingKeys(saw))
	}
	want, err := byteLen(info.DType, tensor.Shape(p.dims[first:]))
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

func (p *parser) shape() error {
	first := len(p.dims)
	err := p.array(func() error {
		if len(p.dims)-first == tensor.MaxRank {
			return fmt.Errorf("%w: more than %d dimensions", ErrShape, tensor.MaxRank)
		}
		n, err := p.natural(ErrShape)
		p.dims = append(p.dims, n)
		return err
	})
	if err != nil {
		return fmt.Errorf("shape: %w", err)
	}
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

// cutShapes assigns every tensor its part of dims after dims has stopped growing.
func (p *parser) cutShapes() {
	first := 0
	for i := range p.header.Tensors {
		end := p.ends[i]
		p.header.Tensors[i].Shape = tensor.Shape(p.dims[first:end:end])
		first = end
	}
}
