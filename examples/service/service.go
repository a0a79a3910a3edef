// Package service is a small inference service in three programs. The owner has functions that other processes call: it
// builds models, transforms tensors, and streams results. The client calls them. Tensors are not copied: both sides use
// the same memory. The third program, web, answers HTTP requests with four workers on the newest version of the owner's
// model.
//
// This package has the types of arguments and results, and the names of the endpoints.
package service

import "github.com/sharedtensor/sharedtensor/tensor"

// The endpoints of the owner.
const (
	// BuildModel creates a model: [BuildArgs] to a state dict. It runs as a task that reports its progress. The model
	// is a managed object: it lives while a client has a reference to it, and all callers with the same hidden size
	// share it.
	BuildModel = "build_model"
	// Transform is y = scale * x + shift: [TransformArgs] to a tensor.
	Transform = "transform"
	// SpectralNorm computes the maximum factor by which a matrix stretches a vector, by power iteration, and streams
	// its estimates: [NormArgs] to [Estimate].
	SpectralNorm = "spectral_norm"
)

// BuildArgs describes the model to build.
type BuildArgs struct {
	// HiddenSize is the width of each layer.
	HiddenSize int64 `json:"hidden_size"`
	// Layers is the number of layers.
	Layers int `json:"layers,omitempty"`
	// PaceMS is the minimum time for each layer in milliseconds. It simulates the work for a real model.
	PaceMS int `json:"pace_ms,omitempty"`
}

// TransformArgs holds the arguments of Transform.
type TransformArgs struct {
	// X is a tensor of float32 of any shape.
	X *tensor.Tensor `json:"x"`
	// Scale is the factor of each element.
	Scale float32 `json:"scale"`
	// Shift is added to each product.
	Shift float32 `json:"shift,omitempty"`
}

// NormArgs holds the arguments of SpectralNorm.
type NormArgs struct {
	// A is a matrix of float32.
	A *tensor.Tensor `json:"a"`
	// Steps is the number of estimates.
	Steps int `json:"steps"`
}

// Estimate is the estimate of the norm after a step.
type Estimate struct {
	// Step counts from 1.
	Step int `json:"step"`
	// Value is the norm.
	Value float64 `json:"value"`
}
