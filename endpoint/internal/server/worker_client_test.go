package server_test

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// hangUpOp closes a client.
var hangUpOp = fixture.NewOp("hang up", func(w *fixture.Worker, _ context.Context, _ fixture.None) (fixture.None, error) {
	return fixture.None{}, w.Client.Close()
})

// hangUp closes a client.
func hangUp(c *fixture.Child) {
	c.T.Helper()
	hangUpOp.Must(c.Process, fixture.None{})
}
