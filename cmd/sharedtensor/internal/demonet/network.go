package demonet

import (
	"fmt"
	"math"

	"github.com/sharedtensor/sharedtensor/module"
)

// MaxTokens is the maximum number of tokens of one run.
const MaxTokens = 256

// Network is a network over weights that are used in place. It is not safe for concurrent use; create one for each
// goroutine.
type Network struct {
	config Config
	embed  []float32
	layers []layer
	norm   []float32
	head   []float32

	// Buffers of a run.
	x, normed, mixed []float32   // Dim
	hidden           []float32   // Hidden
	query            []float32   // Dim
	cache            [][]float32 // for each layer, the keys and values of the tokens so far, 2×Dim each
	scores           [MaxTokens]float32
}

// New returns a network over the weights in sd, with the size given by their shapes. It borrows sd, which must stay
// open while the network is used. It fails with [ErrWeights] if sd does not contain this network.
func New(sd *module.StateDict) (*Network, error) {
	c, err := configOf(sd)
	if err != nil {
		return nil, err
	}
	b := binder{sd: sd}
	n := &Network{
		config: c,
		embed:  b.bind(embedName, c.Vocab, c.Dim),
		norm:   b.bind(normName, c.Dim),
		head:   b.bind(headName, c.Vocab, c.Dim),
	}
	for i := range c.Layers {
		n.layers = append(n.layers, b.layer(i, c))
	}
	if b.err != nil {
		return nil, b.err
	}
	n.x, n.normed, n.mixed = make([]float32, c.Dim), make([]float32, c.Dim), make([]float32, c.Dim)
	n.query, n.hidden = make([]float32, c.Dim), make([]float32, c.Hidden)
	n.cache = make([][]float32, c.Layers)
	return n, nil
}

// Config returns the network's size.
func (n *Network) Config() Config { return n.config }

// Run reads 1 to [MaxTokens] tokens, each 0 to Vocab-1, and returns a score for each token of the vocabulary as the
// next one. The caller owns the scores. Equal weights and tokens give bit-identical scores on the same kind of machine.
func (n *Network) Run(tokens []int) ([]float32, error) {
	if len(tokens) == 0 || len(tokens) > MaxTokens {
		return nil, fmt.Errorf("%d tokens, want 1 to %d", len(tokens), MaxTokens)
	}
	for i, t := range tokens {
		if t < 0 || t >= n.config.Vocab {
			return nil, fmt.Errorf("token %d is %d, want 0 to %d", i, t, n.config.Vocab-1)
		}
	}
	for i := range n.cache {
		n.cache[i] = n.cache[i][:0]
	}
	for position, t := range tokens {
		n.start(t, position)
		for i := range n.layers {
			n.attend(i, position)
			n.feedForward(&n.layers[i])
		}
	}
	rmsNorm(n.normed, n.x, n.norm)
	scores := make([]float32, n.config.Vocab)
	matvec(scores, n.head, n.normed)
	return scores, nil
}

// start sets x to the token's embedding plus its position, encoded as waves of increasing length.
func (n *Network) start(token, position int) {
	dim := n.config.Dim
	copy(n.x, n.embed[token*dim:(token+1)*dim])
	for i := 0; i < dim; i += 2 {
		s, c := math.Sincos(float64(position) / math.Pow(10000, float64(i)/float64(dim)))
		n.x[i] += float32(s)
		n.x[i+1] += float32(c)
	}
}

// attend adds the attention of layer i over the tokens so far to x.
func (n *Network) attend(i, position int) {
	l, dim := &n.layers[i], n.config.Dim
	rmsNorm(n.normed, n.x, l.norm1)
	matvec(n.query, l.qkv[:dim*dim], n.normed)
	n.cache[i] = append(n.cache[i], make([]float32, 2*dim)...)
	cache := n.cache[i]
	matvec(cache[2*dim*position:], l.qkv[dim*dim:], n.normed)
	for h := 0; h < dim; h += headDim {
		scores := n.scores[:position+1]
		for t := range scores {
			key := cache[2*dim*t+h:][:headDim]
			scores[t] = dot(n.query[h:h+headDim], key) / 8 // the square root of headDim
		}
		softmax(scores)
		mix := n.mixed[h : h+headDim]
		clear(mix)
		for t, s := range scores {
			value := cache[2*dim*t+dim+h:][:headDim]
			for k, v := range value {
				mix[k] += s * v
			}
		}
	}
	matvec(n.normed, l.out, n.mixed)
	add(n.x, n.normed)
}

// feedForward adds the layer's feed-forward output for each token to x.
func (n *Network) feedForward(l *layer) {
	rmsNorm(n.normed, n.x, l.norm2)
	matvec(n.hidden, l.up, n.normed)
	for i, v := range n.hidden {
		n.hidden[i] = max(v, 0)
	}
	matvec(n.normed, l.down, n.hidden)
	add(n.x, n.normed)
}
