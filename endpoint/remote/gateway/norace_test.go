//go:build !race

package gateway_test

const memoryFactor = 1
