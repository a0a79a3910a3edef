//go:build race

package gateway_test

// memoryFactor is the memory overhead of the race detector.
const memoryFactor = 4
