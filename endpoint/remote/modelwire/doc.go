// Package modelwire transfers the bytes of a model's version between hosts. Packages models, mirror, stream and rl use
// it; they define the protocols.
//
// [ReadFile] receives a safetensors file into one new slab of memory.
package modelwire
