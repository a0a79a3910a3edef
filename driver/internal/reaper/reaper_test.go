package reaper

import (
	"sync"
	"testing"
)

// Functions added by several goroutines, and by a function of the queue, run in order.
func TestQueueRunsAllInOrder(t *testing.T) {
	var q Queue
	var done sync.WaitGroup
	var ran []int
	done.Add(101)
	for i := range 100 {
		q.Add(func() {
			ran = append(ran, i)
			if i == 50 {
				q.Add(done.Done)
			}
			done.Done()
		})
	}
	done.Wait()
	for i := range ran {
		if ran[i] != i {
			t.Fatalf("%d ran as number %d", ran[i], i)
		}
	}
}

// A stalled queue does not delay another.
func TestQueuesDoNotWaitForEachOther(t *testing.T) {
	var stalled, other Queue
	release, ran := make(chan struct{}), make(chan struct{})
	stalled.Add(func() { <-release })
	other.Add(func() { close(ran) })
	<-ran
	close(release)
}
