package codec

import (
	"fmt"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// EncodeManifest returns the message for a manifest. It contains digests if every tensor has one.
func EncodeManifest(m *module.Manifest) (*message.Manifest, error) {
	tensors := make([]message.Tensor, len(m.Tensors))
	digests := !slices.ContainsFunc(m.Tensors, func(t module.TensorSpec) bool { return t.Digest == nil })
	for i := range m.Tensors {
		t := &m.Tensors[i]
		tensors[i] = message.Tensor{
			Name: t.Name, DType: uint8(t.DType), Storage: t.Storage, ByteOffset: t.ByteOffset, Shape: t.Shape, Strides: t.Strides,
		}
		if digests {
			tensors[i].Digest = t.Digest[:]
		}
	}
	storages := make([]message.Storage, len(m.Storages))
	for i, s := range m.Storages {
		storages[i] = message.Storage{Bytes: uint64(s.Bytes), Device: message.UUID(s.Device), Type: int32(s.DeviceType)}
	}
	return message.NewManifest(tensors, storages, m.Metadata)
}

// DecodeManifest returns a peer's manifest, which shares the memory of m's columns. It validates the columns, not the
// tensors and storages that they describe.
func DecodeManifest(m *message.Manifest) (*module.Manifest, error) {
	out := &module.Manifest{Metadata: m.Metadata}
	err := m.Rows(func(i int, row *message.Tensor) {
		if i == 0 {
			out.Tensors = make([]module.TensorSpec, m.Len()) // only after the columns were validated
		}
		t := &out.Tensors[i]
		t.Name, t.Storage = row.Name, row.Storage
		t.Spec = tensor.Spec{DType: tensor.DType(row.DType), Shape: row.Shape, Strides: row.Strides, ByteOffset: row.ByteOffset}
		if row.Digest != nil {
			t.Digest = (*module.Digest)(row.Digest)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	out.Storages = make([]module.StorageSpec, len(m.Storages))
	for i, s := range m.Storages {
		out.Storages[i] = module.StorageSpec{
			Bytes: int64(s.Bytes), Device: driver.UUID(s.Device), DeviceType: driver.DeviceType(s.Type),
		}
	}
	return out, nil
}

// PrepareManifest decodes a manifest and validates all of it.
func PrepareManifest(m *message.Manifest) (*module.Prepared, error) {
	decoded, err := DecodeManifest(m)
	if err != nil {
		return nil, err
	}
	prepared, err := decoded.Prepare()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.ErrInvalid, err)
	}
	return prepared, nil
}

// EncodeDevice returns the message for a device.
func EncodeDevice(d driver.Info) message.DeviceInfo {
	return message.DeviceInfo{UUID: message.UUID(d.UUID), Type: int32(d.Type), Index: int32(d.Index), Name: message.ValidText(d.Name)}
}
