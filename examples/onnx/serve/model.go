//go:build linux

// Package serve answers HTTP requests with ONNX models in several processes. The processes use one copy of the weights,
// which an owner holds in shared memory.
package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.com/onnx/graph"
	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// GraphTensor is the name of the tensor that contains the graph of a published model. Graph and weights are one version, so
// a new version can change both.
const GraphTensor = "onnx.graph"

// LoadPair loads the two files that onnx-split wrote, prefix.onnx and prefix.safetensors. The caller closes the result.
func LoadPair(ctx context.Context, dev driver.Device, prefix string) (_ *module.StateDict, err error) {
	graphBytes, err := os.ReadFile(prefix + ".onnx")
	if err != nil {
		return nil, err
	}
	sd, err := module.Load(ctx, dev, prefix+".safetensors", module.LoadOptions{})
	if err != nil {
		return nil, err
	}
	if _, err := weightsOf(graphBytes, sd); err != nil {
		return nil, errors.Join(err, sd.Close())
	}
	t, err := tensor.FromSlice(dev, tensor.Shape{int64(len(graphBytes))}, graphBytes)
	if err == nil {
		err = sd.Set(GraphTensor, t)
	}
	if err != nil {
		return nil, errors.Join(err, sd.Close())
	}
	return sd, nil
}

// weightsOf returns the external initializers of the graph as views of the state dict's memory. It fails if one is missing
// or differs, so the library never opens the file that a graph names.
func weightsOf(graphBytes []byte, sd *module.StateDict) (map[string]ort.Tensor, error) {
	external, err := graph.External(graphBytes)
	if err != nil {
		return nil, err
	}
	weights := make(map[string]ort.Tensor, len(external))
	for _, want := range external {
		t, ok := sd.Get(want.Name)
		if !ok {
			return nil, fmt.Errorf("weight %q is missing", want.Name)
		}
		if t.DType() != want.DType || !slices.Equal(t.Shape(), want.Shape) {
			return nil, fmt.Errorf("weight %q is %v %v, the graph needs %v %v", want.Name, t.DType(), t.Shape(), want.DType, want.Shape)
		}
		data, err := tensor.RawData(t)
		if err != nil {
			return nil, fmt.Errorf("weight %q: %w", want.Name, err)
		}
		weights[want.Name] = ort.Tensor{DType: ort.DType(want.Type), Shape: want.Shape, Data: data}
	}
	return weights, nil
}

// Model is a session on one version.
type Model struct {
	*ort.Session
	// Version is the number of its version; 0 if it is not published.
	Version uint64
}

// attach creates a session on a published version. The weights stay where they are.
func attach(library *ort.Library, v endpoint.ModelVersion, c Config) (*Model, error) {
	t, ok := v.StateDict.Get(GraphTensor)
	if !ok {
		return nil, fmt.Errorf("the model has no tensor %q: publish the files of onnx-split", GraphTensor)
	}
	graphBytes, err := tensor.Data[uint8](t)
	if err != nil {
		return nil, err
	}
	weights, err := weightsOf(graphBytes, v.StateDict)
	if err != nil {
		return nil, err
	}
	folder, err := emptyFiles(graphBytes)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	opts := c.Options
	opts.Weights, opts.WeightsFolder = weights, folder
	session, err := library.NewSession(graphBytes, opts)
	if err != nil {
		return nil, err
	}
	return newModel(session, v.Version, c.Batch)
}

// emptyFiles returns a new folder with an empty file for each external data file of the graph. The library requires that
// they exist. The caller removes the folder.
func emptyFiles(graphBytes []byte) (string, error) {
	external, err := graph.External(graphBytes)
	if err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp("", "onnx-serve-")
	if err != nil {
		return "", err
	}
	for _, t := range external {
		if t.Location != filepath.Base(t.Location) || !filepath.IsLocal(t.Location) || t.Location == "." {
			err = fmt.Errorf("the graph has the weight %q in %q, which is not a plain file name", t.Name, t.Location)
		} else {
			err = os.WriteFile(filepath.Join(folder, t.Location), nil, 0o600)
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(folder))
		}
	}
	return folder, nil
}

// newModel takes the session and checks that the batch fits it.
func newModel(session *ort.Session, version uint64, batch Batch) (*Model, error) {
	m := &Model{Session: session, Version: version}
	if err := batch.check(session); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// source lends the model in use for one batch.
type source interface {
	use(fn func(m *Model) error) error
	// status returns a reason why the newest version is not in use, or nil.
	status() error
	Close() error
}

// private is a source with one model, which does not change.
type private struct{ model *Model }

func (p *private) use(fn func(m *Model) error) error { return fn(p.model) }

func (p *private) status() error { return nil }

func (p *private) Close() error { return p.model.Close() }

// followed is a source that switches to new versions between batches.
type followed struct {
	client *endpoint.Client
	device driver.Device
	models *endpoint.Follower[*Model]
}

func (f *followed) use(fn func(m *Model) error) error { return f.models.Use(fn) }

func (f *followed) status() error { return f.models.Status().Refused }

func (f *followed) Close() error {
	return errors.Join(f.models.Close(), f.client.Close(), f.device.Close())
}

// Batch maps inputs and outputs to the axis along which the rows of requests are combined. Inputs without an axis must be
// equal in all requests of a run. The empty Batch combines nothing.
type Batch map[string]int

// ParseBatch parses NAME=AXIS,NAME=AXIS.
func ParseBatch(text string) (Batch, error) {
	b := Batch{}
	for entry := range strings.SplitSeq(text, ",") {
		if entry == "" {
			continue
		}
		name, axis, _ := strings.Cut(entry, "=")
		var n int
		if _, err := fmt.Sscanf(axis, "%d", &n); err != nil || n < 0 || name == "" {
			return nil, fmt.Errorf("batch %q is not NAME=AXIS", entry)
		}
		b[name] = n
	}
	return b, nil
}

// check reports whether the batch names inputs and outputs of the session.
func (b Batch) check(s *ort.Session) error {
	if len(b) == 0 {
		return nil
	}
	for name := range b {
		if !slices.Contains(s.Inputs, name) && !slices.Contains(s.Outputs, name) {
			return fmt.Errorf("batch names %q, the model has inputs %q and outputs %q", name, s.Inputs, s.Outputs)
		}
	}
	for _, name := range s.Outputs {
		if _, ok := b[name]; !ok {
			return fmt.Errorf("batch needs an axis for output %q", name)
		}
	}
	return nil
}
