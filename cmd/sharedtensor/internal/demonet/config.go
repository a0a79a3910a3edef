package demonet

import (
	"fmt"
	"math"
	"strconv"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// DefaultBytes is the default size of the demo's model.
const DefaultBytes = 64 << 20

// maxBytes is the maximum size of a synthetic model.
const maxBytes = 1 << 40

const (
	headDim    = 64
	minVocab   = 256
	elementLen = 4 // all tensors are float32
)

// Config is the size of a network. [New] derives it from the shapes in a state dict.
type Config struct {
	// Vocab is the number of distinct tokens.
	Vocab int
	// Dim is the number of channels, a multiple of 64.
	Dim int
	// Hidden is the number of channels inside the feed-forward part of a layer.
	Hidden int
	// Layers is the number of layers.
	Layers int
}

// TensorSpec describes one tensor of a network.
type TensorSpec struct {
	// Name is the tensor's name in the state dict.
	Name string
	// Spec is its dtype and shape; contiguous, at offset 0.
	Spec tensor.Spec
	// TiedTo is the name of an earlier tensor that shares its bytes, or "" if the tensor has its own.
	TiedTo string
}

// ConfigFor returns a network of about the given size. From 1 MiB, it is off by less than 16 KiB. The minimum is 260
// KiB. ConfigFor refuses sizes that are not positive or over 1 TiB.
func ConfigFor(bytes int64) (Config, error) {
	if bytes <= 0 || bytes > maxBytes {
		return Config{}, fmt.Errorf("a model of %d bytes: want 1 to %d", bytes, int64(maxBytes))
	}
	c := Config{Dim: 64}
	for _, step := range []struct {
		from int64
		dim  int
	}{{1 << 20, 128}, {8 << 20, 256}, {48 << 20, 512}, {256 << 20, 1024}, {2 << 30, 2048}, {16 << 30, 4096}} {
		if bytes >= step.from {
			c.Dim = step.dim
		}
	}
	c.Hidden = 4 * c.Dim
	rest := bytes/elementLen - int64(minVocab*c.Dim+c.Dim)
	perLayer := c.layerParameters()
	c.Layers = int(max(rest/perLayer, 1))
	// The rest is used for the vocabulary, because its rows allow the finest adjustment.
	c.Vocab = minVocab + int(max(rest-int64(c.Layers)*perLayer, 0)/int64(c.Dim))
	return c, nil
}

func (c Config) layerParameters() int64 {
	d, h := int64(c.Dim), int64(c.Hidden)
	return 3*d*d + d*d + 2*d*h + 2*d
}

// Bytes returns the size of all weights. Tied tensors count once.
func (c Config) Bytes() int64 {
	return elementLen * (int64(c.Vocab)*int64(c.Dim) + int64(c.Layers)*c.layerParameters() + int64(c.Dim))
}

// Tensors lists the network's tensors in order. Tied tensors follow the tensor they share.
func (c Config) Tensors() []TensorSpec {
	specs := []TensorSpec{float32Spec(embedName, c.Vocab, c.Dim)}
	for i := range c.Layers {
		name := layerName(i)
		specs = append(specs,
			float32Spec(name+"norm1.weight", c.Dim),
			float32Spec(name+"attention.qkv.weight", 3*c.Dim, c.Dim),
			float32Spec(name+"attention.out.weight", c.Dim, c.Dim),
			float32Spec(name+"norm2.weight", c.Dim),
			float32Spec(name+"mlp.up.weight", c.Hidden, c.Dim),
			float32Spec(name+"mlp.down.weight", c.Dim, c.Hidden),
		)
	}
	head := float32Spec(headName, c.Vocab, c.Dim)
	head.TiedTo = embedName
	return append(specs, float32Spec(normName, c.Dim), head)
}

const (
	embedName = "embed.weight"
	normName  = "norm.weight"
	headName  = "head.weight"
)

func layerName(i int) string { return "layers." + strconv.Itoa(i) + "." }

func float32Spec(name string, dims ...int) TensorSpec {
	shape := make(tensor.Shape, len(dims))
	for i, d := range dims {
		shape[i] = int64(d)
	}
	return TensorSpec{Name: name, Spec: tensor.Spec{DType: tensor.Float32, Shape: shape}}
}

// valid checks that the config describes a network whose sizes fit an int.
func (c Config) valid() error {
	if c.Vocab < 1 || c.Dim < headDim || c.Dim%headDim != 0 || c.Hidden < 1 || c.Layers < 1 ||
		c.Dim > math.MaxInt32/8 || c.Hidden > math.MaxInt32/8 {
		return fmt.Errorf("%w: %+v", ErrWeights, c)
	}
	return nil
}
