//go:build race

package main

// memoryFactor is the memory overhead of the race detector, which is in the gateway of these tests too.
const memoryFactor = 2
