package models

import (
	"fmt"
	"net/url"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Manifest describes a version to peers: where to fetch its tensors, without details of the owner's memory.
type Manifest struct {
	Name     string            `json:"name"`
	Version  uint64            `json:"version"`
	ServerID string            `json:"server_id"`
	Bytes    int64             `json:"bytes"`
	Tensors  []ManifestTensor  `json:"tensors"`
	Metadata map[string]string `json:"metadata,omitempty"`
	URL      string            `json:"url"`
}

// ManifestTensor describes one tensor.
type ManifestTensor struct {
	Name  string       `json:"name"`
	DType string       `json:"dtype"`
	Shape tensor.Shape `json:"shape"`
	Bytes int64        `json:"bytes"`
	// TiedTo is the name of the tensor that this name shares its elements with. It is empty if the tensor stores its
	// own elements.
	TiedTo string `json:"tied_to,omitempty"`
	// SHA256 is the digest of the bytes in hexadecimal, if it was requested. It is empty for tied names.
	SHA256 string `json:"sha256,omitempty"`
	URL    string `json:"url"`
}

// place identifies the memory of a tensor, to find tied names.
type place struct {
	storage uint32
	offset  int64
	dtype   tensor.DType
	shape   string
	strides string
}

func placeOf(t *module.TensorSpec) place {
	return place{t.Storage, t.ByteOffset, t.DType, t.Shape.String(), fmt.Sprint(t.Strides)}
}

func manifestOf(name string, version uint64, server string, m *module.Manifest) (*Manifest, error) {
	base := fmt.Sprintf("/v1/models/%s@%d", url.PathEscape(name), version)
	out := &Manifest{
		Name: name, Version: version, ServerID: server, Tensors: make([]ManifestTensor, len(m.Tensors)), Metadata: m.Metadata,
		URL: base + "/model.safetensors",
	}
	first := map[place]string{}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		n, err := t.Spec.ByteLen()
		if err != nil {
			return nil, err
		}
		one := ManifestTensor{Name: t.Name, DType: t.DType.String(), Shape: t.Shape, Bytes: n, URL: base + "/tensors/" + url.PathEscape(t.Name)}
		if one.Shape == nil {
			one.Shape = tensor.Shape{}
		}
		if kept, tied := first[placeOf(t)]; tied && one.Bytes > 0 {
			one.TiedTo = kept
		} else {
			first[placeOf(t)] = t.Name
			out.Bytes += one.Bytes
		}
		out.Tensors[i] = one
	}
	return out, nil
}

// safetensorsFile lays a state dict out as a file without copying it. Tied names are stored once and recorded in the
// metadata, in the format of package module. It borrows sd.
func safetensorsFile(sd *module.StateDict) (*content, error) {
	list, metadata := sd.Stored()
	header, err := safetensors.NewHeader(list, metadata)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSerialization, err)
	}
	prefix, err := header.Encode()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSerialization, err)
	}
	c := &content{}
	c.add(part{size: int64(len(prefix)), data: prefix})
	for _, info := range header.Tensors {
		t, found := sd.Get(info.Name)
		if !found {
			return nil, fmt.Errorf("tensor %q is gone", info.Name) // the header was made from these names
		}
		if err := c.addTensor(t); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", info.Name, err)
		}
	}
	return c, nil
}
