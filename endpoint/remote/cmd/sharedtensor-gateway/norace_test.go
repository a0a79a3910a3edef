//go:build !race

package main

// memoryFactor is the memory overhead of the race detector.
const memoryFactor = 1
