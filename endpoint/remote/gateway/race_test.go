//go:build race

package gateway_test

// memoryFactor is how much more memory a process takes with the race detector.
const memoryFactor = 4
