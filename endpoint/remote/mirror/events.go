package mirror

import (
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// progressEvery is the interval between progress events.
const progressEvery = 200 * time.Millisecond

// emit passes an event to Options.Events.
func (m *Mirror) emit(e Event) {
	if m.options.Events == nil {
		return
	}
	m.telling.Lock()
	defer m.telling.Unlock()
	m.options.Events(e)
}

// watchProgress emits progress events for a version until stop is called.
func (m *Mirror) watchProgress(version uint64, begin int64, a *modelwire.Arrival) (stop func()) {
	report := func() {
		m.emit(Event{Kind: EventProgress, Version: version, Done: a.Done.Load(), Total: a.Manifest.Bytes, Moved: m.attempts.moved.Load() - begin, From: m.picker.Load().where()})
	}
	if m.options.Events == nil {
		return func() {}
	}
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				report()
				return
			case <-tick.C:
				report()
			}
		}
	})
	return func() { close(ended); running.Wait() }
}
