package session

import (
	"sync"
	"testing"
)

// useStack grows the stack like a request does: decoding, a function, encoding and sending.
//
//go:noinline
func useStack(depth int) (sum byte) {
	var frame [512]byte
	frame[depth] = byte(depth)
	if depth > 0 {
		sum = useStack(depth - 1)
	}
	return sum + frame[depth]
}

// BenchmarkRunners compares a runner with a new goroutine for each request. 14 frames use 7 KiB of stack.
func BenchmarkRunners(b *testing.B) {
	var done sync.WaitGroup
	request := runFunc(func() {
		useStack(14)
		done.Done()
	})
	b.Run("runner", func(b *testing.B) {
		var r runners
		defer r.close()
		for b.Loop() {
			done.Add(1)
			r.run(request)
			done.Wait()
		}
	})
	b.Run("goroutine", func(b *testing.B) {
		for b.Loop() {
			done.Add(1)
			go request.runAsync()
			done.Wait()
		}
	})
}
