package rl

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// writeStateDict writes a state dict as a safetensors file. Tied tensors are written in full.
func writeStateDict(ctx context.Context, w io.Writer, sd *module.StateDict) error {
	var infos []safetensors.TensorInfo
	for name, t := range sd.All() {
		infos = append(infos, safetensors.TensorInfo{Name: name, DType: t.DType(), Shape: t.Shape()})
	}
	header, err := safetensors.NewHeader(infos, sd.Metadata)
	if err != nil {
		return err
	}
	return safetensors.Write(w, header, func(w io.Writer, info safetensors.TensorInfo) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		t, _ := sd.Get(info.Name)
		_, err := t.WriteTo(w)
		return err
	})
}

// readStateDict makes a state dict of the bytes of a safetensors file, in one slab of memory.
func readStateDict(ctx context.Context, dev driver.Device, text []byte) (*module.StateDict, error) {
	dir, err := os.MkdirTemp("", "sharedtensor-rl-")
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "parameters.safetensors")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	return module.Load(ctx, dev, path, module.LoadOptions{})
}
