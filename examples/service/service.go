// Package service is a small inference service in three programs. The owner has functions that other processes call: it
// builds models, transforms tensors, and streams what it computes. The client calls them. Tensors cross in neither
// direction: both sides use the same memory. The third, web, answers HTTP requests with four workers on the newest
// version of the owner's model.
//
// This package has the types of arguments and results, and the names of the endpoints.
package service

import "github.com/sharedtensor/sharedtensor/tensor"

// The endpoints of the owner.
const (
	// BuildModel makes a model: [BuildArgs] to a state dict. It runs as a task that reports its progress. The model is
	// a managed object: it lives as long as a client has a reference to it, and is the same one for all who ask for the
	// same hidden size.
	BuildModel = "build_model"
	// Transform is y = scale * x + shift: [TransformArgs] to a tensor.
	Transform = "transform"
	// SpectralNorm computes how much a matrix stretches a vector at most, by power iteration, and streams its
	// estimates: [NormArgs] to [Estimate].
	SpectralNorm = "spectral_norm"
)

// BuildArgs says what model to build.
type BuildArgs struct {
	// HiddenSize is the width of each layer.
	HiddenSize int64 `json:"hidden_size"`
	// Layers is how many there are.
	Layers int `json:"layers,omitempty"`
	// PaceMS is how many milliseconds each layer takes at least. It stands for the work that a real model is.
	PaceMS int `json:"pace_ms,omitempty"`
}

// TransformArgs says what to transform.
type TransformArgs struct {
	// X is a tensor of float32 of any shape.
	X *tensor.Tensor `json:"x"`
	// Scale is what each element is multiplied by.
	Scale float32 `json:"scale"`
	// Shift is what is added to it then.
	Shift float32 `json:"shift,omitempty"`
}

// NormArgs says which norm to compute, in how many steps.
type NormArgs struct {
	// A is a matrix of float32.
	A *tensor.Tensor `json:"a"`
	// Steps is how many estimates to make.
	Steps int `json:"steps"`
}

// Estimate is the norm as it is known after a step.
type Estimate struct {
	// Step counts from 1.
	Step int `json:"step"`
	// Value is the norm.
	Value float64 `json:"value"`
}
