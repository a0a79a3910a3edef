// Package modelwire transfers the bytes of a model's version between hosts. Packages models, mirror, stream and rl use
// it; they define the protocols.
//
// [ReadFile] receives a safetensors file into one new slab of memory. [WriteDelta] and [ApplyDelta] transfer the
// difference between two versions of a tensor. [Open] reads a body whose peer must not stop sending.
package modelwire
