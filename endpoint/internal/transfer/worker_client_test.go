package transfer_test

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// unwatchOp closes a watcher by its key.
var unwatchOp = fixture.NewOp("unwatch", func(w *fixture.Worker, _ context.Context, key string) (fixture.None, error) {
	return fixture.None{}, w.Watchers[key].Close()
})

// unwatch closes a watcher of a client.
func unwatch(c *fixture.Child, key string) {
	c.T.Helper()
	unwatchOp.Must(c.Process, key)
}
